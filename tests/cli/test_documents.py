"""The documents are complete: every path and frame that is served, every table, every command and setting is in them."""

import http.client
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.app import COMMANDS
from tests.cli.person import Person, founder
from tests.relay.running import RunningRelay

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "holdfast"
WIRE = (ROOT / "docs" / "wire.md").read_text()
DATA_MODEL = (ROOT / "docs" / "data-model.md").read_text()

FRAMES = (
    r'\btag="([A-Z-]+)"',
    r'_say\(\(\s*"([A-Z-]+)"',
    r'_tell\(\s*"([A-Z-]+)"',
    r'return \("([A-Z-]+)",',
    r'^    "([A-Z]+)": _\w+,$',
)


def _paths(document: dict[str, Any]) -> list[str]:
    return [f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods]


def _missing(paths: list[str], text: str) -> list[str]:
    """What a text does not name, to its end; it writes NAME for {name}, and may call it otherwise."""
    return [path for path in paths if not re.search(_pattern(path.split()[1]), text)]


def _pattern(path: str) -> str:
    return "/".join("[A-Z_]+" if part.startswith("{") else re.escape(part) for part in path.split("/")) + r"(?![\w/])"


def test_every_path_that_a_relay_serves_is_in_the_description_of_the_wire(town_relay: RunningRelay) -> None:
    paths = _paths(json.loads(town_relay.ask("GET", "/openapi.json").body))
    assert len(paths) > 10
    assert _missing(paths, WIRE) == []


class _Socket(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def test_every_path_that_a_daemon_serves_is_in_the_description_of_the_wire(
    town_relay: RunningRelay, tmp_path: Path
) -> None:
    person = founder(Person(tmp_path / "ann"), town_relay.url)
    with person.daemon():
        connection = _Socket(person.home / "daemon.sock")
        connection.request("GET", "/openapi.json")
        paths = _paths(json.loads(connection.getresponse().read()))
        connection.close()
    assert len(paths) > 20
    assert _missing(paths, WIRE) == []


def test_every_frame_is_in_the_description_of_the_wire() -> None:
    sources = [path.read_text() for folder in ("relay", "wire") for path in (SOURCE / folder).glob("*.py")]
    found = {word for source in sources for frame in FRAMES for word in re.findall(frame, source, re.MULTILINE)}
    assert {"QUEUE", "CHANGES", "MSG", "EOSE", "OK", "AUTH"} <= found, "the patterns still fit the code"
    assert sorted(word for word in found if not re.search(rf"\b{word}\b", WIRE)) == []


@pytest.mark.parametrize("program", ["store", "device", "relay", "hook"])
def test_every_table_is_in_the_data_model(program: str) -> None:
    scripts = [path.read_text() for path in (SOURCE / program / "schema").glob("*.sql")]
    renamed = {old for script in scripts for old in re.findall(r"ALTER TABLE (\w+) RENAME TO", script)}
    tables = {name for script in scripts for name in re.findall(r"CREATE TABLE (\w+)", script)} - renamed
    assert tables
    assert sorted(name for name in tables if f"`{name}" not in DATA_MODEL) == []


def test_every_command_is_in_the_documents() -> None:
    text = "".join(path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
    assert [name for name in COMMANDS if f"holdfast {name}" not in text] == []
