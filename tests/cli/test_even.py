"""Every command alike: its help fits on a screen, it speaks JSON to programs, and what it says has no colour where none is wanted."""

import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer

from holdfast import OperationLog, __version__
from holdfast.cli import at_lake, pipeline_lake
from holdfast.cli.app import COMMANDS, assembled
from holdfast.cli.output import ExitCode, console, print_table

ROOT = Path(__file__).parents[2]
LINES, COLUMNS = 24, 80  # of a terminal that nobody has made larger
OVERVIEW_LINES = 36  # of `holdfast --help`, which lists every command

ALWAYS_JSON = {"up", "relay run", "daemon run", "daemon logs"}
"""What runs until it is stopped, and the log of that: one JSON object a line, whoever reads it."""


def _walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    yield " ".join(path), command
    for name, one in getattr(command, "commands", {}).items():
        yield from _walk(one, (*path, name))


ALL = dict(_walk(typer.main.get_command(assembled([]))))
LEAVES = {path: command for path, command in ALL.items() if not hasattr(command, "commands")}


@pytest.fixture(autouse=True)
def small_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


def _help(path: str) -> str:
    with ALL[path].make_context(f"holdfast {path}".strip(), [], resilient_parsing=True) as context:
        return str(ALL[path].get_help(context))


@pytest.mark.parametrize("path", ALL)
def test_the_help_of_every_command_fits_on_a_screen_and_explains_everything(path: str) -> None:
    lines = _help(path).splitlines()
    assert len(lines) <= (LINES if path else OVERVIEW_LINES)
    assert max(map(len, lines)) <= COLUMNS
    assert ALL[path].help or ALL[path].callback.__doc__
    unexplained = [one.name for one in ALL[path].params if not getattr(one, "help", "")]
    assert unexplained == []


@pytest.mark.parametrize("path", LEAVES)
def test_every_command_speaks_json_to_programs(path: str) -> None:
    has_option = any("--json" in one.opts for one in LEAVES[path].params)
    assert has_option is (path not in ALWAYS_JSON)


def test_every_command_is_a_word_and_stands_in_the_overview_in_its_order() -> None:
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)?", word) for path in ALL for word in path.split())
    shown = re.findall(r"^  ([a-z]+)  ", _help("").partition("Commands:")[2], re.MULTILINE)
    assert shown == list(COMMANDS)


def test_a_group_that_is_asked_for_one_command_has_only_that_one() -> None:
    for words in (["daemon", "backup"], ["daemon", "status"], ["feed", "put"]):
        (group,) = typer.main.get_command(assembled(words)).commands.values()  # type: ignore[attr-defined]
        assert list(group.commands) == words[1:]
    (group,) = typer.main.get_command(assembled(["daemon", "nothing"])).commands.values()  # type: ignore[attr-defined]
    assert {"daemon " + name for name in group.commands} == {path for path in ALL if path.startswith("daemon ")}


def test_every_exit_code_is_in_the_help_and_in_the_documents() -> None:
    said = " ".join(_help("").split())
    written = (ROOT / "docs" / "operations.md").read_text().partition("## Exit codes")[2]
    for code in ExitCode:
        assert re.search(rf"^\| {code.value} \|", written, re.MULTILINE), code
        assert f" {code.value} " in said or code is ExitCode.ENDED  # which only a daemon ends with


def test_what_the_documents_submit_to_spark_is_found_and_is_the_command() -> None:
    """The part of the command that says where it is, as it stands there."""
    (search,) = re.findall(r'"(\$\(python -c .*\))"', (ROOT / "docs" / "operations.md").read_text())
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["bash", "-c", f'python "{search}" --version']
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"holdfast {__version__}\n", "")


def _python(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return done.stdout


@pytest.mark.parametrize("words", [["--version"], ["hook", "--agent", "claude", "--home", "HOME"]])
def test_what_must_be_quick_is_answered_without_the_command_line(words: list[str], tmp_path: Path) -> None:
    given = [str(tmp_path) if word == "HOME" else word for word in words]
    program = f"""
import io, sys
sys.argv = ['holdfast', *{given!r}]
sys.stdin = io.TextIOWrapper(io.BytesIO(b'{{"hook_event_name": "Stop", "session_id": "s"}}'))
from holdfast.cli import main
try:
    main()
except SystemExit:
    pass
ours = {{name for name in sys.modules if name.split('.')[0] not in sys.stdlib_module_names}}
print(sorted(name for name in ours if not name.startswith(('holdfast', '_', 'sitecustomize'))))
print(sorted(name for name in ours if name.startswith('holdfast.')))
"""
    *said, others, ours = _python(program).splitlines()
    assert said == ([f"holdfast {__version__}"] if words == ["--version"] else [])
    assert others == "[]"
    known = {"holdfast.cli", "holdfast.hook", "holdfast.protocol"}
    known |= {f"holdfast.hook.{name}" for name in ("receiver", "spool", "layout", "plain_json")}
    assert set(json.loads(ours.replace("'", '"'))) <= known | {"holdfast.protocol.hook_event"}


def test_a_shell_completes_commands_and_their_options() -> None:
    program = "import sys; sys.argv = ['holdfast']; from holdfast.cli import main; main()"
    for typed, expected in (("holdfast out", ["outbox"]), ("holdfast outbox req", ["requeue"])):
        said = _python(program, _HOLDFAST_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=typed)
        assert re.findall(r'"([a-z]+)"', said) == expected, said


@pytest.fixture
def filled(path: Path) -> Path:
    with OperationLog(path) as log:
        log.append_next(b"\xab" * 32, b"first")
    return path


def _on_a_terminal(*words: str, **environment: str) -> str:
    """What a command writes where somebody watches."""
    ours, theirs = pty.openpty()
    program = [sys.executable, "-m", "holdfast.cli", *words]
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | environment
    with subprocess.Popen(program, stdin=theirs, stdout=theirs, stderr=theirs, env=environment):
        os.close(theirs)
        said = b""
        try:
            while part := os.read(ours, 65_536):
                said += part
        except OSError:  # the end of a terminal
            pass
    os.close(ours)
    return said.decode()


def test_a_mistyped_command_of_hooks_is_not_taken_for_an_event_that_somebody_types(tmp_path: Path) -> None:
    said = _on_a_terminal("hook", "instal", "--agent", "claude", HOLDFAST_HOME=str(tmp_path / "home"))
    assert "No such command 'instal'. Did you mean 'install'" in said
    assert not (tmp_path / "home").exists()


def test_colour_is_for_terminals_and_for_those_who_want_it(filled: Path, tmp_path: Path) -> None:
    colour = re.compile(r"\x1b\[[0-9;]*3[0-9]")
    arguments = ("doctor", "--home", str(tmp_path / "none"))
    shown = _on_a_terminal(*arguments, TERM="xterm-256color")
    assert colour.search(shown)
    plain = _on_a_terminal(*arguments, TERM="xterm-256color", NO_COLOR="1")
    assert not colour.search(plain)
    assert "There is no home at" in plain
    piped = subprocess.run([sys.executable, "-m", "holdfast.cli", *arguments], capture_output=True, text=True)
    assert "\x1b" not in piped.stdout
    assert piped.returncode == ExitCode.UNAVAILABLE


def test_wrong_usage_is_json_where_json_was_asked_for_and_a_sentence_otherwise(filled: Path) -> None:
    wrong = [sys.executable, "-m", "holdfast.cli", "log", "list", str(filled), "--limit", "many"]
    for options, read in (([], str), (["--json"], lambda text: json.loads(text)["message"])):
        done = subprocess.run([*wrong, *options], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
        assert "--limit" in read(done.stderr)


def test_what_cannot_be_written_any_more_is_said_and_is_no_traceback(filled: Path) -> None:
    """The output goes to a full disk; what was said is lost, and whoever looks at the exit code knows it."""
    with Path("/dev/full").open("wb") as full:
        program = [sys.executable, "-m", "holdfast.cli", "log", "list", str(filled), "--json"]
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == ExitCode.UNAVAILABLE
    assert json.loads(done.stderr)["error"] == "disk_full"


def test_nothing_that_somebody_wrote_into_a_lake_moves_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    wild = "\x1b]52;c;cm0gLXJm\x07 \x1b[2J"
    hit = {"at": datetime(2026, 11, 18, tzinfo=UTC), "direction": "received", "peer": wild, "peer_name": wild}
    pipeline_lake._print_hit(hit | {"topic": wild, "snippet": f"{wild} words", "matches": [(0, 2)]})
    at_lake.print_rows(["session", wild], [{"session": wild, wild: [wild]}], as_json=False)
    said = capsys.readouterr().out
    assert " words" in said
    assert all(line.isprintable() for line in said.splitlines())


class Terminal(io.StringIO):
    """Output that somebody looks at."""

    def isatty(self) -> bool:
        return True


def _shown(monkeypatch: pytest.MonkeyPatch, columns: int, show: Callable[[], None]) -> list[str]:
    """The lines that somebody sees at a terminal of so many columns, without their colours."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    show()
    return re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).splitlines()


def test_a_narrow_terminal_breaks_no_path_in_two(monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"the daemon is up: /{'a' * 60}/daemon.sock"
    assert _shown(monkeypatch, 40, lambda: console().print(line)) == [line]


@pytest.mark.parametrize("columns", [40, 80, 160])
def test_at_any_terminal_a_table_shows_ids_and_states_whole_and_cuts_only_the_text(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ("1", "2026-11-18T14:10:21.929Z", "01M7QFX339T8TCN781YE5NRH93", "bob", "stored", "x " * 99)
    names = ("arrival", "received", "id", "from", "state", "message")
    heading, line = _shown(monkeypatch, columns, lambda: print_table(names, [row], right=("arrival",)))
    assert heading.split() == list(names)
    assert line.split()[:5] == list(row[:-1])
    assert line.endswith("…")
    assert len(line) <= max(columns, 110)
    key = "npub17ks8a6hr5cnfxm0xvtvfs2nr2runm5cyrkcg9y9tvry6ccxc3rxsyv8ee4"
    fields = [("key", key), ("why", "x " * 99)]
    assert key in _shown(monkeypatch, columns, lambda: print_table(("field", "value"), fields))[1]
