"""Rows of protobuf messages, written as wire bytes from columns.

Building 1,000 Edge messages one by one in Python costs more than all the rest of a call. Here all rows, of all alike pages of a flush, are
written at once by numpy: a head that is the same in every row, then one field for each column. Every varint takes nine bytes, enough for
63 bits: a decoder takes up to ten (protobuf's encoding guide), so a short value may be padded with empty groups. That makes all rows
equally long, and spares the masks that were two thirds of the work, for about one byte in ten more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from graphd.edge import Direction, Key, Version
from graphd.storage.items import PageBlock
from graphd.v1 import graph_pb2 as pb
from router.reads import ListOf, Page
from router.values import Write, WriteOutcome

VARINT_BYTES: Final = 9
FIELD_BYTES: Final = 1 + VARINT_BYTES
_PARTED: Final = tuple(
    (np.uint64(mask), np.uint64(high), np.uint64(shift))
    for mask, high, shift in (
        (0x000000000FFFFFFF, 0x00FFFFFFF0000000, 4),
        (0x00003FFF00003FFF, 0x0FFFC0000FFFC000, 2),
        (0x007F007F007F007F, 0x3F803F803F803F80, 1),
    )
)
"""Of each part the lower half, which stays, the upper half, and how far that moves."""

_GOES_ON: Final = np.uint64(0x8080808080808080)
_LENGTH_DELIMITED: Final = 2

_EDGE: Final = {name: field.number << 3 for name, field in pb.Edge.DESCRIPTOR.fields_by_name.items()}
# Both list responses have the same fields with the same numbers, so one writer serves both (held to it by a test).
_LIST_EDGES: Final = pb.ListFollowersResponse.DESCRIPTOR.fields_by_name["edges"].number << 3 | _LENGTH_DELIMITED
_NEXT_TOKEN, _PREVIOUS_TOKEN = (
    pb.ListFollowersResponse.DESCRIPTOR.fields_by_name[name].number << 3 | _LENGTH_DELIMITED
    for name in ("next_page_token", "previous_page_token")
)
_RESULTS: Final = pb.BatchGetEdgesResponse.DESCRIPTOR.fields_by_name["results"].number << 3 | _LENGTH_DELIMITED
_RESULT: Final = {
    name: field.number << 3 for name, field in pb.BatchGetEdgesResponse.Result.DESCRIPTOR.fields_by_name.items()
}
_WRITTEN: Final = pb.BatchWriteResponse.DESCRIPTOR.fields_by_name["results"].number << 3 | _LENGTH_DELIMITED
_WRITE_RESULT: Final = {name: field.number << 3 for name, field in pb.WriteResult.DESCRIPTOR.fields_by_name.items()}
_NOT_FOUND: Final = bytes([_RESULTS, 0])

Column = tuple[int, npt.NDArray[np.int64]]
"""A field's tag byte, and its value in each row: 0 .. 2^63-1, shape (n,)."""


def rows(head: bytes, columns: Sequence[Column]) -> npt.NDArray[np.uint8]:
    """Wire bytes of n rows, shape (n, len(head) + len(columns) * FIELD_BYTES)."""
    values = np.stack([column for _, column in columns], axis=-1).view(np.uint64)
    n, k = values.shape
    row = np.frombuffer(head + b"".join(bytes([tag]) + bytes(VARINT_BYTES) for tag, _ in columns), dtype=np.uint8)
    cells = np.empty((n, len(row)), dtype=np.uint8)
    cells[:] = row
    # The varints' places within the rows: one field is FIELD_BYTES after the other, each behind its tag.
    places = (len(row), FIELD_BYTES)
    np.ndarray((n, k), np.uint8, cells, len(head) + VARINT_BYTES, places)[...] = values >> np.uint64(56)
    np.ndarray((n, k), "<u8", cells, len(head) + 1, places)[...] = _spread(values)
    return cells


def _spread(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The low 56 bits of each value as the eight bytes of a varint that goes on: seven bits in each, parted in the middle three times."""
    for mask, high, shift in _PARTED:
        upper = values & high
        upper <<= shift
        values = values & mask
        values |= upper
    values |= _GOES_ON
    return values


def _kind(name: str) -> bytes:
    """The kind of an Edge; 32 characters at most."""
    return bytes([_EDGE["kind"] | _LENGTH_DELIMITED, len(name)]) + name.encode()


def list_edges(wanted: ListOf, page: Page) -> bytes:
    """A list response with edges: (tag, length, Edge) for each row, then the tokens."""
    tokens = _token(_NEXT_TOKEN, page.next_token) + _token(_PREVIOUS_TOKEN, page.previous_token)
    if page.size == 0:
        return tokens
    block = page.rows.block
    if block.encoded is None:
        block.encoded = _edges_of(wanted, block)
    edges = block.encoded[page.rows.at, : page.size]
    return (edges[::-1] if page.backward else edges).tobytes() + tokens


def _edges_of(wanted: ListOf, block: PageBlock) -> npt.NDArray[np.uint8]:
    """All pages of a block, one of which is of `wanted`; shape (pages, n, bytes)."""
    pages, _, n = block.columns.shape
    neighbor, account = (
        ("destination_id", "source_id") if wanted.direction is Direction.FORWARD else ("source_id", "destination_id")
    )
    same = _kind(wanted.kind.name) + bytes([_EDGE["state"], wanted.state])
    neighbors, sinces, positions = block.columns.transpose(1, 0, 2).reshape(3, -1)
    columns = [
        (_EDGE[account], np.repeat(np.array(block.owner_ids, dtype=np.int64), n)),
        (_EDGE[neighbor], neighbors),
        (_EDGE["since"], sinces),
        (_EDGE["position"], positions),
    ]
    # At most 34 + 2 + 40 bytes, so the length of an Edge is one byte.
    head = bytes([_LIST_EDGES, len(same) + len(columns) * FIELD_BYTES]) + same
    cells = rows(head, columns)
    return cells.reshape(pages, n, cells.shape[1])


def _token(tag: int, token: str) -> bytes:
    """A page token's field; nothing for none. Its length is one byte."""
    return bytes((tag, len(token))) + token.encode() if token else b""


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


def write_results(written: Sequence[tuple[Write, WriteOutcome]], kind: str) -> npt.NDArray[np.uint8]:
    """`results` of a BatchWriteResponse, shape (n, bytes): writes of one kind, each with a version and no reason."""
    same = _kind(kind) + bytes([_EDGE["state"], 0])
    flags = ("outcome", "duplicate", "reverse_pending")
    small = b"".join(bytes([_WRITE_RESULT[name], 0]) for name in flags)
    # At most 34 + 2 + 40 bytes, and 8 around them: both lengths are one byte.
    edge_length = len(same) + 4 * FIELD_BYTES
    head = bytes([_WRITTEN, len(small) + 2 + edge_length]) + small
    head += bytes([_WRITE_RESULT["edge"] | _LENGTH_DELIMITED, edge_length]) + same
    sources, destinations, positions, states, sinces, *flagged = np.array(
        [
            (
                write.source_id,
                write.destination_id,
                *(told.version or ()),
                told.outcome,
                told.duplicate,
                told.reverse_pending,
            )
            for write, told in written
        ],
        dtype=np.int64,
    ).T
    columns = [
        (_EDGE["source_id"], sources),
        (_EDGE["destination_id"], destinations),
        (_EDGE["position"], positions),
        (_EDGE["since"], sinces),
    ]
    cells = rows(head, columns)
    cells[:, len(head) - 1] = states
    for at, values in enumerate(flagged):
        cells[:, 3 + 2 * at] = values
    return cells
