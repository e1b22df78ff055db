"""The documents are complete: every path and frame that is served, every table, every command and setting is in them."""

import http.client
import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from holdfast.cli.app import COMMANDS, assembled
from holdfast.cli.output import ExitCode
from tests import ports
from tests.cli.person import Person, founder
from tests.proxy import proxy_to
from tests.relay.running import RunningRelay, running

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


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(r"^```.*?\n(.*?)^```", re.MULTILINE | re.DOTALL)
CALL = re.compile(r"(?:^|[$;(] ?|\w=\S* )holdfast ([a-z-].*)")
OPTION = re.compile(r"(?<!send )(--[a-z][\w-]*)")  # one that a remark names belongs to another command
PIPED = re.compile(r" \| (?=(?:\w+=\S* )?holdfast )")  # to another call of ours
AGENTS_OWN = "hook --agent"  # is answered before the commands are loaded


def _calls(page: str) -> list[str]:
    """What stands behind the program's name, wherever a page shows it being called."""
    shown = [line for block in FENCED.findall(page) for line in block.splitlines()]
    shown += re.findall(r"`([^`\n]+)`", FENCED.sub("", page))
    calls = [call for line in shown for call in PIPED.split(line)]
    return [found[1] for call in calls if (found := CALL.search(call)) and not found[1].startswith(AGENTS_OWN)]


def _wrong(call: str) -> list[str]:
    """The word that is no command, or the options that the command does not take."""
    command: Any = typer.main.get_command(assembled([]))
    words = call.split()
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        names = words.pop(0).split("|")
        if not all(name in command.commands for name in names):
            return names
        command = command.commands[names[0]]
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    return [option for option in OPTION.findall(" ".join(words)) if option not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_and_option_that_a_document_shows_is_there(page: Path) -> None:
    assert {call: wrong for call in _calls(page.read_text()) if (wrong := _wrong(call))} == {}


def test_the_documents_show_commands() -> None:
    assert len({call for page in PAGES for call in _calls(page.read_text())}) > 100


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_of_a_document_leads_somewhere(page: Path) -> None:
    missing = []
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", page.read_text())):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not (link.startswith("https://") or (target.exists() and (not anchor or anchor in _anchors(target)))):
            missing.append(link)
    assert missing == []


def _anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_unit_of_a_relay_is_what_systemd_takes(tmp_path: Path) -> None:
    (shown,) = re.findall(
        r"^```ini\n(.*?)^```", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert f"RestartPreventExitStatus={ExitCode.USAGE.value}\n" in shown
    unit = tmp_path / "holdfast-relay-test.service"
    unit.write_text(shown.replace("/opt/holdfast/bin/holdfast", f"{sys.executable} -m holdfast.cli"))
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not here to be asked")
    asked = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (asked.returncode, asked.stderr) == (0, "")


def test_two_machines_meet_by_the_commands_that_the_guide_shows(
    resident: Callable[[str], Person], tmp_path: Path
) -> None:
    guide = (ROOT / "docs" / "operations.md").read_text().partition("## Two machines\n")[2].partition("\n## ")[0]
    _, _, founding, joining, reading = (
        [shlex.split(line) for line in block.splitlines()] for block in FENCED.findall(guide)
    )
    server, laptop, data = resident("server"), resident("laptop"), tmp_path / "relay"
    port = ports.port()
    with proxy_to(("127.0.0.2", port), "127.0.0.1") as proxy:
        settings = f'host = "127.0.0.2"\npublic_url = "{proxy.url}"'
        with running(data, settings, options=("--port", str(port))):
            places = {"https://relay.example": proxy.url, "/var/lib/holdfast/operator.key": str(data / "operator.key")}
            try:
                invitation = _typed(server, founding, places)
                _typed(laptop, joining, places, invitation)
                server.until(lambda client: client.inbox().messages)
                assert "hello from afar" in _typed(server, reading, places)
            finally:
                for person in (server, laptop):
                    person.run("daemon", "down")


def _typed(person: Person, lines: list[list[str]], places: dict[str, str], said: str = "") -> str:
    """What the last of some commands prints; `said` is what somebody who asks is told."""
    printed = ""
    for _, *words in lines:
        command = person.command(*(places.get(word, word) for word in words))
        done = subprocess.run(command, input=said, capture_output=True, text=True, env=person.environment)
        assert done.returncode == 0, done.stderr
        printed = done.stdout
    return printed
