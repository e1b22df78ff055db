"""The sequences that were used, as runs without holes, by which gaps and repetitions are found."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import StructType

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables.sequence import GROUP, RUN

SCHEMA = StructType(RUN)


def runs_do_not_touch(sequence_run: DataFrame) -> DataFrame:
    """Between two runs of an epoch there is a hole."""
    order = Window.partitionBy(*GROUP).orderBy("first")
    joined = sequence_run.withColumn("previous", F.lag("last").over(order))
    return joined.where((F.col("first") <= F.col("previous") + 1) | (F.col("last") < F.col("first"))).select(
        *GROUP, "first"
    )


@table(
    key=("origin", "mesh", "sender", "epoch", "claim", "first"),
    schema=SCHEMA,
    writing=Writing.REPLACE,
    sort_by=("origin", "mesh", "sender", "epoch", "first"),
    invariant=runs_do_not_touch,
)
def sequence_run(new_sequence: DataFrame) -> DataFrame:
    """One row per run of sequences, in an epoch of a sender, that its relay accepted or its device was told are accepted."""
    return new_sequence.where(F.col("what") == "run").select(*SCHEMA.fieldNames())
