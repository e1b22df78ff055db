"""Where each agent keeps its settings, and what an entry of ours looks like in them."""

import os
import shlex
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from holdfast.protocol import hook_event

COMMAND = Path(__file__).with_name("command.py")
TIMEOUT_S = 10  # more than the spool's lock is ever waited for
CODEX_SESSION_END_TIMEOUT_S = 3  # the most that Codex gives
PASSED_OVER = frozenset({"PostToolBatch"})  # says once more what each PostToolUse has said


class Scope(StrEnum):
    """Whose settings: the user's everywhere, a project's for all who work on it, or the user's for this project."""

    USER = "user"
    PROJECT = "project"
    LOCAL = "local"


_FILES: dict[tuple[str, Scope], tuple[str, ...]] = {
    ("claude", Scope.USER): ("~", ".claude", "settings.json"),
    ("claude", Scope.PROJECT): (".", ".claude", "settings.json"),
    ("claude", Scope.LOCAL): (".", ".claude", "settings.local.json"),
    ("codex", Scope.USER): ("CODEX_HOME", "hooks.json"),
    ("codex", Scope.PROJECT): (".", ".codex", "hooks.json"),
    ("gemini", Scope.USER): ("~", ".gemini", "settings.json"),
    ("gemini", Scope.PROJECT): (".", ".gemini", "settings.json"),
}


class NoSuchScope(Exception):
    """The agent has no settings of this kind."""


def settings_path(agent: str, scope: Scope, directory: Path, environment: Mapping[str, str]) -> Path:
    """The file in which an agent looks for its hooks."""
    if (agent, scope) not in _FILES:
        known = ", ".join(known for name, known in _FILES if name == agent)
        raise NoSuchScope(f"{agent} has no settings of scope {scope}; it has {known}")
    first, *rest = _FILES[agent, scope]
    starts = {".": directory, "~": _user(environment), "CODEX_HOME": _codex_home(environment)}
    return starts[first].joinpath(*rest)


def notify_path(environment: Mapping[str, str]) -> Path:
    """The file in which Codex has its `notify`."""
    return _codex_home(environment) / "config.toml"


def places(directory: Path, environment: Mapping[str, str]) -> list[tuple[str, Scope, Path]]:
    """Every file in which hooks of ours may stand, once: in the user's own directory a project's settings are the user's."""
    found: dict[str, tuple[str, Scope, Path]] = {}
    for agent, scope in _FILES:
        path = settings_path(agent, scope, directory, environment)
        found.setdefault(os.path.realpath(path), (agent, scope, path))
    return list(found.values())


def arguments(agent: str, python: str, home: Path) -> list[str]:
    """The installed command, word by word."""
    return [python, "-I", "-S", str(COMMAND), "--agent", agent, "--home", str(home)]


def command_line(agent: str, python: str, home: Path) -> str:
    """The installed command for a shell. It always ends with 0: some agents stop if the command is missing (code 2)."""
    return f"{shlex.join(arguments(agent, python, home))} || :"


def is_ours(command: object) -> bool:
    """Whether a command is an installed Holdfast command, of any installation of Holdfast."""
    if isinstance(command, list):
        words = [word for word in command if isinstance(word, str)]
    elif isinstance(command, str):
        try:
            words = shlex.split(command)
        except ValueError:
            return False
    else:
        return False
    is_installed = any(word.endswith("/holdfast/hook/command.py") for word in words)
    return is_installed and "--agent" in words


def events(agent: str, allowed: frozenset[str]) -> list[str]:
    """The names of the events to ask an agent for."""
    names = hook_event.NAMES[agent].items()
    return [name for name, kind in names if kind in allowed and name not in PASSED_OVER and name[0].isupper()]


def group(agent: str, event: str, command: str) -> dict[str, Any]:
    """The entry in an agent's settings for one event."""
    handler: dict[str, Any] = {"type": "command", "command": command, "timeout": TIMEOUT_S}
    if agent == "gemini":
        handler |= {"name": "holdfast", "timeout": TIMEOUT_S * 1000}  # milliseconds there
    if agent == "codex" and event == "SessionEnd":
        handler["timeout"] = CODEX_SESSION_END_TIMEOUT_S
    return {"hooks": [handler]}


def _user(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("HOME") or Path.home())


def _codex_home(environment: Mapping[str, str]) -> Path:
    given = environment.get("CODEX_HOME")
    return Path(given) if given else _user(environment) / ".codex"
