"""All commands under one name, and the one place where a failure becomes a message and an exit code."""

import io
import os
import sys

import typer

from holdfast.cli import (
    check,
    daemon,
    demo,
    feed,
    generate,
    hook,
    inbox,
    log,
    member,
    mesh,
    outbox,
    pipeline,
    relay,
    send,
    topic,
    trace,
    up,
)
from holdfast.cli.output import ExitCode, Failure, say_failure
from holdfast.store import faults

app = typer.Typer(
    name="holdfast",
    help="Carries messages between devices and agents, never loses one silently, and can prove it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a bug shows its whole traceback; everything expected is handled below
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(log.app, name="log")
app.add_typer(mesh.app, name="mesh")
app.add_typer(member.app, name="member")
app.add_typer(topic.app, name="topic")
app.add_typer(relay.app, name="relay")
app.add_typer(daemon.app, name="daemon")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(inbox.app, name="inbox")
app.add_typer(hook.app, name="hook")
app.add_typer(feed.app, name="feed")
app.add_typer(outbox.app, name="outbox")
app.command("up")(up.up)
app.command("send")(send.send)
app.command("mentions")(inbox.mentions)
app.command("trace")(trace.trace)
app.command("check")(check.check)
app.command("demo")(demo.demo)
app.command("generate")(generate.generate)

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
        app()
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
