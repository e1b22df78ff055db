"""The columns of a table that finds, as Spark has them."""

from holdfast.pipeline.finding import COLUMNS
from holdfast.pipeline.schema import to_spark

SCHEMA = to_spark(COLUMNS)
