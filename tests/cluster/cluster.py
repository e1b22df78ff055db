"""A Spark cluster of real processes: a master and two workers, or a Connect server, that have nothing of ours."""

import json
import os
import re
import subprocess
import time
import venv
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from holdfast.pipeline import java

START_S = 120.0
STOP_S = 120.0
SPARK_HOME = Path(pyspark.__path__[0])


@dataclass(frozen=True)
class Cluster:
    """Where Spark runs, and what a driver has to know of it."""

    address: str  # spark://… or sc://…
    environment: Mapping[str, str]
    events: Path  # what Spark writes down of its applications
    programs: tuple["Program", ...]  # workers, or the server

    def executors(self) -> dict[str, int]:
        """How many tasks each executor has ended."""
        return _tasks(self.events)


@dataclass(frozen=True)
class Program:
    """A process of Spark's that writes to a log."""

    process: subprocess.Popen[bytes]
    log: Path

    def says(self, pattern: str) -> str:
        """Wait for a line, and give what it says."""
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            found = re.search(pattern, self.log.read_text(errors="replace"))
            if found is not None:
                return found[found.lastindex or 0]
            assert self.process.poll() is None, self.log.read_text(errors="replace")
            time.sleep(0.1)
        raise AssertionError(f"{pattern} was not said:\n{self.log.read_text(errors='replace')}")


@contextmanager
def standalone(folder: Path) -> Iterator[Cluster]:
    """A master and two workers with a core each, in directories of their own."""
    environment = _environment(folder)
    master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0"]
    with ExitStack() as stack:
        address = stack.enter_context(_started(folder, "master", master, environment)).says(
            r"Starting Spark master at (spark://\S+)"
        )
        worker = [
            "org.apache.spark.deploy.worker.Worker",
            "--host",
            "127.0.0.1",
            "--cores",
            "1",
            "--memory",
            "1g",
            address,
        ]
        workers = [stack.enter_context(_started(folder, f"worker-{one}", worker, environment)) for one in (1, 2)]
        for one in workers:
            one.says(r"Successfully registered with master")
        yield Cluster(address, environment, folder / "events", tuple(workers))


@contextmanager
def connect(folder: Path) -> Iterator[Cluster]:
    """A Spark Connect server."""
    environment = _environment(folder)
    program = [
        "org.apache.spark.deploy.SparkSubmit",
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
    ]
    options = [
        "--master",
        "local[2]",
        "--driver-memory",
        "1g",
        "--conf",
        "spark.connect.grpc.binding.port=0",
        "spark-internal",
    ]
    with _started(folder, "connect", [*program, *options], environment) as server:
        port = server.says(r"Spark Connect server started at: \S*?:(\d+)")
        yield Cluster(f"sc://127.0.0.1:{port}", environment, folder / "events", (server,))


def _environment(folder: Path) -> dict[str, str]:
    """What a program of the cluster is started with: settings and a Python that are not the driver's."""
    (folder / "events").mkdir()
    (folder / "conf").mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.executor.memory": "768m",
        "spark.executor.cores": "1",
        "spark.driver.host": "127.0.0.1",
    }
    (folder / "conf" / "spark-defaults.conf").write_text(
        "".join(f"{name} {value}\n" for name, value in settings.items())
    )
    return {
        **os.environ,
        "JAVA_HOME": str(java.java_home(os.environ, folder / "cache")),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(_bare_python(folder / "python")),
        "PYTHONPATH": "",
    }


def _bare_python(folder: Path) -> Path:
    """A Python with the libraries of this one, and without Holdfast."""
    venv.create(folder, with_pip=False)
    (library,) = (folder / "lib").glob("python*/site-packages")
    (library / "borrowed.pth").write_text(str(SPARK_HOME.parent))  # what a .pth names is no place for other .pth files
    python = folder / "bin" / "python"
    told = subprocess.run(
        [python, "-c", "import pyspark, pyarrow, holdfast"], capture_output=True, text=True, cwd=folder
    )
    assert "No module named 'holdfast'" in told.stderr, told.stderr
    return python


@contextmanager
def _started(folder: Path, name: str, command: list[str], environment: Mapping[str, str]) -> Iterator["Program"]:
    """A program of Spark's, until the end of the block."""
    place = folder / name
    place.mkdir()
    log = place / "log"
    mine = {**environment, "SPARK_WORKER_DIR": str(place / "work")}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [SPARK_HOME / "bin" / "spark-class", *command], cwd=place, env=mine, stdout=out, stderr=subprocess.STDOUT
        )

    program = Program(process, log)
    try:
        yield program
    finally:
        process.terminate()
        process.wait(STOP_S)


def _tasks(events: Path) -> dict[str, int]:
    counts: dict[str, int] = {}
    for file in sorted(events.rglob("*")):
        if file.is_file() and not file.name.startswith((".", "appstatus")):
            whole, _, _ = file.read_text().rpartition("\n")  # a server that runs may be writing the next line
            for line in whole.splitlines():
                entry = json.loads(line)
                if entry["Event"] == "SparkListenerTaskEnd":
                    name = entry["Task Info"]["Executor ID"]
                    counts[name] = counts.get(name, 0) + 1
    return counts
