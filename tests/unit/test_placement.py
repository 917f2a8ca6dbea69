"""Placement: the same on every machine, in every process, for ever."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphd.placement import GOLDEN, check_golden, hashint8extended, slot_of, slots_of

EXTREMES = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 + 1, 2**62, 2**63 - 2, 2**63 - 1]


@pytest.mark.parametrize(("value", "seed", "expected"), GOLDEN)
def test_golden(value: int, seed: int, expected: int) -> None:
    assert hashint8extended(value, seed) == expected


def test_golden_slots() -> None:
    # As PostgreSQL 18 answers hashint8extended(account, 0) & 63. What a release places, every later one must find.
    assert [slot_of(account, 64) for account in EXTREMES] == [47, 6, 19, 55, 10, 6, 27, 54, 2, 55]
    check_golden()


@given(st.integers(0, 2**63 - 1), st.integers(0, 14))
def test_slot_is_the_hash_s_low_bits(account: int, bits: int) -> None:
    slots = 1 << bits
    assert slot_of(account, slots) == hashint8extended(account, 0) & (slots - 1)
    assert slots_of(np.array([account]), slots).tolist() == [slot_of(account, slots)]


def test_columns_agree_with_single_ids() -> None:
    accounts = np.array([*EXTREMES, *np.random.default_rng(7).integers(0, 2**63 - 1, 5_000)], dtype=np.int64)
    for slots in (1, 64, 16_384):
        assert slots_of(accounts, slots).tolist() == [slot_of(account, slots) for account in accounts.tolist()]
    assert slots_of(np.empty(0, dtype=np.int64), 64).tolist() == []


def test_processes_with_different_hash_seeds_agree() -> None:
    code = (
        "import hashlib; from graphd.placement import slot_of;"
        "ids = [*range(10_000), 2**31, 2**53 + 1, 2**63 - 1];"
        "print(hashlib.sha256(repr([slot_of(i, 1024) for i in ids]).encode()).hexdigest())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(printed) == 1


def test_accounts_spread_evenly() -> None:
    counts = np.bincount(slots_of(np.arange(64_000), 64), minlength=64)
    assert counts.min() > 850
    assert counts.max() < 1_150
