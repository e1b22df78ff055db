"""A digest of a table's rows that does not depend on their order, their files or their compression.

A row becomes bytes (its values in the order of the schema, each after its length, NULL as a mark), the bytes become two SHA-512 hashes,
and those 1,024 bits become 32 numbers; the digest has the sum of each number over all rows, modulo 2**32. So digests of parts add up to
the digest of the whole, and an append-only table's is kept up to date by adding. It finds damage and every change that was not made to fit it.
Whoever may choose many rows can compute other rows with the same sums (they are linear): against that stand the digests of whole files
in their names (`content`), which a certificate covers, too.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # likewise

from holdfast.pipeline import tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LANES = 32
_LANE_BYTES = 4
_BYTES = LANES * _LANE_BYTES
_ABSENT = b"~"
_FIRST, _SECOND = b"\x00", b"\x01"

ROWS_AT_ONCE = 20_000
THREADS = 2
"""Half of the work is Arrow's, which lets other threads run; the hashes are Python's, which computes one at a time."""


@dataclass(frozen=True)
class Digest:
    """The digest of some rows: how many there are, and the sums over them."""

    rows: int = 0
    lanes: tuple[int, ...] = (0,) * LANES

    def __add__(self, other: "Digest") -> "Digest":
        lanes = tuple((a + b) % 2 ** (8 * _LANE_BYTES) for a, b in zip(self.lanes, other.lanes, strict=True))
        return Digest(self.rows + other.rows, lanes)

    def text(self) -> str:
        return b"".join(lane.to_bytes(_LANE_BYTES, "big") for lane in self.lanes).hex()

    @classmethod
    def of_text(cls, rows: int, text: str) -> "Digest":
        raw = bytes.fromhex(text)
        lanes = (int.from_bytes(raw[at : at + _LANE_BYTES], "big") for at in range(0, _BYTES, _LANE_BYTES))
        return cls(rows, tuple(lanes))


def of_files(paths: Sequence[Path], root: Path, schema: Any) -> Digest:
    """The digest of the rows in a table's files; `schema` is Arrow's and has the partition column."""
    import pyarrow.dataset as ds  # type: ignore[import-untyped]  # likewise; slow to load, and few have a use for it

    if not paths:
        return Digest()
    partitioned = ds.partitioning(flavor="hive", schema=_partition_schema(paths, root, schema))
    found = ds.dataset(
        [str(path) for path in paths],
        schema=schema,
        format="parquet",
        partitioning=partitioned,
        partition_base_dir=str(root),
    )
    batches = found.to_batches(batch_size=ROWS_AT_ONCE, batch_readahead=2, fragment_readahead=1)
    return sum(_of_each(batch.select(schema.names) for batch in batches), Digest())


def of_files_by_tasks(spark: "SparkSession", paths: Sequence[Path], root: Path, schema: Any) -> Digest:
    """The digest of the rows in a table's files, computed by Spark's tasks."""
    found = tasks.done(spark, paths, partial(_told, root=root, schema=schema))
    return sum((Digest.of_text(one["rows"], one["digest"]) for one in found), Digest())


def _told(path: Path, root: Path, schema: Any) -> dict[str, Any]:
    found = of_files([path], root, schema)
    return {"rows": found.rows, "digest": found.text()}


def _of_each(batches: Iterable[Any]) -> Iterator[Digest]:
    """The digests of record batches; only a few batches are in memory at a time."""
    under_way: deque[Future[Digest]] = deque()
    with ThreadPoolExecutor(THREADS) as threads:
        for batch in batches:
            under_way.append(threads.submit(of_rows, batch))
            if len(under_way) > THREADS:
                yield under_way.popleft().result()
        for one in under_way:
            yield one.result()


def _partition_schema(paths: Sequence[Path], root: Path, schema: Any) -> Any:
    names = [part.split("=", 1)[0] for part in paths[0].relative_to(root).parts[:-1]]
    return pa.schema([schema.field(name) for name in names])


def of_table(rows: Any) -> Digest:
    """The digest of an Arrow table."""
    return sum(map(of_rows, rows.to_batches(max_chunksize=ROWS_AT_ONCE)), Digest())


def of_rows(batch: Any) -> Digest:
    """The digest of a record batch."""
    rows, sha512 = row_bytes(batch).to_pylist(), hashlib.sha512
    raw = b"".join([sha512(mark + row).digest() for row in rows for mark in (_FIRST, _SECOND)])
    numbers = np.frombuffer(raw, dtype=">u4").reshape(-1, LANES)
    sums = numbers.sum(axis=0, dtype=np.uint64) % 2 ** (8 * _LANE_BYTES)
    return Digest(batch.num_rows, tuple(int(one) for one in sums))


def row_bytes(batch: Any) -> Any:
    """Each row as bytes; rows with different values have different bytes."""
    return _joined([_value_bytes(column) for column in batch.columns])


def _joined(columns: Sequence[Any]) -> Any:
    return pc.binary_join_element_wise(*columns, pa.scalar(b"", pa.large_binary()))


def _value_bytes(column: Any) -> Any:
    """Each value after its length; NULL is a mark of its own."""
    raw = _plain_bytes(column)
    lengths = pc.cast(pc.cast(pc.binary_length(raw), pa.string()), pa.large_binary())
    colon = pa.scalar(b":", pa.large_binary())
    framed = pc.binary_join_element_wise(lengths, raw, colon)
    return pc.fill_null(framed, pa.scalar(_ABSENT, pa.large_binary()))


def _plain_bytes(column: Any) -> Any:
    kind = column.type
    if pa.types.is_timestamp(kind):
        return _plain_bytes(pc.cast(pc.cast(column, pa.timestamp("us", kind.tz)), pa.int64()))
    if pa.types.is_date(kind):
        return _plain_bytes(pc.cast(column, pa.date32()).cast(pa.int32()))
    if pa.types.is_struct(kind):
        return _with_absent(_joined([_value_bytes(part) for part in column.flatten()]), column)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list_bytes(column)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pc.cast(column, pa.large_binary())
    return pc.cast(pc.cast(column, pa.large_string()), pa.large_binary())


def _list_bytes(column: Any) -> Any:
    """The items of each list, one after the other."""
    items = _value_bytes(column.flatten())
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False))]), pa.int64())
    lists = pa.LargeListArray.from_arrays(offsets, items)
    return _with_absent(pc.binary_join(lists, pa.scalar(b"", pa.large_binary())), column)


def _with_absent(raw: Any, column: Any) -> Any:
    return pc.if_else(pc.is_valid(column), raw, pa.scalar(None, pa.large_binary()))
