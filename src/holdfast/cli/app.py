"""All commands under one name, and the one place where a failure becomes a message and an exit code."""

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import typer

from holdfast.cli.output import ExitCode, Failure, say_failure
from holdfast.store import faults

COMMANDS = {
    "up": "up:up",
    "console": "console:open_console",
    "demo": "demo:demo",
    "relay": "relay:app",
    "daemon": "daemon:app",
    "mesh": "mesh:app",
    "member": "member:app",
    "topic": "topic:app",
    "send": "send:send",
    "inbox": "inbox:app",
    "mentions": "inbox:mentions",
    "trace": "trace:trace",
    "outbox": "outbox:app",
    "feed": "feed:app",
    "hook": "hook:app",
    "agents": "agents:app",
    "pipeline": "pipeline:app",
    "generate": "generate:generate",
    "log": "log:app",
    "check": "check:check",
}
"""Every command, in the order of the help page, and where it is: a file of this folder, and in it an app or a function."""


def assembled(words: Sequence[str]) -> typer.Typer:
    """The command line for these words. Only what they name is imported: all of it takes longer than most commands."""
    app = typer.Typer(
        name="holdfast",
        help="Carries messages between devices and agents, never loses one silently, and can prove it.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,  # a bug shows its whole traceback; everything expected is handled below
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_nothing)  # or a single command would be the whole program, and take its own name for an argument
    for name in [words[0]] if words and words[0] in COMMANDS else COMMANDS:
        file, _, member = COMMANDS[name].partition(":")
        found = getattr(import_module(f"holdfast.cli.{file}"), member)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


def _nothing() -> None:
    """Carries messages between devices and agents, never loses one silently, and can prove it."""


# What a fault means to a script that looks at the exit code only; every other one is an error.
_EXIT_CODES: dict[type[faults.Fault], ExitCode] = {
    faults.FileMissing: ExitCode.NOT_FOUND,
    faults.DirectoryMissing: ExitCode.NOT_FOUND,
    faults.Busy: ExitCode.UNAVAILABLE,
    faults.DiskFull: ExitCode.UNAVAILABLE,
    faults.Corrupt: ExitCode.VIOLATION,
}


def run() -> None:
    """Run the command line; expected failures are one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows a question mark, not a traceback
    try:
        assembled(sys.argv[1:])()
    except Failure as failure:
        _stop(failure.code, failure.kind, str(failure))
    except faults.Fault as fault:
        _stop(_EXIT_CODES.get(type(fault), ExitCode.ERROR), type(fault).__name__, str(fault))
    except BrokenPipeError:  # the reader of our output, `head` for one, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.ERROR)
    except KeyboardInterrupt:
        sys.exit(130)


def _stop(code: ExitCode, kind: str, message: str) -> None:
    say_failure(kind, message, as_json="--json" in sys.argv)
    sys.exit(code)
