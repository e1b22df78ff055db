"""`holdfast hook`: installed into agents' settings, fired as they would fire it, handled by a real daemon, and examined."""

import json
import os
import re
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pytest

from holdfast.cli import hook
from holdfast.cli.check import inspect
from holdfast.device import database
from holdfast.device.home import Home
from holdfast.hook import agent_sessions, doctor, owner, settings, spool
from holdfast.hook import database as hooks
from holdfast.hook.layout import DATABASE_NAME
from holdfast.hook.receiver import NAME_CHARACTERS_MAX
from holdfast.protocol.agent_event import AgentEvent, AgentKind
from holdfast.protocol.history import Kind
from holdfast.protocol.hook_entry import HookDetail
from holdfast.protocol.schedule import DAY, HOUR, SECOND
from holdfast.store import history
from holdfast.store.world import wall_clock
from tests.cli.person import PATIENCE_S, Person
from tests.device.house import NOWHERE
from tests.hook import receivers
from tests.hook.recorded import SESSIONS
from tests.terminal import started

AGENTS = ["claude", "codex", "gemini"]
PATIENCE_MS = int(PATIENCE_S * 1000)  # for a lock that somebody has for a moment


@dataclass
class AgentUser(Person):
    """Somebody with agents, whose settings lie in their user directory."""

    @property
    def user(self) -> Path:
        return self.home.with_name(f"{self.home.name}-user")

    @property
    def environment(self) -> dict[str, str]:
        without = {name: value for name, value in super().environment.items() if name != "CODEX_HOME"}
        return without | {"HOME": str(self.user)}

    def settings(self, agent: str) -> Path:
        names = {"claude": ".claude/settings.json", "codex": ".codex/hooks.json", "gemini": ".gemini/settings.json"}
        return self.user / names[agent]

    def install(self, agent: str, *, notify: bool = False) -> None:
        """What `hook install` does, without the start of a process, which is the dear part of it."""
        with pytest.MonkeyPatch.context() as world:
            for name in os.environ.keys() - self.environment.keys():
                world.delenv(name)
            for name, value in self.environment.items():
                world.setenv(name, value)
            hook.install(agent, notify=notify, as_json=True)

    def fire(self, agent: str, payload: dict[str, Any]) -> None:
        """What the agent does when something happens: every command that stands there for the event."""
        groups = json.loads(self.settings(agent).read_text())["hooks"].get(payload["hook_event_name"], [])
        for command in (handler["command"] for group in groups for handler in group["hooks"]):
            said = json.dumps(payload).encode()
            done = subprocess.run(["/bin/sh", "-c", command], input=said, capture_output=True, timeout=PATIENCE_S)
            assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")

    def rows(self, columns: str = "event_type, status") -> list[Any]:
        return receivers.rows(self.home, columns)

    def until_handled(self, number: int) -> None:
        """Wait until so many events have ended and are in the history."""
        self.until(lambda _: len([one for one in self.rows("ended_reported") if one]) == number)

    def exported(self, what: str) -> list[dict[str, Any]]:
        """What the daemon exports."""
        url = f"http://localhost/v1/export/{what}"
        curl = ["curl", "-s", "-f", "--unix-socket", str(self.home / "daemon.sock"), url]
        done = subprocess.run(curl, capture_output=True, check=True)
        rows: list[dict[str, Any]] = pa.ipc.open_stream(done.stdout).read_all().to_pylist()
        return rows

    def told(self) -> list[tuple[Kind, HookDetail]]:
        """What the home's history says of hooks."""
        return [(kind, HookDetail.decode(detail)) for kind, detail in self.all_told() if kind.startswith("hook_")]

    def all_told(self) -> list[tuple[Kind, bytes]]:
        """The home's whole history."""
        engine = database.open_to_read(self.home / "device.db")
        try:
            entries = list(history.walk(engine))
        finally:
            engine.close()
        return [(one.kind, one.detail) for one in entries]


@pytest.fixture
def person(tmp_path: Path) -> AgentUser:
    """Somebody without a mesh."""
    found = AgentUser(tmp_path / "home")
    found.user.mkdir()
    return found


@pytest.fixture
def member(ann: Person) -> AgentUser:
    """Ann, who has agents, too."""
    found = AgentUser(ann.home)
    found.user.mkdir()
    return found


@pytest.mark.parametrize("agent", AGENTS)
def test_a_session_of_every_agent_goes_from_its_settings_to_the_history(agent: str, member: AgentUser) -> None:
    member.install(agent)
    before_daemon, with_daemon = SESSIONS[agent][:5], SESSIONS[agent][5:]
    for recorded in before_daemon:
        member.fire(agent, recorded.payload)
    assert {status for _, status in receivers.stored(member.home, "event_type, status")} == {"pending"}
    with member.daemon():
        for recorded in with_daemon:
            member.fire(agent, recorded.payload)
        expected = [
            one.event_type
            for one in SESSIONS[agent]
            if one.event_type and one.payload["hook_event_name"] != "PostToolBatch"
        ]
        member.until_handled(len(expected))
        exported = member.exported("hook_outbox?columns=seq,event_type,status,ended_reported,payload")
    assert [row["event_type"] for row in exported] == expected
    assert {row["ended_reported"] for row in exported} == {True}
    assert {json.loads(row["payload"])["session_id"] for row in exported} == {SESSIONS[agent][0].payload["session_id"]}
    assert [event_type for event_type, _ in member.rows()] == expected
    assert {status for _, status in member.rows()} <= {"done", "coalesced"}
    entries = member.told()
    assert [detail.event_type for kind, detail in entries if kind is Kind.HOOK_RECEIVED] == expected
    assert len(entries) == 2 * len(expected)
    assert {detail.session_id for _, detail in entries} == {SESSIONS[agent][0].payload["session_id"]}
    received = [seq for seq, (kind, _) in enumerate(member.all_told(), start=1) if kind is Kind.HOOK_RECEIVED]
    assert [row["seq"] for row in exported] == received
    assert inspect(member.home / "hooks.db") == ("hook", [])
    assert inspect(member.home / "device.db") == ("device", [])


def test_the_doctor_follows_an_event_through_each_installed_command_to_the_history(
    member: AgentUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "FOLLOW_S", PATIENCE_S)
    for agent in AGENTS:
        member.install(agent)
    member.install("codex", notify=True)
    with member.daemon():
        told = member.json("hook", "doctor")
    found = [
        (one["agent"], one["kind"], one["event_name"], one["stage"], one["is_reported"]) for one in told["installed"]
    ]
    assert sorted(found) == [
        ("claude", "hooks", "SessionStart", "done", True),
        ("codex", "hooks", "SessionStart", "done", True),
        ("codex", "notify", "agent-turn-complete", "done", True),
        ("gemini", "hooks", "SessionStart", "done", True),
    ]
    assert [one["wrong"] for one in told["installed"]] == [[]] * 4
    assert told["problems"] == []
    sessions = {detail.session_id for kind, detail in member.told() if kind is Kind.HOOK_DONE}
    assert len(sessions) == 4
    assert all(session.startswith("holdfast-doctor-") for session in sessions)


def test_the_doctor_says_that_events_are_kept_and_nobody_handles_them(person: AgentUser) -> None:
    person.install("claude")
    done = person.run("hook", "doctor", code=5)
    assert "SessionStart stored" in done.stdout
    assert "start a daemon" in done.stdout


def test_the_doctor_finds_a_command_that_stores_nothing(person: AgentUser) -> None:
    person.install("claude")
    path = person.settings("claude")
    path.write_text(path.read_text().replace(sys.executable, "/gone/python"))
    told = json.loads(person.run("hook", "doctor", "--json", code=4).stdout)
    (one,) = told["installed"]
    assert one["stage"] == "failed"
    assert "nothing was stored" in one["wrong"]
    assert "the command is not the one that an install would write now" in one["wrong"]
    assert any("/gone/python" in wrong for wrong in one["wrong"])


def test_an_agent_is_never_stopped_by_a_holdfast_that_is_gone(person: AgentUser) -> None:
    """An interpreter that misses its script ends with 2, which tells Claude Code to block."""
    person.install("claude")
    command = json.loads(person.settings("claude").read_text())["hooks"]["Stop"][0]["hooks"][0]["command"]
    for gone in (command.replace("command.py", "no_command.py"), command.replace(sys.executable, "/gone/python")):
        done = subprocess.run(["/bin/sh", "-c", gone], input=b"{}", capture_output=True)
        assert (done.returncode, done.stdout) == (0, b"")


def test_the_doctor_names_what_it_does_not_know_and_what_was_given_up(person: AgentUser) -> None:
    person.install("claude")
    for recorded in SESSIONS["claude"]:
        receivers.run(person.home, "claude", recorded.payload)
    receivers.run(person.home, "claude", {"hook_event_name": "Stop"})
    told = json.loads(person.run("hook", "doctor", "--json", code=5).stdout)
    assert any("an event BrandNewEvent that we do not know" in problem for problem in told["problems"])
    assert any("was dropped once," in problem for problem in told["problems"])
    assert any("1 event names no session" in problem for problem in told["problems"])


def test_an_adapter_that_went_without_something_is_named_for_as_long_as_it_is_news(person: AgentUser) -> None:
    person.home.mkdir(0o700)
    engine = hooks.opened(person.home / DATABASE_NAME, wall_clock)
    with engine.write() as transaction:
        for name, ago in (("log", 8 * DAY), ("topic:@agents", HOUR), ("webhook:office", None)):
            agent_sessions.follow(transaction, name)
            if ago is not None:
                at = wall_clock() - ago
                agent_sessions.advance(transaction, name, 5, given_up=3, given_up_error="no \x1b[2Jroom", error_at=at)
        agent_sessions.advance(transaction, "topic:@agents", 5, error="no route", error_at=wall_clock())
    engine.close()
    said = person.says("hook", "status")
    assert "! topic:@agents went without 3 reports, last " in said
    assert ("2Jroom" in said, "no route" in said) == (True, False)  # what went wrong since then is not why
    assert said.count("went without") == 1
    assert all(line.isprintable() for line in said.splitlines())
    given_up = {one["name"]: one["given_up"] for one in person.json("agents", "adapters")}
    assert given_up == {"log": 3, "topic:@agents": 3, "webhook:office": 0}
    log, topic, _ = person.says("agents", "adapters").splitlines()[1:]
    assert ("2Jroom" in log, "no route" in topic) == (True, True)
    assert "topic:@agents went without 3 reports" in " ".join(person.run("doctor", code=4).stdout.split())


def test_events_that_were_given_up_are_counted_beyond_those_that_are_named(person: AgentUser) -> None:
    for number in range(hook.DEAD_SHOWN_MAX + 2):
        receivers.run(person.home, "claude", {"session_id": "s", "hook_event_name": "Stop", "n": number})
    person.run("hook", "status")
    with closing(apsw.Connection(str(person.home / "hooks.db"))) as engine:
        engine.execute("UPDATE hook_outbox SET status = 'dead', ended_at = 1, last_error = 'no', attempts = 20")
    said = person.says("hook", "status")
    assert said.count("was given up after 20 attempts: no") == hook.DEAD_SHOWN_MAX
    assert "! 2 more events were given up" in said


@pytest.mark.parametrize("name", ["BrandNewEvent", "Stop2", "agent-turn-began", "N" * 150])
def test_an_unknown_event_is_stored_and_no_problem_any_more_once_the_advice_is_followed(
    name: str, person: AgentUser
) -> None:
    """The advice names what is missing and nothing else: where the command is installed is somebody's choice."""
    receivers.run(person.home, "claude", {"session_id": "s", "hook_event_name": name})
    (advice,) = re.findall(r'\. ("allow": \[.*\]) in hooks.json in the home keeps it\n', person.says("hook", "status"))
    (person.home / "hooks.json").write_text(f"{{{advice}}}")
    assert "that we do not know" not in person.says("hook", "status")
    receivers.run(person.home, "claude", {"session_id": "s", "hook_event_name": name})
    assert receivers.stored(person.home, "event_name") == [name[:NAME_CHARACTERS_MAX]]
    person.run("hook", "install", "--agent", "claude", "--allow", *settings.load(person.home).allow)
    assert list(person.user.rglob("*.json")) == [person.settings("claude")]


@pytest.mark.parametrize("name", ["__", "ÄöEvent", "2Stop", "thread.began", "New Event", "New" * 33])
def test_an_event_that_no_setting_can_name_is_told_without_advice(name: str, person: AgentUser) -> None:
    receivers.run(person.home, "claude", {"session_id": "s", "hook_event_name": name})
    (told,) = [line for line in person.says("hook", "status").splitlines() if "we do not know" in line]
    assert "keeps it" not in told


def test_an_unknown_event_is_a_problem_for_seven_days(person: AgentUser) -> None:
    """Or an event that nobody can allow, and that came once, would be one for ever."""
    person.home.mkdir(0o700)
    for name, ago in (("__", 6 * DAY), ("--", 8 * DAY), ("Old", 8 * DAY)):
        values = {"agent": "claude", "event_name": name, "reason": "unknown", "received_at": wall_clock() - ago}
        spool.append(str(person.home), {"statement": "count_dropped", "values": values})
    told = person.json("hook", "status")
    assert [one["event_name"] for one in told["dropped"]] == ["--", "Old", "__"]
    (problem,) = hook.problems_of(told)
    assert "an event __ that we do not know" in problem


def test_an_event_without_a_name_is_named_so(person: AgentUser) -> None:
    receivers.run(person.home, "claude", {"session_id": "s"})
    assert "an event of claude without a name was dropped once" in person.says("hook", "status")


def test_nothing_that_an_agent_calls_its_event_moves_the_cursor(person: AgentUser) -> None:
    receivers.run(person.home, "claude", {"session_id": "s", "hook_event_name": "\x1b[2J\r"})
    said = person.says("hook", "status")
    assert "that we do not know" in said
    assert all(line.isprintable() for line in said.splitlines())


def test_nothing_that_an_installed_command_says_moves_the_cursor(person: AgentUser) -> None:
    person.install("claude")
    path = person.settings("claude")
    path.write_text(path.read_text().replace("|| :", r"; printf '\\033[2J' >&2"))
    said = person.run("hook", "doctor", code=4).stdout
    assert "[2J" in said
    assert all(line.isprintable() for line in said.splitlines())


def test_settings_that_are_the_users_and_the_projects_are_one_place(person: AgentUser) -> None:
    person.install("claude")
    command = person.command("hook", "status", "--json")
    done = subprocess.run(command, cwd=person.user, env=person.environment, capture_output=True, text=True)
    assert [one["scope"] for one in json.loads(done.stdout)["installed"]] == ["user"]


def test_the_doctor_finds_settings_that_lack_an_event(person: AgentUser) -> None:
    person.install("gemini")
    path = person.settings("gemini")
    settings = json.loads(path.read_text())
    del settings["hooks"]["AfterAgent"]
    path.write_text(json.dumps(settings))
    (one,) = json.loads(person.run("hook", "doctor", "--json", code=4).stdout)["installed"]
    assert one["wrong"] == ["not installed for AfterAgent"]


def test_where_nothing_is_installed_the_doctor_says_how_to(person: AgentUser) -> None:
    assert "holdfast hook install --agent codex" in person.fails(3, "hook", "doctor", "--agent", "codex")


def test_installing_and_uninstalling_leaves_settings_as_they_were(person: AgentUser) -> None:
    path, config = person.settings("codex"), person.user / ".codex" / "config.toml"
    path.parent.mkdir()
    path.write_text('{\n   "theme": "dark", "hooks": {"Stop": [ ]}\n}\n')
    config.write_text('model = "gpt-5"\n')
    before = path.read_bytes(), config.read_bytes()
    told = person.json("hook", "install", "--agent", "codex", "--allow", "session_end")
    assert (told["path"], told["backup"]) == (str(path), f"{path}.before-holdfast")
    assert "SessionEnd" in json.loads(path.read_text())["hooks"]
    assert json.loads((person.home / "hooks.json").read_text()) == {"allow": ["session_end"]}
    person.install("codex", notify=True)
    status = person.json("hook", "status", "--agent", "codex")
    assert [(one["agent"], one["kind"]) for one in status["installed"]] == [("codex", "hooks"), ("codex", "notify")]
    person.run("hook", "uninstall", "--agent", "codex")
    assert (path.read_bytes(), config.read_bytes()) == before
    assert sorted(one.name for one in path.parent.iterdir()) == ["config.toml", "hooks.json"]


def test_a_project_has_settings_of_its_own(person: AgentUser, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    command = person.command("hook", "install", "--agent", "claude", "--scope", "local", "--json")
    done = subprocess.run(command, cwd=project, env=person.environment, capture_output=True, text=True)
    assert json.loads(done.stdout)["path"] == str(project / ".claude" / "settings.local.json")
    assert not person.settings("claude").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("status", "--agent", "cursor"), "one of claude, codex, gemini"),
        (("install", "--agent", "gemini", "--scope", "local"), "gemini has no settings of scope local"),
        (("install", "--agent", "claude", "--notify"), "only Codex has `notify`"),
        (("install", "--agent", "claude", "--allow", "Session End"), "--allow takes types"),
    ],
)
def test_what_cannot_be_meant_is_told_and_changes_nothing(
    arguments: tuple[str, ...], words: str, person: AgentUser
) -> None:
    assert words in person.fails(2, "hook", *arguments)
    assert list(person.user.rglob("*")) == []


def test_a_notify_of_somebody_else_is_a_conflict(person: AgentUser) -> None:
    config = person.user / ".codex" / "config.toml"
    config.parent.mkdir()
    config.write_text('notify = ["beep"]\n')
    assert "Codex has only one" in person.fails(4, "hook", "install", "--agent", "codex", "--notify")
    assert config.read_text() == 'notify = ["beep"]\n'


AGO_S = 100  # longer than an event may be open, or its end may take


def put(home: Path, *event_types: str, session: str) -> None:
    """Events as they were stored a while ago."""
    at = wall_clock() - AGO_S * SECOND
    for event_type in event_types:
        values = {
            "event_id": os.urandom(16).hex(),
            "agent": "claude",
            "session_id": session,
            "event_type": event_type,
            "event_name": event_type,
            "payload": "{}",
            "occurrence": None,
            "received_at": at,
        }
        spool.append(str(home), {"statement": "insert_event", "values": values})


def metrics(home: Path) -> dict[str, float]:
    """What the daemon says of hooks."""
    curl = ["curl", "-s", "--unix-socket", str(home / "daemon.sock"), "http://localhost/v1/metrics"]
    text = subprocess.run(curl, capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in text.splitlines() if line.startswith("holdfast_hook_")]
    return {name.removeprefix("holdfast_hook_"): float(value) for name, value in lines}


def test_metrics_and_warnings_tell_of_hooks(member: AgentUser) -> None:
    engine = hooks.opened(member.home / "hooks.db", wall_clock)
    another = owner.Owner(member.home, os.urandom)  # a worker that lives, and keeps what it has
    with engine.write() as transaction:
        transaction.rows(
            "INSERT INTO hook_outbox (event_id, agent, session_id, event_type, event_name, payload, received_at,"
            " next_attempt_at, status, lock_owner, lock_token, locked_at) VALUES"
            " (:id, 'claude', 'stuck', 'agent_stop', 'Stop', '{}', :at, :at, 'locked', :owner, 1, :now)",
            {"id": "f" * 32, "at": wall_clock() - AGO_S * SECOND, "owner": another.name, "now": wall_clock()},
        )
    engine.close()
    (member.home / "hooks.json").write_text('{"summary_s": 0.2, "lock_cutoff_s": 3600}')
    put(member.home, "session_start", *["tool_use"] * 9, "agent_stop", session="late")
    with member.daemon():
        member.until_handled(11)
        member.until(lambda _: metrics(member.home)["stuck"] == 1)
        found = metrics(member.home)
    another.release()
    assert (found["worker"], found["processed"], found["coalesced"], found["spooled"]) == (1, 3, 8, 11)
    assert (found["queue_depth"], found["spool_bytes"]) == (0, 0)
    assert found["lag_p99_ms"] >= found["lag_p95_ms"] >= AGO_S * 1000
    log = member.home.with_suffix(".log").read_text()
    for warning in ("hook events are stuck", "a session of hooks is late", "lag_p99_s"):
        assert warning in log


def test_a_hook_database_that_is_locked_for_ever_hurts_neither_the_daemon_nor_its_end(member: AgentUser) -> None:
    first, second = SESSIONS["claude"][0], SESSIONS["claude"][2]
    receivers.run(member.home, "claude", first.payload)
    with member.daemon():
        member.until_handled(1)
        with closing(apsw.Connection(str(member.home / "hooks.db"))) as other:
            other.set_busy_timeout(PATIENCE_MS)  # the worker may be at it
            other.execute("BEGIN EXCLUSIVE")
            assert receivers.run(member.home, "claude", second.payload, "--strict").returncode == 0
            member.until(lambda _: metrics(member.home)["worker"] == 0)
            assert metrics(member.home)["spool_bytes"] > 0
            other.execute("ROLLBACK")
        member.until_handled(2)
        member.until(lambda _: (found := metrics(member.home))["worker"] == 1 and found["spool_bytes"] == 0)
    with member.daemon() as process, closing(apsw.Connection(str(member.home / "hooks.db"))) as other:
        member.until(lambda _: metrics(member.home)["worker"] == 1)
        other.set_busy_timeout(PATIENCE_MS)
        other.execute("BEGIN EXCLUSIVE")
        member.until(lambda _: metrics(member.home)["worker"] == 0)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


def test_what_is_wrong_with_the_spool_is_not_said_among_what_a_program_reads(person: AgentUser) -> None:
    receivers.run(person.home, "claude", SESSIONS["claude"][0].payload)
    with (person.home / "hooks.spool").open("ab") as file:
        file.write(b"no line of ours\n")
    done = started(
        "hook", "status", "--json", environment=person.environment
    )  # with the log of a program, not of the tests
    assert json.loads(done.stdout)["events"]["pending"] == 1
    assert "lines of the spool cannot be read" in done.stderr
    said = person.says("hook", "status")
    assert (
        f"! {len('no line of ours') + 1} bytes of the spool could not be read as events: look at hooks.rejected" in said
    )
    (person.home / "hooks.rejected").unlink()
    assert "hooks.rejected" not in person.says("hook", "status")


def test_a_folder_of_programs_that_is_none_stops_neither_the_daemon_nor_the_agents(member: AgentUser) -> None:
    (member.home / "agent-handlers").write_text("#!/bin/sh\n")
    with member.daemon() as process:
        member.until_connected()
        assert receivers.run(member.home, "claude", SESSIONS["claude"][0].payload, "--strict").returncode == 0
        member.until(lambda _: "hook events are not handled" in member.home.with_suffix(".log").read_text())
        assert process.poll() is None
        assert "worker: none can start\n" in member.says("hook", "status")
    said = member.fails(1, "agents", "adapters")
    assert f"{member.home / 'agent-handlers'}: this folder of programs cannot be read" in said
    assert "Make it a directory that you can read." in said


def test_what_keeps_events_from_being_handled_is_named_before_there_is_any_event(person: AgentUser) -> None:
    person.home.mkdir(0o700)
    (person.home / "agents.json").write_text('{"\\u009b2J": 1}')
    (person.home / "agent-handlers").write_text("#!/bin/sh\n")
    told = person.says("hook", "status")
    for name in (
        "agents.json: these settings cannot be read",
        "agent-handlers: this folder of programs cannot be read",
    ):
        assert f"! events are kept, but no worker can start to handle them: {person.home}/{name}" in told
    assert all(line.isprintable() for line in told.splitlines())
    findings = json.loads(person.run("doctor", "--json", code=4).stdout)["findings"]
    assert [one["what"] for one in findings if "no worker can start" in one["what"]] == [
        line.removeprefix("! ") + "." for line in told.splitlines() if "no worker can start" in line
    ]


def test_a_report_is_given_up_for_its_age_only_while_the_relay_is_connected(member: AgentUser) -> None:
    """The relay lets nobody in whose clock is wrong, and by a clock that is far ahead every report is old."""
    program = member.home / "agent-handlers" / "no"
    program.parent.mkdir(0o700)
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o700)
    engine = hooks.opened(member.home / DATABASE_NAME, wall_clock)
    event = AgentEvent(id="e", kind=AgentKind.TURN_COMPLETED, agent="claude", session_id="s", at=1, text="x")
    with engine.write() as transaction:
        agent_sessions.follow(transaction, "program:no")
        agent_sessions.tell(transaction, event, wall_clock() - 8 * DAY)
    engine.close()
    home = Home(member.home)
    membership = home.membership()
    assert membership is not None

    def given_up() -> int:
        (one,) = member.json("agents", "adapters")
        return int(one["given_up"])

    def runs() -> int:
        audit = member.home / "agent-handlers.jsonl"
        return len(audit.read_text().splitlines()) if audit.exists() else 0

    home.keep(msgspec.structs.replace(membership, relay=NOWHERE))
    with member.daemon():
        member.until(lambda _: given_up() or runs() == 3)
        assert given_up() == 0
    home.keep(membership)
    with member.daemon():
        member.until(lambda _: given_up() == 1)
    assert "program:no went without 1 report, last " in member.says("hook", "status")
    assert "not delivered within 7 days" in member.says("hook", "status")


def test_a_hook_database_that_is_damaged_stops_neither_the_daemon_nor_the_agents(
    member: AgentUser,
) -> None:
    database = member.home / "hooks.db"
    database.touch(0o600)  # or the daemon would ask who could have written it
    database.write_bytes(b"no database, not at all, only words. " * 60)
    with member.daemon():
        member.until_connected()
        assert receivers.run(member.home, "claude", SESSIONS["claude"][0].payload, "--strict").returncode == 0
    assert "hook events are not handled" in member.home.with_suffix(".log").read_text()
    os.rename(member.home / "hooks.db", member.home / "hooks.db.damaged")
    with member.daemon():
        member.until(lambda _: (member.home / "hooks.db").exists() and member.rows() == [("session_start", "done")])
