"""`holdfast daemon install-service|uninstall-service`: have the system start the daemon, and again when it fails.

A systemd unit of the user, or a launchd agent; one for each home. It may write into the home and nowhere else, and it is not started
again where starting again does not help.
"""

import hashlib
import os
import plistlib
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import ci
from holdfast.cli import session as sessions
from holdfast.cli.at_home import AtHome, find_home
from holdfast.cli.output import AsJson, ExitCode, Failure, console, plain, print_json
from holdfast.device import holder
from holdfast.device.home import Home
from holdfast.device.ipc_link import NoDaemon
from holdfast.device.mesh import NoMesh
from holdfast.store import files

MEMORY_MAX = "512M"
TASKS_MAX = 128
OPEN_FILES_MAX = 4096
RESTART_S = 5
STARTS_MAX = 5  # in
STARTS_INTERVAL_S = 300
STOP_TIMEOUT_S = 30  # more than the daemon gives to what is under way
COMMAND_TIMEOUT_S = 30.0
ANSWER_TIMEOUT_S = 30.0
ANSWER_POLL_S = 0.1
_NO_NAMESPACE = {217, 226}  # systemd's own codes: it could not make the namespaces that a unit asks for
LABEL = "holdfast-daemon"

_UNIT = """\
# Made by `holdfast daemon install-service`; `holdfast daemon uninstall-service` removes it.
[Unit]
Description=Holdfast daemon of {home}
Documentation=man:systemd.service(5)
StartLimitIntervalSec={starts_interval_s}
StartLimitBurst={starts_max}

[Service]
Type=exec
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec={restart_s}
# 6: somebody has to decide something. 2: a setting is wrong. 3: the home is in no mesh. Starting it again would change none of it.
RestartPreventExitStatus={ended} {usage} {not_found}
TimeoutStopSec={stop_timeout_s}
KillSignal=SIGTERM
UMask=0077
LimitNOFILE={open_files_max}
TasksMax={tasks_max}
MemoryMax={memory_max}
# Of a user's manager, what follows about files needs a user namespace of its own.
PrivateUsers={confined}
NoNewPrivileges=yes
PrivateTmp={private_tmp}
ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths={home_path}
ProtectControlGroups=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native

[Install]
WantedBy=default.target
"""

NoStart = Annotated[bool, typer.Option("--no-start", help="Do not start it.")]
NoStop = Annotated[bool, typer.Option("--no-stop", help="Let the daemon that runs go on.")]


def install_service(
    home: AtHome = None, no_start: NoStart = False, persistent: ci.Persistent = False, as_json: AsJson = False
) -> None:
    """Have the system run this home's daemon: now, at every login, and again when it fails."""
    ci.refuse(os.environ, persistent=persistent)
    found = find_home(home)
    with sessions.failures(found):
        if found.membership() is None:
            raise NoMesh
        path = service_file(found, sys.platform, Path.home())
        if not no_start and not path.exists():
            _check_free(found)
        _write(path, service_text(found, sys.platform, sys.executable))
    trouble = None if no_start else _start(found, path)
    is_confined = sys.platform != "darwin" and "PrivateUsers=yes" in path.read_text()
    done = {"file": str(path), "started": not no_start and trouble is None, "confined": is_confined}
    if as_json:
        print_json(done if trouble is None else {**done, "trouble": trouble})
        return
    if trouble is not None:
        console().print(plain(trouble))
    console().print(f"{path} is written" + (" and started" if done["started"] else ""))
    if not done["started"]:
        console().print("To start it: " + " && ".join(" ".join(words) for words in _start_commands(path, sys.platform)))
    if sys.platform != "darwin":
        if not is_confined:
            console().print("No user namespaces are to be had here: it may write wherever you may.")
        console().print("To run it while nobody is logged in: loginctl enable-linger")


def uninstall_service(home: AtHome = None, no_stop: NoStop = False, as_json: AsJson = False) -> None:
    """Have the system run it no more. The home stays as it is."""
    found = find_home(home)
    path = service_file(found, sys.platform, Path.home())
    if not path.exists():
        raise Failure(ExitCode.NOT_FOUND, "no_service", f"there is no {path}.")
    stopped = not no_stop and _complaint(_stop_commands(path, sys.platform)) is None
    path.unlink()
    files.sync_directory(path.parent)
    if not no_stop and sys.platform != "darwin":
        _complaint([("systemctl", "--user", "daemon-reload")])
    if as_json:
        print_json({"file": str(path), "stopped": stopped})
    else:
        console().print(f"{path} is removed" + (" and the daemon stopped" if stopped else ""))


def _check_free(home: Home) -> None:
    """Refuse to start a service where somebody's daemon works: it would fail, and the daemon would answer in its place."""
    running = holder.working(home)
    if running is not None:
        message = f"a daemon works in {home.path}: process {running.pid}. Stop it with `holdfast daemon down` first."
        raise Failure(ExitCode.UNAVAILABLE, "daemon_running", message)


def service_file(home: Home, platform: str, user_home: Path) -> Path:
    """Where the system looks for it; each home has its own."""
    mark = hashlib.sha256(str(home.path).encode()).hexdigest()[:8]
    if platform == "darwin":
        return user_home / "Library" / "LaunchAgents" / f"{LABEL}-{mark}.plist"
    place = Path(os.environ.get("XDG_CONFIG_HOME") or user_home / ".config")
    return place / "systemd" / "user" / f"{LABEL}-{mark}.service"


def service_text(home: Home, platform: str, python: str, *, is_confined: bool = True) -> str:
    """What the system is told."""
    words = [python, "-P", "-m", "holdfast.cli", "daemon", "run", "--persistent", "--home", str(home.path)]
    if platform == "darwin":
        return _plist(home, words)
    _check_text(home)
    return _UNIT.format(
        home=_specified(str(home.path)),
        home_path=_quoted(str(home.path)),
        command=" ".join(_quoted(word.replace("$", "$$")) for word in words),  # only there is it a variable's sign
        starts_interval_s=STARTS_INTERVAL_S,
        starts_max=STARTS_MAX,
        restart_s=RESTART_S,
        private_tmp="no" if _is_temporary(home.path) else "yes",
        confined="yes" if is_confined else "no",
        ended=ExitCode.ENDED.value,
        usage=ExitCode.USAGE.value,
        not_found=ExitCode.NOT_FOUND.value,
        stop_timeout_s=STOP_TIMEOUT_S,
        open_files_max=OPEN_FILES_MAX,
        tasks_max=TASKS_MAX,
        memory_max=MEMORY_MAX,
    )


def _plist(home: Home, words: list[str]) -> str:
    """launchd knows no exit code that means no: it starts again whatever is not a success, and not too fast."""
    log = str(home.path / "daemon.log")
    return plistlib.dumps(
        {
            "Label": service_file(home, "darwin", Path()).stem,
            "ProgramArguments": [*words, "--log-file", log],  # else nobody would ever put it aside
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": RESTART_S,
            "ExitTimeOut": STOP_TIMEOUT_S,
            "Umask": 0o077,
            "ProcessType": "Background",
            "SoftResourceLimits": {"NumberOfFiles": OPEN_FILES_MAX},
            "StandardErrorPath": log,
        }
    ).decode()


def _check_text(home: Home) -> None:
    if not str(home.path).isprintable():
        raise Failure(ExitCode.USAGE, "usage", f"the path {str(home.path)!r} cannot stand in a unit; use another home.")


def _is_temporary(path: Path) -> bool:
    """Whether it lies where a service with a /tmp of its own would not find it."""
    return any(path.is_relative_to(place) for place in ("/tmp", "/var/tmp"))  # noqa: S108 - nothing is made there


def _quoted(word: str) -> str:
    """A word as systemd reads it: nothing in it is a specifier or the end of the word."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_specified(escaped)}"'


def _specified(text: str) -> str:
    return text.replace("%", "%%")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, text.encode(), 0o644)


def _start_commands(path: Path, platform: str) -> list[tuple[str, ...]]:
    if platform == "darwin":
        return [("launchctl", "load", "-w", str(path))]
    return [("systemctl", "--user", "daemon-reload"), ("systemctl", "--user", "enable", "--now", path.name)]


def _stop_commands(path: Path, platform: str) -> list[tuple[str, ...]]:
    if platform == "darwin":
        return [("launchctl", "unload", "-w", str(path))]
    return [("systemctl", "--user", "disable", "--now", path.name)]


def _start(home: Home, path: Path) -> str | None:
    """What is in the way of it, if anything is. Where no namespaces are to be had, it runs without."""
    commands = _start_commands(path, sys.platform)
    complaint = _complaint(commands)
    if complaint is not None and _exit_status(path) in _NO_NAMESPACE:
        _write(path, service_text(home, sys.platform, sys.executable, is_confined=False))
        complaint = _complaint([_stop_commands(path, sys.platform)[0], *commands])
    if complaint is None and not _answers(home, path):
        raise Failure(ExitCode.UNAVAILABLE, "service_silent", _silent(path, sys.platform))
    return complaint


def _exit_status(path: Path) -> int | None:
    """With what the service's process has ended, as far as systemd knows; none while it runs."""
    if sys.platform == "darwin":
        return None
    shown = _output(("systemctl", "--user", "show", "--property=MainPID,ExecMainStatus", path.name))
    found = dict(line.partition("=")[::2] for line in shown.splitlines())
    return int(found.get("ExecMainStatus") or 0) if found.get("MainPID") == "0" else None


def _answers(home: Home, path: Path) -> bool:
    """Whether the daemon that was started answers; for the system it has started as soon as there is a process."""
    from holdfast.device.client import Client

    until = time.monotonic() + ANSWER_TIMEOUT_S
    while time.monotonic() < until and not _exit_status(path):
        try:
            with Client(home=home.path) as client:
                client.health()
                return True
        except NoDaemon:
            time.sleep(ANSWER_POLL_S)
    return False


def _silent(path: Path, platform: str) -> str:
    look = f"`launchctl list {path.stem}`" if platform == "darwin" else f"`systemctl --user status {path.name}`"
    return (
        f"{path} is written, but the daemon has not answered within {ANSWER_TIMEOUT_S:g} s. {look} says how it is, "
        "`holdfast daemon run` why it does not start; `holdfast daemon uninstall-service` removes the file."
    )


def _complaint(commands: list[tuple[str, ...]]) -> str | None:
    """What the first of them says that did not do what it was to; the rest is not run."""
    for words in commands:
        if shutil.which(words[0]) is None:
            return f"there is no {words[0]} here."
        try:
            done = _asked(words)
        except subprocess.TimeoutExpired:
            return f"{' '.join(words)}: no answer within {COMMAND_TIMEOUT_S:g} s."
        if done.returncode:
            return f"{' '.join(words)}: {done.stderr.strip()}"
    return None


def _output(words: tuple[str, ...]) -> str:
    try:
        return _asked(words).stdout
    except (subprocess.TimeoutExpired, FileNotFoundError):  # there may be no such manager
        return ""


def _asked(words: tuple[str, ...]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, check=False, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)  # noqa: S603 - fixed words
