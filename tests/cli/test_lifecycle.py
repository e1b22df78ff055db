"""A daemon over the years, as real processes: keys, tokens, copies, backups, services, jobs, settings, and what must be refused."""

import json
import logging
import os
import plistlib
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import ci, daemon, daemon_backup
from holdfast.cli.daemon_service import service_file, service_text
from holdfast.cli.output import Failure
from holdfast.cli.rotated_log import RotatedLog, put_aside
from holdfast.device.home import Home
from holdfast.device.settings import LogSettings
from holdfast.protocol.schedule import DAY
from holdfast.store.world import wall_clock
from tests.cli.person import PATIENCE_S, Person, invitation_of
from tests.hook import receivers
from tests.terminal import typed

PASSPHRASE = "a horse, a cork, a nail"


def _until(condition: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


def _told(person: Person, *arguments: object, code: int = 0, **environment: str) -> str:
    done = typed(*arguments, environment={**person.environment, **environment})
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def _json(person: Person, *arguments: object) -> Any:
    return json.loads(_told(person, *arguments, "--json"))


def _ended(person: Person, *arguments: str, code: int, **environment: str) -> str:
    """What a command says that must not go on."""
    done = subprocess.run(
        person.command(*arguments),
        capture_output=True,
        text=True,
        env={**person.environment, **environment},
        timeout=PATIENCE_S,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_home_is_used_for_a_year(ann: Person, ben: Person, tmp_path: Path) -> None:
    """One long story, because processes are dear: a rotation, a backup, a loss, a restore, and the messages around them."""
    file, secret = tmp_path / "ben.backup", tmp_path / "passphrase"
    secret.write_text(PASSPHRASE + "\n")
    assert "others than its owner" in _told(ben, "daemon", "backup", file, "--passphrase-file", secret, code=1)
    secret.chmod(0o600)
    with ann.daemon():
        ann.until_connected(2)
        with ben.daemon("--port", 0):
            ben.until_connected(2)
            before = _json(ben, "daemon", "status")
            rotated = ben.json("member", "rotate-key")
            after = _json(ben, "daemon", "status")
            assert (after["member"], after["pid"]) == (before["member"], before["pid"])
            assert (rotated["was"], rotated["pubkey"]) == (before["member_pubkey"], after["member_pubkey"])
            ben.until_connected()
            token = (ben.home / "local-token").read_text()
            assert _json(ben, "daemon", "rotate-token")["old_until"] > 0
            assert (ben.home / "local-token").read_text() != token
            made = _json(ben, "daemon", "backup", file, "--passphrase-file", secret)
            assert {one["name"] for one in made["files"]} >= {
                "member.key",
                "member-keys.json",
                "home.json",
                "device.db",
            }
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            running = _told(ben, "daemon", "restore", file, "--replace", "--passphrase-file", secret, code=5)
            assert "works in this home" in running
            with ann.client() as client:
                sent = client.send("ben", "after the backup").client_message_id
            # Ben has it, and the relay knows, or it would be new to him and no replay.
            ann.until(lambda client: client.trace(sent)["sent"]["state"] == "delivered")
        shutil.rmtree(ben.home)
        secret.write_text("something else")
        assert "does not open" in _told(ben, "daemon", "restore", file, "--passphrase-file", secret, code=4)
        assert not ben.home.exists()
        secret.write_text(PASSPHRASE)
        restored = ben.json("daemon", "restore", file, "--passphrase-file", secret)
        assert restored["epoch"] != before["epoch"]
        with ben.daemon():
            (again,) = ben.until(lambda client: client.inbox().messages)
            assert (again.body, again.replayed) == ("after the backup", True)
            with ben.client() as client:
                client.send("ann", "here again")
            ann.until(lambda client: [one.body for one in client.inbox().messages] == ["here again"])
    logged = ben.home.with_suffix(".log").read_text() + ann.home.with_suffix(".log").read_text()
    assert "nsec1" not in logged
    assert PASSPHRASE not in logged


def test_a_copy_on_another_machine_is_refused_and_told_what_to_do(ann: Person) -> None:
    here, there = {"HOLDFAST_DAEMON_HOST_ID": "here"}, {"HOLDFAST_DAEMON_HOST_ID": "there"}
    _told(ann, "daemon", "accept-host", code=0, **here)
    said = _ended(ann, "daemon", "run", code=6, **there)
    assert "accept-host" in said
    assert "remint" in said
    said = _told(ann, "daemon", "run", code=2, HOLDFAST_DAEMON_CLONE_POLICY="perhaps", **there)
    assert "HOLDFAST_DAEMON_CLONE_POLICY" in said
    _told(ann, "daemon", "accept-host", code=0, **there)
    (ann.home / "device.db").chmod(0o644)
    said = _ended(ann, "daemon", "run", code=1, **there)
    assert "device.db" in said
    assert "chmod" in said
    (ann.home / "device.db").chmod(0o600)
    _told(ann, "daemon", "remint", "--yes", code=0, **there)
    assert "is in no mesh" in _told(ann, "mesh", "show", code=3)


def test_in_a_job_nothing_is_left_behind(ann: Person, resident: Callable[[str], Person]) -> None:
    job = resident("job")
    in_a_job = {"CI": "true", "HOLDFAST_PERSISTENT": ""}
    for command in ("run", "up"):
        assert "--ephemeral" in _told(ann, "daemon", command, code=2, **in_a_job)
    assert "(CI is set)" in _told(ann, "daemon", "install-service", code=2, **in_a_job)
    assert "HOLDFAST_INVITE" in _told(job, "daemon", "run", "--ephemeral", code=2, **in_a_job)
    invitation = invitation_of(ann)
    with ann.daemon():
        ann.until_connected()
        environment = {**job.environment, **in_a_job, "HOLDFAST_INVITE": invitation}
        with job.home.with_suffix(".log").open("wb") as log:
            working = subprocess.Popen(
                job.command("daemon", "run", "--ttl", "1h"), env=environment, stdout=subprocess.PIPE, stderr=log
            )
        assert working.stdout is not None
        told = json.loads(working.stdout.readline())
        place = Path(told["home"])
        assert place.stat().st_mode & 0o777 == 0o700
        ann.until(lambda client: len([one for one in client.peers().peers if one.status == "active"]) == 2)
        (name,) = [one["name"] for one in _json(ann, "member", "list") if one["name"] != "ann"]
        Person(place).until_connected(2)
        with Person(place).client() as client:
            client.send("ann", "from a job")
        ann.until(lambda client: client.inbox().messages)
        working.send_signal(signal.SIGTERM)
        assert working.wait(PATIENCE_S) == 0, job.home.with_suffix(".log").read_text()
        working.stdout.close()
        assert not place.exists()
        assert not job.home.exists()
        members = _json(ann, "member", "list", "--all")
        assert [one["status"] for one in members if one["name"] == name] == ["revoked"]


def test_settings_are_read_anew_by_command_and_by_signal(ann: Person) -> None:
    (ann.home / "daemon.toml").write_text('log_level = "loud"\n')
    assert "log_level is 'loud'" in _told(ann, "daemon", "run", code=2)
    (ann.home / "daemon.toml").write_text("[outbox]\nrows_max = 50\n")
    log = ann.home.with_suffix(".log")
    with ann.daemon() as process:
        assert _json(ann, "daemon", "reload") == {"changed": []}
        (ann.home / "daemon.toml").write_text("[outbox]\nrows_max = 60\n")
        assert _told(ann, "daemon", "reload") == "changed: outbox.rows_max\n"
        (ann.home / "daemon.toml").write_text("[outbox]\nrows = 60\n")
        assert _told(ann, "daemon", "reload", code=2).endswith("Did you mean outbox.rows_max?\n")
        process.send_signal(signal.SIGHUP)
        _until(lambda: "the settings are not good" in log.read_text())
        (ann.home / "daemon.toml").write_text('log_level = "debug"\n')
        process.send_signal(signal.SIGHUP)
        _until(lambda: "log_level" in log.read_text().partition("settings read anew")[2])
        assert _json(ann, "daemon", "status")["pid"] == process.pid


def test_a_daemon_that_ends_while_it_is_told_to_has_stopped(
    ann: Person, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kill = os.kill
    with ann.daemon() as process:

        def too_late(pid: int, number: int) -> None:
            if number == signal.SIGTERM:
                kill(pid, number)  # somebody else's
                process.wait(PATIENCE_S)
            kill(pid, number)

        monkeypatch.setattr(os, "kill", too_late)
        daemon.down(ann.home, as_json=True)
        assert json.loads(capsys.readouterr().out) == {"stopped": process.pid}


def test_an_age_limit_above_what_the_relay_remembers_ends_the_daemon(ann: Person) -> None:
    (ann.home / "daemon.toml").write_text("[outbox]\nmax_age_hours_override = 8737\n")  # 365 days and not a day less
    assert "at most 8736 with 365 days" in _ended(ann, "daemon", "run", code=6).splitlines()[-1]


def test_a_backup_has_the_adapters_and_every_event_that_agents_told(ann: Person, tmp_path: Path) -> None:
    file, secret = tmp_path / "ann.backup", tmp_path / "passphrase"
    secret.write_text(PASSPHRASE)
    secret.chmod(0o600)
    (ann.home / "agents.json").write_text('{"log": true}')
    receivers.run(ann.home, "claude", {"session_id": "s", "hook_event_name": "SessionStart"})
    spool = ann.home / "hooks.spool"
    spool.rename(spool.with_name("hooks.spool.0123456789abcdef"))  # as a daemon leaves it that dies over a full one
    receivers.run(ann.home, "claude", {"session_id": "s", "hook_event_name": "Stop"})
    _told(ann, "daemon", "backup", file, "--passphrase-file", secret)
    shutil.rmtree(ann.home)
    _told(ann, "daemon", "restore", file, "--passphrase-file", secret)
    assert (ann.home / "agents.json").read_text() == '{"log": true}'
    receivers.take_in(ann.home)
    assert receivers.rows(ann.home) == ["session_start", "agent_stop"]


_DIES_AT_RENAME = """
import os, sys
from pathlib import Path

rename, left = Path.rename, [int(sys.argv.pop(1))]

def renamed(path, target):
    if not left[0]:
        os._exit(9)
    left[0] -= 1
    return rename(path, target)

Path.rename = renamed
from holdfast.cli import main
main()
"""


@pytest.mark.parametrize(("renames", "home"), [(0, "before"), (1, "before"), (2, "before"), (3, "after")])
def test_a_restore_that_dies_between_two_renames_leaves_one_whole_home(
    ann: Person, ben: Person, tmp_path: Path, renames: int, home: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(PASSPHRASE)
    secret.chmod(0o600)
    _told(ann, "daemon", "backup", tmp_path / "file", "--passphrase-file", secret)
    (ben.home / "relay").mkdir()
    (ben.home / "relay" / "relay.db").write_text("its own")
    keys = {"before": (ben.home / "member.key").read_bytes(), "after": (ann.home / "member.key").read_bytes()}
    words = ["daemon", "restore", str(tmp_path / "file"), "--replace", "--passphrase-file", str(secret)]
    command = [sys.executable, "-c", _DIES_AT_RENAME, str(renames), *words]
    assert subprocess.run(command, env=ben.environment, timeout=PATIENCE_S, check=False).returncode == 9 * (renames < 3)
    assert ben.home.exists() == (renames in {0, 3})
    _told(ben, "mesh", "show")
    assert (ben.home / "member.key").read_bytes() == keys[home]
    assert (ben.home / "relay" / "relay.db").read_text() == "its own"


# Services


def test_a_unit_is_what_systemd_takes_and_restarts_only_what_that_helps(tmp_path: Path) -> None:
    home = Home(tmp_path / 'a "home" with %h $x')
    home.path.mkdir()
    text = service_text(home, "linux", sys.executable)
    assert "\nPrivateTmp=yes\n" in service_text(Home(Path("/home/ann/.holdfast")), "linux", sys.executable)
    for line in (
        "Restart=on-failure",
        "RestartPreventExitStatus=6 2 3",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "ProtectHome=read-only",
        "PrivateTmp=no",  # or it would not see its home, which is in /tmp here
        "PrivateUsers=yes",
        "UMask=0077",
    ):
        assert f"\n{line}\n" in text
    unit = tmp_path / "holdfast-daemon-test.service"
    unit.write_text(text)
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not here to be asked")
    asked = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (asked.returncode, asked.stderr) == (0, "")


def test_an_agent_is_what_launchd_takes(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    found = plistlib.loads(service_text(home, "darwin", "/usr/bin/python3").encode())
    assert found["ProgramArguments"][-4:-2] == ["--home", str(home.path)]
    assert found["ProgramArguments"][-2:] == ["--log-file", found["StandardErrorPath"]], "it is put aside as it grows"
    assert found["KeepAlive"] == {"SuccessfulExit": False}
    assert service_file(home, "darwin", tmp_path).name == f"{found['Label']}.plist"


def test_a_service_is_installed_for_one_home_and_removed(ann: Person, ben: Person, tmp_path: Path) -> None:
    place = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "HOME": str(tmp_path)}
    for person in (ann, ben):
        _told(person, "daemon", "install-service", "--no-start", code=0, **place)
    units = sorted((tmp_path / "config" / "systemd" / "user").iterdir())
    assert len(units) == 2
    assert {str(ann.home) in unit.read_text() for unit in units} == {True, False}
    _told(ann, "daemon", "uninstall-service", "--no-stop", code=0, **place)
    (left,) = (tmp_path / "config" / "systemd" / "user").iterdir()
    assert str(ben.home) in left.read_text()
    assert "there is no" in _told(ann, "daemon", "uninstall-service", "--no-stop", code=3, **place)


def test_a_service_does_not_start_beside_a_daemon_that_somebody_has_started(ann: Person, tmp_path: Path) -> None:
    place = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "HOME": str(tmp_path)}
    with ann.daemon() as process:
        said = _told(ann, "daemon", "install-service", "--persistent", code=5, **place)
    assert f"process {process.pid}" in said
    assert "`holdfast daemon down`" in said
    assert not (tmp_path / "config").exists()


# Jobs and logs


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        ({"CI": "true"}, "CI"),
        ({"CI": "1"}, "CI"),
        ({"CI": "false"}, None),
        ({"CI": ""}, None),
        ({"JENKINS_URL": "http://x"}, "JENKINS_URL"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, None),  # a server may well live there
    ],
)
def test_a_job_is_known_by_its_variables(environment: dict[str, str], found: str | None) -> None:
    assert ci.variable_in(environment) == found


def test_a_log_is_put_aside_when_it_is_large_or_old_and_goes_in_the_end(tmp_path: Path) -> None:
    """Through stderr, as a daemon's is: in a process of its own."""
    script = tmp_path / "talker.py"
    script.write_text(_TALKER)
    log = tmp_path / "daemon.log"
    with log.open("ab") as file:
        subprocess.run([sys.executable, str(script), str(log)], stderr=file, check=True, timeout=PATIENCE_S)
    kept = sorted(tmp_path.glob("daemon.log*"))
    assert [path.name for path in kept] == ["daemon.log", "daemon.log.1", "daemon.log.2"]
    numbers = [int(line.split()[1]) for path in reversed(kept) for line in path.read_text().splitlines()]
    assert numbers == list(range(numbers[0], 60_000)), "no line is lost between two files, or cut"
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in kept[:1])
    assert kept[1].stat().st_size < 1_048_576 + 256 * 60


_TALKER = """
import logging, sys
from pathlib import Path
from holdfast.cli.output import Failure
from holdfast.cli.rotated_log import RotatedLog, put_aside
from holdfast.device.settings import LogSettings
from holdfast.store.world import wall_clock
handler = RotatedLog(Path(sys.argv[1]), LogSettings(bytes_max=1_048_576, files_max=2), wall_clock)
logger = logging.getLogger("talker")
logger.addHandler(handler)
for number in range(60_000):
    logger.warning("line %d %s", number, "x" * 40)
"""


def test_an_old_log_is_put_aside_at_the_next_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "daemon.log"
    log.write_text('{"timestamp": "2026-01-01T00:00:00Z"}\n')
    (tmp_path / "daemon.log.1").write_text("old")
    now = 1_767_225_600_000_000  # that moment
    monkeypatch.setattr(os, "dup2", lambda *descriptors: None)
    os.utime(tmp_path / "daemon.log.1", (now // 10**6, now // 10**6))
    handler = RotatedLog(log, LogSettings(days_max=14), lambda: now)
    assert log.read_text().startswith('{"timestamp"')
    now += 15 * DAY
    handler.look()
    assert log.read_text() == ""
    assert (tmp_path / "daemon.log.1").read_text().startswith('{"timestamp"')
    assert (tmp_path / "daemon.log.2").exists() is False, "it was older still"


def test_a_log_that_somebody_took_away_is_begun_anew_and_one_that_cannot_be_disturbs_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "daemon.log"
    log.touch()
    monkeypatch.setattr(os, "dup2", lambda *descriptors: None)
    handler = RotatedLog(log, LogSettings(), wall_clock)
    log.unlink()
    handler.look()
    assert log.exists()
    log.unlink()
    tmp_path.rename(tmp_path.with_name("elsewhere"))
    told: list[logging.LogRecord] = []
    monkeypatch.setattr(handler, "handleError", told.append)
    record = logging.LogRecord("daemon", logging.INFO, "", 0, "a line", None, None)
    for _ in range(256):
        handler.emit(record)
    assert told == [record]


def test_who_follows_a_log_sees_every_line_though_it_is_put_aside(tmp_path: Path) -> None:
    log = tmp_path / "daemon.log"
    log.write_text("1\n")
    command = [sys.executable, "-P", "-m", "holdfast.cli", "daemon", "logs", "--follow", "--home", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        patience = threading.Timer(
            PATIENCE_S, following.kill
        )  # then no line comes any more, rather than one that never does
        patience.start()
        try:
            assert following.stdout.readline() == "1\n"
            for number in range(2, 5):
                with log.open("a") as file:
                    file.write(f"{number}\n")
                put_aside(log, 5)
                log.write_text(f"{number} anew\n")
                assert [following.stdout.readline() for _ in range(2)] == [f"{number}\n", f"{number} anew\n"]
        finally:
            patience.cancel()
            following.kill()


def test_a_log_that_goes_while_its_follower_looks_is_followed_into_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    log, there = tmp_path / "daemon.log", Path.open
    log.write_text("1\n")
    looks: list[str] = []

    def gone_at_first(path: Path, *arguments: Any, **more: Any) -> Any:
        looks.extend(arguments)
        if looks.count("rb") == 2:  # the first one began to follow
            looks.append("rb")
            raise FileNotFoundError(path)
        return there(path, *arguments, **more)

    def wait(seconds: float) -> None:
        if "2" in log.read_text():
            raise KeyboardInterrupt
        put_aside(log, 5)
        log.write_text("2\n")

    monkeypatch.setattr(Path, "open", gone_at_first)
    monkeypatch.setattr(time, "sleep", wait)
    with pytest.raises(KeyboardInterrupt):
        daemon.logs(tmp_path, follow=True)
    assert capsysbinary.readouterr().out == b"1\n2\n"


def test_a_passphrase_that_is_no_text_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(daemon_backup.VARIABLE, "a horse, a c\udcffrk")  # as a byte comes that is not UTF-8
    with pytest.raises(Failure, match="not text"):
        daemon_backup._passphrase(None, is_new=False)
