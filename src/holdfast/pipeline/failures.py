"""How a failure of the pipeline is told to a person: in one line that says what to do, not as a stack trace of Java's."""

import re
import sys

import duckdb
from deltalake.exceptions import DeltaError

from holdfast.pipeline import pages
from holdfast.pipeline.session import MEMORY_MB

_SOURCE_ERROR = re.compile(
    r"(?:holdfast\.pipeline\.)?pages\.(\w+): (.+)|\b("
    + "|".join(
        kind.__name__
        for kind in (
            pages.AddressWrong,
            pages.TokenMissing,
            pages.TokenUnfit,
            pages.Unreachable,
            pages.NotAllowed,
            pages.OtherLog,
            pages.LogShorter,
            pages.RangePruned,
            pages.Gap,
            pages.Refused,
            pages.SourceError,
        )
    )
    + r"): (.+)"
)

_UNANSWERABLE = (duckdb.CatalogException, duckdb.ParserException, duckdb.BinderException, duckdb.ConversionException)
"""Errors of DuckDB that are mistakes in a user's SQL, whatever the lake."""

_OUT_OF_MEMORY = "java.lang.OutOfMemoryError"
_MORE_MEMORY = (
    f"Spark has run out of memory. Give it more with --memory-mb (the default is {MEMORY_MB}) and run again: what was "
    "finished is kept, and the run goes on from there."
)


def told(error: Exception) -> tuple[bool, str, str] | None:
    """Whether a source is unreachable, the kind of the failure, and its message; None for an error that no library or source raised."""
    if isinstance(error, pages.SourceError):
        return isinstance(error, pages.Unreachable), type(error).__name__, str(error)
    if _is_sparks(error):
        return _from_spark(error)
    if isinstance(error, _UNANSWERABLE):  # all lines: they show the place in the SQL, and similar names
        return False, "not_found" if isinstance(error, duckdb.CatalogException) else "query", str(error)
    if isinstance(error, duckdb.Error):
        return False, "query_failed", str(error).partition("\n")[0]
    if isinstance(error, DeltaError):
        return False, "lake", str(error).partition("\n")[0]
    return None


def _is_sparks(error: Exception) -> bool:
    """Whether an error is one of Spark's; Spark is not loaded to find out."""
    errors = sys.modules.get("pyspark.errors")
    return errors is not None and isinstance(error, errors.PySparkException)


def _from_spark(error: Exception) -> tuple[bool, str, str]:
    """The failure in an error of Spark's. An error of our data source crosses Spark as text: it is the line with the name of its class."""
    for line in str(error).splitlines():
        found = _SOURCE_ERROR.search(line)
        if found:
            kind = found[1] or found[3]
            return kind == pages.Unreachable.__name__, kind, (found[2] or found[4]).strip()
    # The first line says what Spark was doing when it ran out of memory, which helps nobody.
    if _OUT_OF_MEMORY in f"{error}{getattr(error, '_stackTrace', '')}":
        return False, "memory", _MORE_MEMORY
    return False, "spark", str(error).partition("\n")[0]
