"""The columns of a findings table, as a schema of Spark's."""

from holdfast.pipeline.finding import COLUMNS
from holdfast.pipeline.schema import to_spark

SCHEMA = to_spark(COLUMNS)
