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
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import ci
from holdfast.cli import session as sessions
from holdfast.cli.at_home import AtHome, find_home
from holdfast.cli.output import AsJson, ExitCode, Failure, console, plain, print_json
from holdfast.device.home import Home
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
# 6: somebody has to decide something. 2: a setting is wrong. Starting it again would change neither.
RestartPreventExitStatus={ended} {usage}
TimeoutStopSec={stop_timeout_s}
KillSignal=SIGTERM
UMask=0077
LimitNOFILE={open_files_max}
TasksMax={tasks_max}
MemoryMax={memory_max}
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths={home_path}
ProtectKernelTunables=yes
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

NoStart = Annotated[bool, typer.Option("--no-start", help="Write the file, and leave the rest to somebody.")]
AllowCi = Annotated[bool, typer.Option("--allow-ci-persistent", help="In a job of some automation, too.")]


def install_service(
    home: AtHome = None, no_start: NoStart = False, allow_ci_persistent: AllowCi = False, as_json: AsJson = False
) -> None:
    """Have the system run this home's daemon: now, at every login, and again when it fails."""
    ci.refuse(os.environ, persistent=allow_ci_persistent)
    found = find_home(home)
    with sessions.failures(found):
        if not found.exists():
            raise NoMesh
        path = service_file(found, sys.platform, Path.home())
        _write(path, service_text(found, sys.platform, sys.executable))
    started = False if no_start else _run(_start_commands(path, sys.platform))
    if as_json:
        print_json({"file": str(path), "started": started})
        return
    console().print(f"{path} is written" + (" and started" if started else ""))
    if not started:
        console().print("To start it: " + " && ".join(" ".join(words) for words in _start_commands(path, sys.platform)))
    if sys.platform != "darwin":
        console().print("To run it while nobody is logged in: loginctl enable-linger")


def uninstall_service(home: AtHome = None, no_stop: NoStart = False, as_json: AsJson = False) -> None:
    """Have the system run it no more. The home stays as it is."""
    found = find_home(home)
    path = service_file(found, sys.platform, Path.home())
    if not path.exists():
        raise Failure(ExitCode.NOT_FOUND, "no_service", f"there is no {path}.")
    stopped = False if no_stop else _run(_stop_commands(path, sys.platform))
    path.unlink()
    files.sync_directory(path.parent)
    if not no_stop and sys.platform != "darwin":
        _run([("systemctl", "--user", "daemon-reload")])
    if as_json:
        print_json({"file": str(path), "stopped": stopped})
    else:
        console().print(f"{path} is removed" + (" and the daemon stopped" if stopped else ""))


def service_file(home: Home, platform: str, user_home: Path) -> Path:
    """Where the system looks for it; each home has its own."""
    mark = hashlib.sha256(str(home.path).encode()).hexdigest()[:8]
    if platform == "darwin":
        return user_home / "Library" / "LaunchAgents" / f"{LABEL}-{mark}.plist"
    place = Path(os.environ.get("XDG_CONFIG_HOME") or user_home / ".config")
    return place / "systemd" / "user" / f"{LABEL}-{mark}.service"


def service_text(home: Home, platform: str, python: str) -> str:
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
        ended=ExitCode.ENDED.value,
        usage=ExitCode.USAGE.value,
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


def _run(commands: list[tuple[str, ...]]) -> bool:
    """Whether all of them did what they were to."""
    for words in commands:
        if shutil.which(words[0]) is None:
            return False
        try:
            done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)  # noqa: S603 - fixed words
        except subprocess.TimeoutExpired:
            return False
        if done.returncode:
            console().print(f"{' '.join(words)}: {plain(done.stderr.strip())}")
            return False
    return True
