"""Checks whether entries hash to their chains, one record batch after another.

Entries lie in the order of their positions, so nearly every one can be checked against the one before it in the same record batch. Left
to be compared across batches are only the first and the last entry of each part without gaps.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # likewise

from holdfast.pipeline import times
from holdfast.pipeline.tables.history import SCHEMA as HISTORY

COLUMNS = tuple(name for name in HISTORY.fieldNames() if name != "day")
"""The columns of an entry that are read."""

_LOG = ("origin", "log_id")
_NAMES = ("kind", "mesh", "message_id", "client_message_id", "sender", "epoch")
_PLACE = ("seq", "at", "chain")
_ABSENT = -1  # instead of a length
_COMPARED = {"seq": _ABSENT, "at": times.ABSENT_US}
"""What is compared from entry to entry, and what counts where a damaged one has no value."""
_INTEGER_BYTES = 8
_BYTES = pa.large_binary()


def parts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For each record batch of entries the rows of `link`: its parts without gaps, and the wrong entries inside of them."""
    for batch in batches:
        if batch.num_rows:
            yield _parts(batch)


def _parts(batch: pa.RecordBatch) -> pa.RecordBatch:
    seq, micros = (_numbers(pc.cast(batch.column(name), pa.int64()), absent) for name, absent in _COMPARED.items())
    at = np.clip(micros, times.MIN_US, times.MAX_US)  # where batches end, only such times can be kept to compare with
    raw, chains = entry_bytes(batch), pc.fill_null(batch.column("chain"), b"").to_pylist()
    begins = np.ones(batch.num_rows, dtype=bool)
    begins[1:] = ~(_as_before(batch.column("origin")) & _as_before(batch.column("log_id")) & (seq[1:] == seq[:-1] + 1))
    is_back = ~begins
    is_back[1:] &= at[1:] < at[:-1]
    linked, sha256 = zip([b"", *chains[:-1]], raw.to_pylist(), chains, strict=True), hashlib.sha256
    is_other = ~begins & np.array([sha256(before + own).digest() != chain for before, own, chain in linked])
    wrong = np.flatnonzero(is_back | is_other)
    first = np.flatnonzero(begins)
    last = np.append(first[1:], batch.num_rows) - 1
    told = np.concatenate([first, wrong])
    rows = batch.take(pa.array(told))
    ends = batch.take(pa.array(np.concatenate([last, np.zeros_like(wrong)])))
    is_part = pa.array(np.arange(len(told)) < len(first))
    columns = [
        *(rows.column(name) for name in (*_LOG, *_PLACE)),
        _where(is_part, raw.take(pa.array(told)).cast(pa.binary())),
        *(_where(is_part, ends.column(name)) for name in _PLACE),
        pa.array(is_back[told]),
        pa.array(is_other[told]),
    ]
    names = [*_LOG, *_PLACE, "bytes", *(f"last_{name}" for name in _PLACE), "is_back", "is_other"]
    return pa.RecordBatch.from_arrays(columns, names=names)


def _where(is_so: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(is_so, values, pa.scalar(None, values.type))


def _numbers(values: pa.Array, absent: int) -> Any:
    """The numbers as an array of NumPy's."""
    return pc.fill_null(values, absent).to_numpy(zero_copy_only=False)


def _as_before(column: pa.Array) -> Any:
    """For every value but the first, whether it equals the one before."""
    same = pc.equal(column.slice(1), column.slice(0, len(column) - 1))
    return pc.fill_null(same, False).to_numpy(zero_copy_only=False)


def entry_bytes(batch: pa.RecordBatch) -> pa.Array:
    """The bytes of each entry that its chain covers: those that `protocol.history.encode` makes."""
    column = dict(zip(batch.schema.names, batch.columns, strict=True))
    return _joined(
        *_integer(column["seq"]),
        *_integer(pc.cast(column["at"], pa.int64())),
        *(part for name in _NAMES for part in _field(column[name])),
        *_integer(column["sequence"]),
        *_field(column["recipient"]),
        *_list(column["recipients"]),
        *_list(column["mentions"]),
        *(part for name in ("destination_kind", "destination_ref", "event_id") for part in _field(column[name])),
        *_integer(column["size"]),
        *_flag(column["was_stored"]),
        *_field(column["reason"]),
        *_field(column["detail"]),
    )


def _joined(*parts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", _BYTES))


def _field(values: pa.Array) -> list[pa.Array]:
    """Each text or byte string behind its length; -1 alone where it is absent."""
    raw = values.cast(_BYTES)
    lengths = pc.fill_null(pc.cast(pc.binary_length(raw), pa.int64()), _ABSENT)
    return [_big_endian(lengths, ">i4"), pc.fill_null(raw, b"")]


def _integer(values: pa.Array) -> list[pa.Array]:
    is_there = pc.is_valid(values)
    lengths = pc.if_else(is_there, pa.scalar(_INTEGER_BYTES, pa.int64()), pa.scalar(_ABSENT, pa.int64()))
    raw = _big_endian(pc.fill_null(values, 0), ">i8")
    return [_big_endian(lengths, ">i4"), pc.if_else(is_there, raw, pa.scalar(b"", _BYTES))]


def _flag(values: pa.Array) -> list[pa.Array]:
    return _field(pc.if_else(values, pa.scalar(b"\x01"), pa.scalar(b"\x00")))


def _list(values: pa.Array) -> list[pa.Array]:
    """The items of each list, one after another, behind their length in bytes."""
    items = values.flatten()
    parts = items.flatten() if pa.types.is_struct(items.type) else [items]
    joined = _joined(*(piece for part in parts for piece in _field(part)))
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())
    whole = pc.binary_join(pa.LargeListArray.from_arrays(offsets, joined), pa.scalar(b"", _BYTES))
    return _field(pc.if_else(pc.is_valid(values), whole, pa.scalar(None, _BYTES)))


def _big_endian(numbers: pa.Array, kind: str) -> pa.Array:
    made = numbers.to_numpy(zero_copy_only=False).astype(kind)
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(made.itemsize), len(made), [None, pa.py_buffer(made.tobytes())]
    )
    return fixed.cast(_BYTES)
