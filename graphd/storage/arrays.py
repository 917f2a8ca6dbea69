"""Columns of integers to and from Postgres as arrays, without touching each element in Python.

psycopg adapts a list element by element; a batch of 500 operations has thousands. A one-dimensional array on the wire is a 20-byte
header and then (length, value) pairs of fixed width, which numpy writes and reads in one go (format: src/backend/utils/adt/arrayfuncs.c,
array_recv and array_send). The element type is stated, so an id never becomes an int2 because the first one was small.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt
from psycopg import AsyncConnection, Connection
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Dumper, Loader
from psycopg.pq import Format
from psycopg.types.string import ByteaBinaryLoader

_HEADER: Final = struct.Struct(">iiIii")
_EMPTY_HEADER: Final = struct.Struct(">iiI")

INT2_OID: Final = 21
INT4_OID: Final = 23
INT8_OID: Final = 20
TEXT_OID: Final = 25
UUID_OID: Final = 2950
_ARRAY_OIDS: Final = {INT2_OID: 1005, INT4_OID: 1007, INT8_OID: 1016}
_PAIRS: Final = {
    INT2_OID: np.dtype([("length", ">i4"), ("value", ">i2")]),
    INT4_OID: np.dtype([("length", ">i4"), ("value", ">i4")]),
    INT8_OID: np.dtype([("length", ">i4"), ("value", ">i8")]),
}


@dataclass(frozen=True, slots=True)
class Int2s:
    """A smallint[] parameter."""

    values: Sequence[int] | npt.NDArray[Any]

    @property
    def packed(self) -> bytes:
        """As Postgres receives it in binary."""
        return pack(self.values, INT2_OID)


@dataclass(frozen=True, slots=True)
class Int4s:
    """An integer[] parameter."""

    values: Sequence[int] | npt.NDArray[Any]

    @property
    def packed(self) -> bytes:
        """As Postgres receives it in binary."""
        return pack(self.values, INT4_OID)


@dataclass(frozen=True, slots=True)
class Int8s:
    """A bigint[] parameter."""

    values: Sequence[int] | npt.NDArray[Any]

    @property
    def packed(self) -> bytes:
        """As Postgres receives it in binary."""
        return pack(self.values, INT8_OID)


@dataclass(frozen=True, slots=True)
class Texts:
    """A text[] parameter, for sessions only."""

    values: Sequence[str]

    @property
    def packed(self) -> bytes:
        """As Postgres receives it in binary."""
        return _pack_bytes([value.encode() for value in self.values], TEXT_OID)


@dataclass(frozen=True, slots=True)
class Uuids:
    """A uuid[] parameter, for sessions only."""

    values: Sequence[UUID]

    @property
    def packed(self) -> bytes:
        """As Postgres receives it in binary."""
        return _pack_bytes([value.bytes for value in self.values], UUID_OID)


PACKED: Final = (Int2s, Int4s, Int8s, Texts, Uuids)
"""Array parameters, which know their own wire form."""


def _pack_bytes(values: Sequence[bytes], element_oid: int) -> bytes:
    n = len(values)
    if n == 0:
        return _EMPTY_HEADER.pack(0, 0, element_oid)
    parts = [_HEADER.pack(1, 0, element_oid, n, 1)]
    for value in values:
        parts += (len(value).to_bytes(4, "big"), value)
    return b"".join(parts)


def pack(values: Sequence[int] | npt.NDArray[Any], element_oid: int) -> bytes:
    """A one-dimensional array without nulls, as Postgres receives it in binary."""
    n = len(values)
    if n == 0:
        return _EMPTY_HEADER.pack(0, 0, element_oid)
    dtype = _PAIRS[element_oid]
    pairs = np.empty(n, dtype=dtype)
    pairs["length"] = dtype["value"].itemsize
    pairs["value"] = values
    return _HEADER.pack(1, 0, element_oid, n, 1) + pairs.tobytes()


def unpack(data: Buffer) -> npt.NDArray[np.int64]:
    """A bigint[] without nulls, as Postgres sends it in binary; shape (n,)."""
    view = memoryview(data)
    dimensions, nulls, _ = _EMPTY_HEADER.unpack_from(view)
    if dimensions == 0:
        return np.empty(0, dtype=np.int64)
    assert dimensions == 1, "one dimension"
    assert nulls == 0, "no nulls"
    return np.frombuffer(view, dtype=_PAIRS[INT8_OID], offset=_HEADER.size)["value"].astype(np.int64)


def unpack_alike(arrays: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Several bigint[] of one and the same length, at least 1, without nulls, as Postgres sends them in binary; shape (arrays, n)."""
    size = len(arrays[0])
    n = (size - _HEADER.size) // _PAIRS[INT8_OID].itemsize
    dimensions, nulls, _, length, _ = _HEADER.unpack_from(arrays[0])
    assert (dimensions, nulls, length) == (1, 0, n), "one dimension, no nulls"
    values = np.ndarray((len(arrays), n), ">i8", b"".join(arrays), _HEADER.size + 4, (size, _PAIRS[INT8_OID].itemsize))
    return values.astype(np.int64)


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Int2s | Int4s | Int8s) -> Buffer:
        return obj.packed


class _Int2sDumper(_ArrayDumper):
    oid = _ARRAY_OIDS[INT2_OID]


class _Int4sDumper(_ArrayDumper):
    oid = _ARRAY_OIDS[INT4_OID]


class _Int8sDumper(_ArrayDumper):
    oid = _ARRAY_OIDS[INT8_OID]


class _Int8ArrayLoader(Loader):
    format = Format.BINARY

    def load(self, data: Buffer) -> npt.NDArray[np.int64]:
        return unpack(data)


def register(context: AdaptContext | Connection[Any] | AsyncConnection[Any]) -> None:
    """Teach a connection the wrappers above, and to answer bigint[] as numpy arrays."""
    context.adapters.register_dumper(Int2s, _Int2sDumper)
    context.adapters.register_dumper(Int4s, _Int4sDumper)
    context.adapters.register_dumper(Int8s, _Int8sDumper)
    context.adapters.register_loader(_ARRAY_OIDS[INT8_OID], _Int8ArrayLoader)


def register_raw(context: AdaptContext | Connection[Any] | AsyncConnection[Any]) -> None:
    """Teach a connection to answer bigint[] as it came, as bytes for `unpack_alike`."""
    context.adapters.register_loader(_ARRAY_OIDS[INT8_OID], ByteaBinaryLoader)
