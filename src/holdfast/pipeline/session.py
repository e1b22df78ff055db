"""The Spark session: one per process, warm while the process lives, with bounded memory.

Everything that reads and writes agrees on UTC and on microseconds; what that takes is set here and nowhere else.
"""

import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.pipeline import java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local[*]"
MEMORY_MB = 2_048

_ALWAYS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "false",  # a number or a list that somebody damaged must not end the run, which is there to find it
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the default is a form that only Spark reads well
    "spark.sql.python.filterPushdown.enabled": "true",  # without it a source that takes filters fails every query
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.constraintPropagation.enabled": "false",  # on small batches it costs more time in planning than it saves
    "spark.sql.codegen.cache.maxEntries": "5000",  # a batch has hundreds of expressions; with the default of 100, each would be compiled again and again
    "spark.sql.maxPlanStringLength": "10000",
    # A lake names its files one by one: to look at each is quicker than the job that Spark starts for more than 32 files by default.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # five more calls into Java for every expression
    # Without its native library Hadoop starts a process to set the mode of every file and directory that it makes, also of checksum
    # files and success markers. Nobody reads those: the log of a table says which files count, and with how many rows.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",  # progress is ours to show
    "spark.sql.catalogImplementation": "in-memory",
}

_SERVERS_OWN = ("spark.sql.catalogImplementation", "spark.sql.codegen.cache.maxEntries")
"""Settings that are fixed when a Spark process starts: those of a Connect server are up to whoever starts it."""

_HADOOP = "spark.hadoop."

TEST_PROFILE = {
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.shuffle.compress": "false",
    "spark.shuffle.spill.compress": "false",
    "spark.rdd.compress": "false",
    "spark.sql.streaming.pollingDelay": "1ms",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""For data of a test's size: setting up parallel work would take longer than the work."""


SMALL_ROWS = 100_000
"""Up to so many rows, getting ready to work in parallel takes longer than the work."""

_PARTITIONS = "spark.sql.shuffle.partitions"

_FITTED = {
    "spark.sql.adaptive.enabled": ("false", "true"),
    "spark.sql.codegen.wholeStage": ("false", "true"),
    "spark.sql.codegen.factoryMode": (
        "NO_CODEGEN",
        "FALLBACK",
    ),  # to compile an expression takes longer than to interpret it
    _PARTITIONS: ("1", None),
    "spark.sql.leafNodeDefaultParallelism": ("1", None),  # of rows that the driver has read
}
"""What a session is set to for few rows, and for many; None is Spark's default, which makes many small partitions and joins those that turn out to be small."""

_LOOKED_UP = (
    "functions",
    "org.apache.spark.sql.functions",
    "org.apache.spark.sql.classic.SparkSession",
    "PythonUtils",
    "PythonSQLUtils",
    "PythonRDD",
    "SerDeUtil",
    "SimplePythonFunction",
)
"""Java classes that PySpark looks up again and again, some of them for every expression."""

_SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
"""For a process that ends before Java's second compiler would pay for itself: half the time of a first batch.

With one compiler Java reserves so little memory for compiled code that code is thrown away and compiled again all the time.
"""

_LONG_LIFE = "-XX:FreqInlineSize=35 -XX:InlineSmallCode=1000"
"""For any other process. Spark generates code for every table, and Java's second compiler inlines what is called there: a third of a build
of a million entries was compiling. With less inlining it takes a third of that, and the code is no slower.
"""

_COLLECTOR = "-XX:+UseParallelGC -XX:MaxNewSize={new_mb}m"
"""A garbage collector that takes less time from the work than the default one. By default it keeps a third of the memory for new objects,
which Spark then lacks for sorting."""

_NEW_SHARE = 6
"""New objects get this fraction of the memory: one sixth."""

_LOGGING = Path(__file__).with_name("log4j2.properties")

_ANY_COLLECTOR = re.compile(r"-XX:\+Use\w+GC")


@dataclass(frozen=True)
class SessionSettings:
    """Where Spark runs, and with how much."""

    master: str = MASTER
    remote: str | None = None  # sc://host:port of a Spark Connect server; then `master` is the server's own business
    memory_mb: int = MEMORY_MB
    rows: int | None = None  # about how many there are to work on, if the process ends with them
    more: Mapping[str, str] = field(default_factory=dict)


def open_session(settings: SessionSettings, cache: Path) -> "SparkSession":
    """The session of this process. `cache` is a directory for what Spark needs beside its data."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("holdfast pipeline")
    options = {**_ALWAYS, **settings.more}
    if settings.remote is None:
        _prepare_process(cache)
        options |= _local_options(settings, cache)
        builder = builder.master(settings.master)
    else:
        options = {name: value for name, value in options.items() if _is_a_sessions(name)}
        builder = builder.remote(settings.remote)
    for name, value in options.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    if settings.remote is None:
        _remember(session)
        if settings.master.startswith("local["):
            _lighten(session)
    if settings.remote is not None or not settings.master.startswith("local["):
        _ship(session, settings, cache)
    return session


def _remember(session: "SparkSession") -> None:
    """Cache PySpark's lookups of Java names: each lookup searches all of Spark's archives, for every expression.

    That was a quarter of the time in which a small batch is planned.
    """
    from py4j.java_gateway import (  # type: ignore[import-untyped]  # the package ships no types
        JavaClass,
        JavaMember,
    )

    class Remembering(JavaClass):  # type: ignore[misc]  # the library has no types
        def __getattr__(self, name: str) -> Any:
            found = super().__getattr__(name)
            if isinstance(found, JavaMember):
                self.__dict__[name] = found
            return found

    view: Any = session.sparkContext._jvm
    for name in _LOOKED_UP:
        known = getattr(view, name)
        view.__dict__[name] = Remembering(known._fqn, known._gateway_client)


def _lighten(session: "SparkSession") -> None:
    """Clear Hadoop's settings but for those that were chosen: all of them are sent along with every scan and every write.

    There are more than a thousand defaults, which Hadoop's code has anyway, each serialised by itself: a seventh of the work of a
    small batch. This also drops files of settings for another machine's file systems, which would redirect local paths.
    """
    context = session.sparkContext
    hadoop = context._jsc.hadoopConfiguration()
    chosen = [(name, value) for name, value in context.getConf().getAll() if name.startswith(_HADOOP)]
    hadoop.clear()
    for name, value in chosen:
        hadoop.set(name.removeprefix(_HADOOP), value)


def _is_a_sessions(name: str) -> bool:
    """Whether a session may set this option on a Connect server, which others use, too."""
    return name.startswith("spark.sql.") and name not in _SERVERS_OWN


def fit(session: "SparkSession", rows: int) -> None:
    """Set a session to the size of a batch."""
    for name, (few, many) in _FITTED.items():
        if rows <= SMALL_ROWS:
            session.conf.set(name, few)
        elif many is not None:
            session.conf.set(name, many)
        else:
            session.conf.unset(name)


def _ship(session: "SparkSession", settings: SessionSettings, cache: Path) -> None:
    """Give this package to executors that lack it; what it needs beside Spark and Arrow must be there."""
    package = Path(__file__).parent.parent
    packed = shutil.make_archive(str(cache / "holdfast"), "zip", package.parent, package.name)
    if settings.remote is None:
        session.sparkContext.addPyFile(packed)
    else:
        session.addArtifacts(packed, pyfile=True)


def _local_options(settings: SessionSettings, cache: Path) -> dict[str, str]:
    options = {
        "spark.driver.memory": f"{settings.memory_mb}m",
        "spark.driver.maxResultSize": f"{settings.memory_mb // 2}m",
        "spark.sql.warehouse.dir": str(cache / "warehouse"),
    }
    options["spark.driver.defaultJavaOptions"] = java_options(settings, os.environ)
    if settings.master.startswith("local["):
        options["spark.driver.host"] = "127.0.0.1"  # nothing else needs to reach it
        options["spark.driver.bindAddress"] = "127.0.0.1"
        cores = settings.master.removeprefix("local[").rstrip("]")
        if _PARTITIONS not in settings.more:
            count = os.cpu_count() or 1 if cores == "*" else int(cores)
            options[_PARTITIONS] = str(2 * count)
    return options


def java_options(settings: SessionSettings, environment: Mapping[str, str]) -> str:
    """Java options beside the user's own: no garbage collector if the user chose one (Java does not start with two), no logging likewise."""
    if settings.rows is not None and settings.rows <= SMALL_ROWS:
        collector, rest = "-XX:+UseSerialGC", _SHORT_LIFE
    else:
        collector, rest = _COLLECTOR.format(new_mb=settings.memory_mb // _NEW_SHARE), _LONG_LIFE
    options = [rest]
    if not _ANY_COLLECTOR.search(_chosen_options(environment)):
        options.append(collector)
    if not (_conf(environment) / _LOGGING.name).is_file():
        options.append(f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}")
    return " ".join(options)


def _conf(environment: Mapping[str, str]) -> Path:
    """The directory of the user's own Spark settings, which need not exist."""
    from pyspark.find_spark_home import _find_spark_home

    return Path(environment.get("SPARK_CONF_DIR") or Path(_find_spark_home()) / "conf")


def _chosen_options(environment: Mapping[str, str]) -> str:
    """All texts in which a user may have set Java options, joined."""
    defaults = _conf(environment) / "spark-defaults.conf"
    named = [environment.get(name, "") for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")]
    return " ".join([*named, defaults.read_text() if defaults.is_file() else ""])


def _prepare_process(cache: Path) -> None:
    """Set the environment variables that Spark's launcher reads."""
    os.environ["JAVA_HOME"] = str(java.java_home(os.environ, cache))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
