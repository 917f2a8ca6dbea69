"""Rows of protobuf messages, written as wire bytes from columns.

Building 1,000 Edge messages one by one in Python costs more than all the rest of a call. Here all rows of a page are written at once by
numpy: a head that is the same in every row, then one field for each column. Every varint takes nine bytes, enough for 63 bits: a decoder
takes up to ten (protobuf's encoding guide), so a short value may be padded with empty groups. That makes all rows equally long, and spares
the masks that were two thirds of the work, for about one byte in ten more. 20 us for a page of 100 against 120 us message by message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from graphd.edge import Direction, Key, Version
from graphd.v1 import graph_pb2 as pb
from router.reads import ListOf, Page

VARINT_BYTES: Final = 9
FIELD_BYTES: Final = 1 + VARINT_BYTES
_SHIFTS: Final = (7 * np.arange(VARINT_BYTES)).astype(np.uint64)
_LENGTH_DELIMITED: Final = 2

_EDGE: Final = {name: field.number << 3 for name, field in pb.Edge.DESCRIPTOR.fields_by_name.items()}
# Both list responses have the same fields with the same numbers, so one writer serves both (held to it by a test).
_LIST_EDGES: Final = pb.ListFollowersResponse.DESCRIPTOR.fields_by_name["edges"].number << 3 | _LENGTH_DELIMITED
_RESULTS: Final = pb.BatchGetEdgesResponse.DESCRIPTOR.fields_by_name["results"].number << 3 | _LENGTH_DELIMITED
_RESULT: Final = {
    name: field.number << 3 for name, field in pb.BatchGetEdgesResponse.Result.DESCRIPTOR.fields_by_name.items()
}
_NOT_FOUND: Final = bytes([_RESULTS, 0])

Column = tuple[int, npt.NDArray[np.int64]]
"""A field's tag byte, and its value in each row: 0 .. 2^63-1, shape (n,)."""


def rows(head: bytes, columns: Sequence[Column]) -> npt.NDArray[np.uint8]:
    """Wire bytes of n rows, shape (n, len(head) + len(columns) * FIELD_BYTES)."""
    values = np.stack([column for _, column in columns], axis=1)
    n, k = values.shape
    row = head + b"".join(bytes([tag]) + bytes(VARINT_BYTES) for tag, _ in columns)
    cells = np.empty((n, len(row)), dtype=np.uint8)
    cells[:] = np.frombuffer(row, dtype=np.uint8)
    # The varints' places within the rows: one field is FIELD_BYTES after the other, each behind its tag.
    varints = np.ndarray((n, k, VARINT_BYTES), np.uint8, cells, len(head) + 1, (len(row), FIELD_BYTES, 1))
    np.right_shift(values.view(np.uint64)[:, :, None], _SHIFTS, out=varints, casting="unsafe")
    varints[:, :, :-1] |= 0x80
    return cells


def _varint(value: int) -> bytes:
    """One padded varint."""
    groups = [value >> shift & 0x7F | 0x80 for shift in range(0, 7 * VARINT_BYTES, 7)]
    groups[-1] &= 0x7F
    return bytes(groups)


def _kind(name: str) -> bytes:
    """The kind of an Edge; 32 characters at most."""
    return bytes([_EDGE["kind"] | _LENGTH_DELIMITED, len(name)]) + name.encode()


def list_edges(wanted: ListOf, page: Page) -> bytes:
    """`edges` of a list response: (tag, length, Edge) for each row."""
    if page.columns.shape[1] == 0:
        return b""
    neighbor, account = (
        ("destination_id", "source_id") if wanted.direction is Direction.FORWARD else ("source_id", "destination_id")
    )
    same = bytes([_EDGE[account]]) + _varint(wanted.account_id) + _kind(wanted.kind.name)
    same += bytes([_EDGE["state"], wanted.state])
    neighbors, sinces, positions = page.columns
    columns = [(_EDGE[neighbor], neighbors), (_EDGE["since"], sinces), (_EDGE["position"], positions)]
    # At most 10 + 34 + 2 + 30 bytes, so the length of an Edge is one byte.
    head = bytes([_LIST_EDGES, len(same) + len(columns) * FIELD_BYTES]) + same
    return rows(head, columns).tobytes()


def edge_results(keys: Sequence[Key], versions: Sequence[Version | None], kind: str) -> bytes:
    """A BatchGetEdgesResponse whose edges are all of one kind."""
    found = [(key[1], key[2], *version) for key, version in zip(keys, versions, strict=True) if version is not None]
    if not found:
        return _NOT_FOUND * len(keys)
    sources, destinations, positions, states, sinces = np.array(found, dtype=np.int64).T
    columns = [
        (_EDGE["source_id"], sources),
        (_EDGE["destination_id"], destinations),
        (_EDGE["state"], states),
        (_EDGE["position"], positions),
        (_EDGE["since"], sinces),
    ]
    same = _kind(kind)
    length = len(same) + len(columns) * FIELD_BYTES
    # At most 34 + 50 bytes, and 4 around them: both lengths are one byte.
    head = bytes([_RESULTS, length + 4, _RESULT["found"], 1, _RESULT["edge"] | _LENGTH_DELIMITED, length]) + same
    cells = rows(head, columns)
    if len(found) == len(keys):
        return cells.tobytes()
    written = iter(cells)
    return b"".join(next(written).tobytes() if version is not None else _NOT_FOUND for version in versions)
