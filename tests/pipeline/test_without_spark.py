"""Who only asks a lake loads no Spark: that takes a second, and more memory than all the rest."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.pipeline import certificate, records
from holdfast.pipeline.lake import Lake

ASKED = """
import json, sys
from holdfast.cli import main
loaded = {}
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["holdfast", "pipeline", *arguments]
    try:
        main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    else:
        code = 0
    loaded[arguments[0]] = [code, [name for name in ("pyspark", "py4j") if name in sys.modules]]
print(json.dumps(loaded))
"""
COMMANDS = {
    "report": ([], 0),
    "show": ([], 0),
    "sql": (["SELECT count(*) FROM history"], 0),
    "trace": (["nobody's"], 3),
    "search": (["nothing"], 3),
    "verify": ([], 4),
    "compact": ([], 0),
    "vacuum": ([], 0),
}
"""What reads a lake or keeps it in shape, and how it ends on one in which there is nothing."""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with one batch that brought nothing."""
    lake = Lake(tmp_path_factory.mktemp("lakes") / "lake")
    lake.create()
    certificate.lake_key(lake.private)
    row = {"number": 1, "at": records.as_time(1), "entries": 0, "ranges": [], "heads": [], "versions": []}
    lake.commit(records.RUN, 1, lake.stage_rows(records.RUN, records.arrow_rows(records.RUN, [row])))
    return lake.path


def test_nothing_that_only_reads_a_lake_loads_spark(lake: Path) -> None:
    asked = [[name, *words, "--lake", str(lake), "--json"] for name, (words, _) in COMMANDS.items()]
    told = subprocess.run([sys.executable, "-c", ASKED, json.dumps(asked)], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    loaded = json.loads(told.stdout.splitlines()[-1])
    assert loaded == {name: [code, []] for name, (_, code) in COMMANDS.items()}, told.stderr
