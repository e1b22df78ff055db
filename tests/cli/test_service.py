"""A service, run by a real manager of a user's services: installed, killed, told to read its settings, removed.

The manager lives in a mount namespace of its own, in which the system looks as if systemd had started it.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.daemon_service import service_file
from holdfast.device import holder
from holdfast.device.holder import Holder
from holdfast.device.home import Home
from holdfast.device.ipc_link import NoDaemon
from tests.cli.person import PATIENCE_S, Person
from tests.terminal import typed

MANAGER = Path("/lib/systemd/systemd")
_AS_BOOTED = f"mount -t tmpfs none /run/systemd && mkdir /run/systemd/system && exec {MANAGER} --user"


class Services:
    """The services of a user, and commands of that user."""

    def __init__(self, person: Person, place: Path) -> None:
        self._person = person
        ours = {"XDG_RUNTIME_DIR": str(place), "HOME": str(place), "XDG_CONFIG_HOME": str(place / "config")}
        self._environment = {**person.environment, **ours}
        self._environment.pop("DBUS_SESSION_BUS_ADDRESS", None)
        self._manager = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", _AS_BOOTED],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def has_begun(self) -> bool:
        while self._manager.poll() is None:
            if self.systemctl("is-system-running", "--wait").stdout.strip() in {"running", "degraded"}:
                return True
            time.sleep(0.1)
        return False

    def can_confine(self) -> bool:
        confined = (
            "--property=PrivateUsers=yes",
            "--property=ProtectSystem=strict",
            "--property=ProtectHome=read-only",
        )
        return self.inside("systemd-run", "--user", "--wait", "--quiet", *confined, "true").returncode == 0

    def end(self) -> None:
        if self._manager.poll() is None:
            self._manager.terminate()  # it ends all services, and then itself
        try:
            self._manager.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._manager.kill()
            self._manager.wait()

    def systemctl(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return self.inside("systemctl", "--user", *words)

    def holdfast(self, *words: str) -> Any:
        done = self.inside(*self._person.command(*words, "--json"))
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def process(self, unit: str) -> int:
        return int(self.systemctl("show", "--property=MainPID", "--value", unit).stdout)

    def inside(self, *words: str) -> "subprocess.CompletedProcess[str]":
        entered = ["nsenter", "--mount", f"--target={self._manager.pid}", *words]
        return subprocess.run(entered, env=self._environment, capture_output=True, text=True, timeout=PATIENCE_S)


@pytest.fixture
def services(ann: Person) -> Iterator[Services]:
    if os.geteuid() != 0 or not MANAGER.exists() or shutil.which("nsenter") is None:
        pytest.skip("no manager of services can be started here: that takes root and systemd")
    with tempfile.TemporaryDirectory(prefix="hf-") as place:  # a short name: there are sockets in it
        found = Services(ann, Path(place))
        try:
            if not found.has_begun():
                pytest.skip("systemd does not run in this container")
            if not found.can_confine():
                pytest.skip("systemd confines nothing in this container, not even `true`")
            yield found
        finally:
            found.end()


def _until(condition: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.1)


def test_a_service_starts_comes_back_after_kill_9_reads_settings_anew_and_goes(services: Services, ann: Person) -> None:
    installed = services.holdfast("daemon", "install-service", "--persistent")
    assert installed["started"], installed
    unit = Path(installed["file"]).name
    first = services.process(unit)
    assert _answers(ann) == first, "it answers as soon as it is said to be started"
    status = Path(f"/proc/{first}/status").read_text()
    assert "NoNewPrivs:\t1" in status
    assert "Umask:\t0077" in status
    mounts = [line.split()[4:6] for line in Path(f"/proc/{first}/mountinfo").read_text().splitlines()]
    rights = {place: options.split(",")[0] for place, options in mounts}
    assert (rights["/"], rights[str(ann.home)]) == ("ro", "rw"), "it may write into its home and nowhere else"

    os.kill(first, signal.SIGKILL)
    _until(lambda: services.process(unit) not in {0, first})
    second = services.process(unit)
    _until(lambda: _answers(ann) == second)

    (ann.home / "daemon.toml").write_text("[outbox]\nrows_max = 77\n")
    assert services.systemctl("reload", unit).returncode == 0
    _until(lambda: services.holdfast("daemon", "reload")["changed"] == [])
    assert services.process(unit) == second

    assert services.holdfast("daemon", "uninstall-service")["stopped"]
    assert services.process(unit) == 0
    assert not Path(installed["file"]).exists()
    with Home(ann.home).entered(wait_s=0.0):
        pass  # nobody is left in it


def test_a_service_that_cannot_run_is_not_called_started(services: Services, ann: Person) -> None:
    (ann.home / "daemon.toml").write_text("[outbox]\nrows_max = -1\n")
    done = services.inside(*ann.command("daemon", "install-service", "--persistent"))
    assert done.returncode == 5, done.stdout + done.stderr
    assert "has not answered" in done.stderr
    unit = service_file(Home(ann.home), "linux", Path()).name
    assert f"systemctl --user status {unit}" in done.stderr
    shown = services.systemctl("show", "--property=NRestarts,ExecMainStatus", unit).stdout.split()
    assert sorted(shown) == ["ExecMainStatus=2", "NRestarts=0"], "a wrong setting is not tried again"


def _answers(person: Person) -> int | None:
    try:
        with person.client() as client:
            return client.health().pid
    except NoDaemon:
        return None


def test_the_number_of_a_daemon_that_died_keeps_nobody_from_a_service(ann: Person, tmp_path: Path) -> None:
    holder.note(Home(ann.home), Holder(pid=os.getpid(), since=1, socket=str(ann.home / "daemon.sock")))
    assert "worker: none: no daemon runs in this home\n" in ann.says("hook", "status")
    places = {"HOME": "user", "XDG_CONFIG_HOME": "config", "PATH": "nowhere"}
    environment = ann.environment | {name: str(tmp_path / place) for name, place in places.items()}
    done = typed("daemon", "install-service", "--persistent", environment=environment)
    assert (done.returncode, done.stderr) == (0, "")


def test_where_there_is_no_service_manager_the_unit_is_written_and_that_is_said(ann: Person, tmp_path: Path) -> None:
    environment = {
        **{name: value for name, value in ann.environment.items() if name != "XDG_CONFIG_HOME"},
        "HOME": str(tmp_path / "user"),
        "PATH": str(tmp_path / "nowhere"),
    }
    done = subprocess.run(
        ann.command("daemon", "install-service", "--persistent"),
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "there is no systemctl here" in done.stdout
    assert "To start it: systemctl" in done.stdout
