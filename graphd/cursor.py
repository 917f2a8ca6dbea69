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
from typing import Final, NamedTuple

from graphd.errors import InvalidArgumentError
from graphd.limits import MAX_PAGE_TOKEN_CHARS

_VERSION: Final = 1
_BACKWARD: Final = 1
_BODY: Final = struct.Struct(">BBqq")
_MAC_BYTES: Final = 15


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
    body = _BODY.pack(_VERSION, _BACKWARD if cursor.backward else 0, cursor.since, cursor.id)
    return base64.urlsafe_b64encode(body + _mac(body, scope, key)).decode()


def decode(token: str, scope: bytes, key: bytes) -> Cursor:
    """The cursor in a token. Raises InvalidArgumentError when it was not issued for this scope with this key."""
    refusal = InvalidArgumentError("page_token", "must be a token that this call returned for the same list and order")
    if len(token) > MAX_PAGE_TOKEN_CHARS or not token.isascii():
        raise refusal
    try:
        raw = base64.b64decode(token, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise refusal from None
    body, mac = raw[: _BODY.size], raw[_BODY.size :]
    canonical = base64.urlsafe_b64encode(raw).decode() == token
    whole = canonical and len(raw) == _BODY.size + _MAC_BYTES
    if not whole or not hmac.compare_digest(mac, _mac(body, scope, key)):
        raise refusal
    version, flags, since, id_ = _BODY.unpack(body)
    if version != _VERSION:
        raise refusal
    return Cursor(since, id_, bool(flags & _BACKWARD))


def list_scope(account_id: int, direction: int, kind: int, state: int, ascending: bool) -> bytes:
    """What a list's token is bound to."""
    return struct.pack(">cqBhB?", b"L", account_id, direction, kind, state, ascending)


def set_scope(operation: bytes, operands: bytes) -> bytes:
    """What a set operation's token is bound to: a digest of its operands in order."""
    return b"S" + hashlib.blake2b(operation + b"\0" + operands, digest_size=32).digest()
