"""From account to slot, by Postgres's own hash for bigint.

    slot(account)           = hashint8extended(account, 0)      & (slots - 1)
    slot(account, bucket)   = hashint8extended(account, bucket) & (slots - 1)
    bucket(owner, neighbor) = hashint8extended(neighbor, 1)     & (buckets(owner) - 1)

It is the hash behind PARTITION BY HASH, so any psql session can say where an edge belongs. The arithmetic is hash_bytes_uint32_extended
of src/common/hashfn.c (Bob Jenkins' lookup3) after the folding of hashint8extended in src/backend/access/hash/hashfunc.c. Golden vectors
are checked when a process starts; a test compares 100,000 ids with a live server.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_MASK: Final = 0xFFFFFFFF
_INITIAL: Final = (0x9E3779B9 + 4 + 3923095) & _MASK

GOLDEN: Final[tuple[tuple[int, int, int], ...]] = (
    # (account, seed, hashint8extended as PostgreSQL 18 answers it)
    (0, 0, 4154612158245552303),
    (1, 0, -3670598878359251130),
    (40_000, 0, -2751395696564296123),
    (2**31 - 1, 0, -9109110466470504941),
    (2**31, 0, 1977219185673256887),
    (2**53 + 1, 0, -6408898991662627045),
    (2**63 - 1, 0, 1977219185673256887),
    (0, 1, 434346878670890809),
    (1, 1, -7620678293940249823),
    (3_000_000_000, 1, -3561104142175103493),
    (2**62 + 12_345, 7, -4444616457294917023),
    (-1, 2**40 + 3, -5312802932549473423),
)


def _rot(x: int, k: int) -> int:
    return ((x << k) & _MASK) | (x >> (32 - k))


def _seeded(seed: int) -> tuple[int, int, int]:
    """The state (a, b, c) after the seed has been mixed in: depends on the seed alone."""
    a = b = c = _INITIAL
    if seed == 0:
        return a, b, c
    a = (a + (seed >> 32)) & _MASK
    b = (b + seed) & _MASK
    a = ((a - c) & _MASK) ^ _rot(c, 4)
    c = (c + b) & _MASK
    b = ((b - a) & _MASK) ^ _rot(a, 6)
    a = (a + c) & _MASK
    c = ((c - b) & _MASK) ^ _rot(b, 8)
    b = (b + a) & _MASK
    a = ((a - c) & _MASK) ^ _rot(c, 16)
    c = (c + b) & _MASK
    b = ((b - a) & _MASK) ^ _rot(a, 19)
    a = (a + c) & _MASK
    c = ((c - b) & _MASK) ^ _rot(b, 4)
    b = (b + a) & _MASK
    return a, b, c


def _final(a: Any, b: Any, c: Any) -> tuple[Any, Any]:
    """lookup3's final(), unrolled for speed; works on ints and on uint64 arrays alike."""
    m = _MASK
    c = ((c ^ b) - (((b << 14) & m) | (b >> 18))) & m
    a = ((a ^ c) - (((c << 11) & m) | (c >> 21))) & m
    b = ((b ^ a) - (((a << 25) & m) | (a >> 7))) & m
    c = ((c ^ b) - (((b << 16) & m) | (b >> 16))) & m
    a = ((a ^ c) - (((c << 4) & m) | (c >> 28))) & m
    b = ((b ^ a) - (((a << 14) & m) | (a >> 18))) & m
    c = ((c ^ b) - (((b << 24) & m) | (b >> 8))) & m
    return b, c


def hashint8extended(value: int, seed: int) -> int:
    """Postgres's hashint8extended(value, seed), as the signed 64-bit integer SQL shows. value: bigint, seed: 0 .. 2^63-1."""
    low = (value & _MASK) ^ ((value >> 32) & _MASK if value >= 0 else ~(value >> 32) & _MASK)
    a, b, c = _seeded(seed)
    b, c = _final((a + low) & _MASK, b, c)
    unsigned = int(b) << 32 | int(c)
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned


@lru_cache(maxsize=65_536)
def _low_hash(account_id: int) -> int:
    """The low 32 bits of hashint8extended(account_id, 0): all a slot needs. account_id >= 0."""
    _, c = _final((_INITIAL + ((account_id ^ (account_id >> 32)) & _MASK)) & _MASK, _INITIAL, _INITIAL)
    return int(c)


def slot_of(account_id: int, slots: int) -> int:
    """The slot of an account's lists (bucket 0). slots: a power of two."""
    return _low_hash(account_id) & (slots - 1)


def slots_of(account_ids: npt.NDArray[np.int64], slots: int) -> npt.NDArray[np.int16]:
    """`slot_of` for a whole array of ids >= 0: shape (n,) in, shape (n,) out."""
    ids = account_ids.astype(np.uint64)
    low = (ids ^ (ids >> np.uint64(32))) & np.uint64(_MASK)
    a = (low + np.uint64(_INITIAL)) & np.uint64(_MASK)
    initial = np.full_like(a, _INITIAL)
    # A subtraction below zero wraps at 2^64, of which 2^32 is a divisor: the mask then gives the same low bits.
    _, c = _final_array(a, initial, initial)
    return (c & np.uint64(slots - 1)).astype(np.int16)


VECTOR_FROM: Final = 16
"""From this many ids on, numpy is faster than one by one (with the cache cold: 2 us an id against 60 us and 0.1 us an id)."""


def all_slots(account_ids: Sequence[int], slots: int) -> Sequence[int]:
    """The slot of each account, in order."""
    if len(account_ids) < VECTOR_FROM:
        return [slot_of(account_id, slots) for account_id in account_ids]
    found: Sequence[int] = slots_of(np.array(account_ids, dtype=np.int64), slots).tolist()
    return found


def _final_array(
    a: npt.NDArray[np.uint64], b: npt.NDArray[np.uint64], c: npt.NDArray[np.uint64]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    with np.errstate(over="ignore"):
        return _final(a, b, c)


def check_golden() -> None:
    """Raise AssertionError if this process would place accounts elsewhere than Postgres does."""
    for value, seed, expected in GOLDEN:
        found = hashint8extended(value, seed)
        assert found == expected, f"hashint8extended({value}, {seed}) is {expected}, computed {found}"
