"""The tables of a lake without their functions, in a file that tools/pipeline_tables.py writes: who only reads a lake need not load Spark."""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast

from holdfast.pipeline import schema
from holdfast.pipeline.table import Table, Writing, load, load_search

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FILE = "catalog.json"
RELAYS, OWN = "relays", "own"


def shown(lake: str) -> dict[str, Table]:
    """The tables of a relay's lake or of an owner's, without the functions that compute them."""
    found: list[Mapping[str, Any]] = json.loads(files(__package__).joinpath(FILE).read_text())[lake]
    return {one["name"]: _table(one) for one in found}


def _table(one: Mapping[str, Any]) -> Table:
    return Table(
        name=one["name"],
        meaning=one["meaning"],
        key=tuple(one["key"]),
        schema=cast("StructType", schema.read(one["schema"])),  # it has the same methods
        writing=Writing(one["writing"]),
        function=None,
        partition_by=one["partition_by"],
        finds=one["finds"],
    )


def written() -> str:
    """The text of the file, made from the tables' declarations."""
    every = {RELAYS: load(), OWN: load_search()}
    return (
        json.dumps({lake: [_written(one) for one in tables.values()] for lake, tables in every.items()}, indent=1)
        + "\n"
    )


def _written(one: Table) -> dict[str, Any]:
    return {
        "name": one.name,
        "meaning": one.meaning,
        "key": one.key,
        "schema": schema.of_spark(one.schema).jsonValue(),
        "writing": one.writing,
        "partition_by": one.partition_by,
        "finds": one.finds,
    }
