"""All commands under one name, and the one place where a failure becomes a message and an exit code."""

import errno
import io
import os
import sys
from collections.abc import Mapping, Sequence
from copy import copy
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer
from typer.core import TyperGroup
from typer.models import CommandInfo

from holdfast import __version__
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
    "doctor": "doctor:doctor",
}
"""Every command, in the order of the help page, and where it is: a file of this folder, and in it an app or a function."""

MORE = {
    "daemon": {
        "backup": "daemon_backup:backup",
        "restore": "daemon_backup:restore",
        "accept-host": "daemon_host:accept_host",
        "remint": "daemon_host:remint",
        "install-service": "daemon_service:install_service",
        "uninstall-service": "daemon_service:uninstall_service",
    },
}
"""Commands of a group that are in files of their own, behind those that are in the group's."""


def assembled(words: Sequence[str]) -> typer.Typer:
    """The command line for these words. Only what they name is imported: all of it takes longer than most commands."""
    app = typer.Typer(
        name="holdfast",
        cls=_InOrder,
        epilog="Exit codes: 0 done, 1 error, 2 wrong usage, 3 not found, 4 conflict or violation, 5 not available now, "
        "6 a decision of yours is needed.",
        no_args_is_help=True,
        rich_markup_mode=None,  # plain text: it fits on a screen, and is there at once
        pretty_exceptions_enable=False,  # a bug shows its whole traceback; everything expected is handled below
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_everything)  # or a single command would be the whole program, and take its own name for an argument
    for name in [words[0]] if words and words[0] in COMMANDS else COMMANDS:
        found = _found(COMMANDS[name])
        if isinstance(found, typer.Typer):
            app.add_typer(_group(found, MORE.get(name, {}), words[1:2]), name=name)
        else:
            app.command(name)(found)
    return app


def _found(place: str) -> Any:
    file, _, member = place.partition(":")
    return getattr(import_module(f"holdfast.cli.{file}"), member)


def _group(group: typer.Typer, more: Mapping[str, str], words: Sequence[str]) -> typer.Typer:
    """A group with the one command that is named, or all of them: building each takes time."""
    made = copy(group)
    known = group.registered_commands
    made.registered_commands = [command for command in known if words == [_name(command)]]
    is_named = bool(made.registered_commands) or not more.keys().isdisjoint(words)
    if not is_named:
        made.registered_commands = [*known]
    for name in more if not is_named else more.keys() & set(words):
        made.command(name)(_found(more[name]))
    return made


def _name(command: CommandInfo) -> str | None:
    called = "" if command.callback is None else command.callback.__name__
    return command.name or called.lower().replace("_", "-")


class _InOrder(TyperGroup):
    """The commands of the overview in the order of the table."""

    def list_commands(self, context: Any) -> list[str]:
        return [name for name in COMMANDS if name in self.commands]


def _print_version(asked: bool) -> None:
    if asked:
        print(f"holdfast {__version__}")
        raise typer.Exit


def _everything(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Carries messages between devices and agents, and loses none silently."""


# What a fault means to a script that looks at the exit code only.
_EXIT_CODES: dict[type[faults.Fault], ExitCode] = {
    faults.FileMissing: ExitCode.NOT_FOUND,
    faults.DirectoryMissing: ExitCode.NOT_FOUND,
    faults.Corrupt: ExitCode.VIOLATION,
}


def _exit_code(fault: faults.Fault) -> ExitCode:
    """The exit code of a fault: one that may pass is unavailable, every other that is not in the table is an error."""
    return _EXIT_CODES.get(type(fault), ExitCode.UNAVAILABLE if fault.temporary else ExitCode.ERROR)


_FULL = (errno.ENOSPC, errno.EDQUOT)


def _prepare_streams() -> None:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # whoever started us closed it: nobody wants to read it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open as long as we run
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows a question mark, not a traceback
    if not structlog.is_configured():  # otherwise somebody runs this in a program of theirs
        # What is logged on the way is for people: on stdout it would stand among what a program reads.
        structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))


def run() -> None:
    """Run the command line; expected failures are one line on stderr."""
    _prepare_streams()
    as_json = "--json" in sys.argv
    try:
        try:
            code = assembled(_words())(standalone_mode=not as_json)
            sys.exit(code if isinstance(code, int) else ExitCode.OK)
        finally:
            sys.stdout.flush()  # what cannot be written is found out while somebody can still say so
    except typer.TyperException as wrong:  # only where a program reads it; people get it with the usage
        _stop(ExitCode(wrong.exit_code), "usage", wrong.format_message())
    except Failure as failure:
        _stop(failure.code, failure.kind, str(failure))
    except faults.Fault as fault:
        _stop(_exit_code(fault), type(fault).__name__, str(fault))
    except BrokenPipeError:  # the reader of our output, `head` for one, has seen enough
        _write_no_more()
        sys.exit(ExitCode.ERROR)
    except OSError as error:  # a file that we may not open, where nobody thought of it, or our output is on a full disk
        if error.filename is None and error.errno not in _FULL:
            raise
        from holdfast.store.files import meaning

        where = "what this command prints" if error.filename is None else os.fsdecode(error.filename)
        meant = meaning(error, Path(where))
        _write_no_more()
        _stop(_exit_code(meant), type(meant).__name__, str(meant))
    except KeyboardInterrupt:
        sys.exit(130)


def _write_no_more() -> None:
    """Send stdout to /dev/null: the interpreter would try to flush it at its end, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _words() -> list[str]:
    """What was typed; while a shell completes it, what was typed so far."""
    typed = os.environ.get("_TYPER_COMPLETE_ARGS")
    return sys.argv[1:] if typed is None else typed.split()[1:]


def _stop(code: ExitCode, kind: str, message: str) -> None:
    say_failure(kind, message, as_json="--json" in sys.argv)
    sys.exit(code)
