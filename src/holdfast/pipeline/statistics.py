"""What a Delta log says about a file: how many rows it has, and the least and greatest value of its columns.

Taken from the file's own footer. Without it readers count no rows and skip no file.
"""

import json
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # the package ships no types

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_BOUNDED = ("date", "long", "string", "timestamp")  # Delta has no bounds for bytes and flags


def rows_of(path: Path) -> int:
    """How many rows a Parquet file has."""
    return int(pq.read_metadata(path).num_rows)


def statistics(path: Path, schema: "StructType") -> str:
    """The statistics of a file, as JSON."""
    footer = pq.read_metadata(path)
    bounded = {field.name for field in schema.fields if field.dataType.typeName() in _BOUNDED}
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(len(footer.schema)):
        name = footer.schema.column(index).path
        found = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
        if name not in bounded or any(one is None or one.null_count is None for one in found):
            continue
        nulls[name] = sum(one.null_count for one in found)
        bounds = [one for one in found if one.has_min_max]
        if bounds and all(one.has_min_max or one.num_values == 0 for one in found):
            with suppress(OverflowError):  # a damaged time, which cannot be spelled: the column then has no bounds
                first, last = _text(min(one.min for one in bounds)), _text(max(one.max for one in bounds))
                least[name], greatest[name] = first, last
    told = {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return json.dumps(told, ensure_ascii=False)


def _text(value: Any) -> Any:
    """A value as Delta's statistics spell it."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value
