"""Page tokens: of no use anywhere but where they were issued, and not at all when one bit is changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphd.cursor import Cursor, decode, encode, list_scope, set_scope
from graphd.errors import InvalidArgumentError

KEY, OTHER_KEY = b"k" * 32, b"l" * 32
SCOPE = list_scope(7, 1, 1, 1, False)
int64s = st.integers(-1, 2**63 - 1)
cursors = st.builds(Cursor, int64s, int64s, st.booleans())


def refused(token: str, scope: bytes = SCOPE, key: bytes = KEY) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        decode(token, scope, key)
    assert caught.value.field == "page_token"


@given(cursors)
def test_comes_back(cursor: Cursor) -> None:
    token = encode(cursor, SCOPE, KEY)
    assert decode(token, SCOPE, KEY) == cursor
    assert len(token) == 44
    assert "=" not in token


@given(cursors)
def test_every_bit_counts(cursor: Cursor) -> None:
    token = encode(cursor, SCOPE, KEY)
    for at in range(len(token)):
        for bit in range(8):
            refused(token[:at] + chr(ord(token[at]) ^ (1 << bit)) + token[at + 1 :])


@given(cursors)
def test_every_cut_and_every_addition_counts(cursor: Cursor) -> None:
    token = encode(cursor, SCOPE, KEY)
    for length in range(len(token)):
        refused(token[:length])
        refused(token[length + 1 :])
    for more in ("A", "=", "==", "====", "\n", " ", token):
        refused(token + more)
        refused(more + token)


def test_other_spellings_of_the_same_bytes() -> None:
    # base64 has two more letters in its other alphabet, and decoders skip what they do not know.
    for number in range(200):
        token = encode(Cursor(number, number), SCOPE, KEY)
        for here, there in (("-", "+"), ("_", "/")):
            if here in token:
                refused(token.replace(here, there))
        refused(token[:10] + "!" + token[10:])


@pytest.mark.parametrize(
    "token", ["-1", "0", "AAAA", "A" * 44, "A" * 256, "A" * 257, "A" * 100_000, "é" * 44, "\0" * 44]
)
def test_inventions(token: str) -> None:
    refused(token)


SCOPES = {
    list_scope(7, 1, 1, 1, False),
    list_scope(8, 1, 1, 1, False),
    list_scope(7, 2, 1, 1, False),
    list_scope(7, 1, 2, 1, False),
    list_scope(7, 1, 1, 2, False),
    list_scope(7, 1, 1, 1, True),
    list_scope(2**63 - 1, 1, 1, 1, False),
    set_scope(b"intersect", b"ab"),
    set_scope(b"union", b"ab"),
    set_scope(b"intersect", b"ba"),
    set_scope(b"intersec", b"t\0ab"),
}


def test_each_scope_takes_only_its_own() -> None:
    assert len(SCOPES) == 11
    for scope in SCOPES:
        token = encode(Cursor(5, 6), scope, KEY)
        assert decode(token, scope, KEY) == Cursor(5, 6)
        refused(token, scope, OTHER_KEY)
        for other in SCOPES - {scope}:
            refused(token, other)


def test_microseconds_and_large_ids_stay_whole() -> None:
    cursor = Cursor(1_764_532_800_123_457, 2**53 + 1)
    assert decode(encode(cursor, SCOPE, KEY), SCOPE, KEY) == cursor
