"""Page tokens (Google AIP-158): opaque to callers, and of no use anywhere but where they were issued.

A token holds a cursor and a keyed MAC over the cursor and the `scope` it was issued for: account, direction, kind, state and
order of a list, or operands and order of a set operation. The scope itself is not in the token. Any other use, or one bit
changed, fails the MAC. The key is in the catalog, so every router takes every router's tokens.
Layout, 33 bytes, hence 44 characters of base64 without padding
or spare bits:

    version (1) | flags (1) | since (8) | id (8) | MAC (15): BLAKE2b, keyed
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from graphd.errors import InvalidArgumentError
from graphd.limits import MAX_PAGE_TOKEN_CHARS, MAX_RESUME_TOKEN_CHARS

_VERSION: Final = 1
_BACKWARD: Final = 1
_BODY: Final = struct.Struct(">BBqq")
_MAC_BYTES: Final = 15
_MARKS_VERSION: Final = 2
_MARK: Final = struct.Struct(">q")


class Cursor(NamedTuple):
    """A place between two rows: strictly after (since, id) in the list's order, or before it where `backward`.

    Set operations are ordered by id alone and leave since 0.
    """

    since: int
    id: int
    backward: bool = False


def _mac(body: bytes, scope: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(body + scope, key=key, digest_size=_MAC_BYTES, person=b"graphd.page").digest()


def encode(cursor: Cursor, scope: bytes, key: bytes) -> str:
    """The token for a cursor. `key`: 16 to 64 secret bytes."""
    return _sealed(_BODY.pack(_VERSION, _BACKWARD if cursor.backward else 0, cursor.since, cursor.id), scope, key)


def decode(token: str, scope: bytes, key: bytes) -> Cursor:
    """The cursor in a token. Raises InvalidArgumentError when it was not issued for this scope with this key."""
    refusal = InvalidArgumentError("page_token", "must be a token that this call returned for the same list and order")
    body = _opened(token, scope, key, MAX_PAGE_TOKEN_CHARS)
    if body is None or len(body) != _BODY.size:
        raise refusal
    version, flags, since, id_ = _BODY.unpack(body)
    if version != _VERSION:
        raise refusal
    return Cursor(since, id_, bool(flags & _BACKWARD))


def encode_marks(marks: Mapping[str, int], scope: bytes, key: bytes) -> str:
    """The token for a place in the events of several shards: the last id seen, by the shard's incarnation (a UUID)."""
    body = b"".join(UUID(incarnation).bytes + _MARK.pack(marks[incarnation]) for incarnation in sorted(marks))
    return _sealed(bytes([_MARKS_VERSION]) + body, scope, key)


def decode_marks(token: str, scope: bytes, key: bytes) -> dict[str, int]:
    """The marks in a token. Raises InvalidArgumentError when it was not issued for this scope with this key."""
    body = _opened(token, scope, key, MAX_RESUME_TOKEN_CHARS)
    size = 16 + _MARK.size
    if body is None or body[:1] != bytes([_MARKS_VERSION]) or (len(body) - 1) % size:
        raise InvalidArgumentError(
            "resume_token", "must be a token that this call returned for the same kinds and slots"
        )
    found: dict[str, int] = {}
    for at in range(1, len(body), size):
        [mark] = _MARK.unpack_from(body, at + 16)
        found[str(UUID(bytes=body[at : at + 16]))] = mark
    return found


def _sealed(body: bytes, scope: bytes, key: bytes) -> str:
    return base64.urlsafe_b64encode(body + _mac(body, scope, key)).decode().rstrip("=")


def _opened(token: str, scope: bytes, key: bytes, most_chars: int) -> bytes | None:
    """The body of a token whose MAC is right; None for any other."""
    if len(token) > most_chars or not token.isascii():
        return None
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    body, mac = raw[:-_MAC_BYTES], raw[-_MAC_BYTES:]
    canonical = base64.urlsafe_b64encode(raw).decode().rstrip("=") == token
    return body if canonical and hmac.compare_digest(mac, _mac(body, scope, key)) else None


def list_scope(account_id: int, direction: int, kind: int, state: int, ascending: bool) -> bytes:
    """What a list's token is bound to."""
    return struct.pack(">cqBhB?", b"L", account_id, direction, kind, state, ascending)


def set_scope(operation: bytes, operands: bytes) -> bytes:
    """What a set operation's token is bound to: a digest of its operands in order."""
    return b"S" + hashlib.blake2b(operation + b"\0" + operands, digest_size=32).digest()


def watch_scope(kinds: Sequence[int], slots: Sequence[int]) -> bytes:
    """What the token of a watcher is bound to: kinds and slots, ascending; empty is all."""
    return b"W" + struct.pack(f">{len(kinds)}hx{len(slots)}h", *kinds, *slots)
