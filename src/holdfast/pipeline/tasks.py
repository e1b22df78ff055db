"""Python functions that Spark runs as tasks: they read pages and write files themselves, so that no row passes through Java."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Task = TypeVar("Task")


def done(spark: "SparkSession", tasks: Sequence[Task], do: Callable[[Task], Any]) -> list[Any]:
    """The results of the tasks, which travel as JSON. If Spark starts a task several times, one result counts."""
    numbers = spark.range(0, len(tasks), 1, len(tasks))
    rows = numbers.mapInArrow(partial(_by_number, tasks=tasks, do=do), "told string").collect()
    return [json.loads(row.told) for row in rows]


def _by_number(batches: Iterable[Any], tasks: Sequence[Task], do: Callable[[Task], Any]) -> Iterator[Any]:
    """The function that Spark calls: numbers of tasks come in, their results go out."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield pa.RecordBatch.from_pydict({"told": [json.dumps(do(tasks[number]))]})
