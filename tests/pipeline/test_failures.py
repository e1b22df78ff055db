"""What a person is told when Spark fails: the line that helps, not the first one."""

from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.errors.exceptions.captured import convert_exception
from pyspark.sql import SparkSession

from holdfast.pipeline import failures


def test_a_spark_without_memory_is_told_with_what_to_do(spark: SparkSession) -> None:
    """As Java hands it over: what it was doing, caused by what it lacks."""
    java: Any = spark.sparkContext._jvm.java.lang  # type: ignore[union-attr]  # there is one
    lacking = java.OutOfMemoryError("Java heap space")
    error = convert_exception(java.RuntimeException("Encountered error while reading file x", lacking))
    assert "OutOfMemory" not in str(error).partition("\n")[0]
    found = failures.told(error)
    assert found is not None
    is_away, kind, message = found
    assert (is_away, kind) == (False, "memory")
    assert "--memory-mb" in message


def test_any_other_failure_of_sparks_is_its_first_line(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException) as refused:
        spark.sql("SELECT nothing FROM nowhere").collect()
    found = failures.told(refused.value)
    assert found is not None
    assert found[1] == "spark"
    assert "nowhere" in found[2]
    assert "\n" not in found[2]
