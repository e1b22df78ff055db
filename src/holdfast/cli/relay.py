"""`holdfast relay run`, and the commands of an operator beside it."""

import resource
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from holdfast.cli import relay_data, relay_queues, relay_store
from holdfast.cli.output import ExitCode, Failure
from holdfast.cli.relay_store import Store, settings_of
from holdfast.relay import lock
from holdfast.store import files

OTHER_FILES = 256  # descriptors beside connections: databases, pipes, those who are told that the relay is full

app = typer.Typer(help="Run a relay, and look after one.", no_args_is_help=True)


@app.command()
def run(
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="Where the relay keeps everything; made if missing.")
    ],
    host: Annotated[str | None, typer.Option(help="The address to listen on. Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Default: 7447; 0 takes any that is free.")] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings in TOML. Default: DIR/relay.toml.")
    ] = None,
    store: Store = None,
    open_feed: Annotated[
        bool, typer.Option("--open-feed", help="Take snapshots of any author, and show them to anybody.")
    ] = False,
    lake: Annotated[
        Path | None, typer.Option("--lake", metavar="DIR", help="The lake that the console's audit page reads.")
    ] = None,
) -> None:
    """Run a relay until it is told to stop. The first line on stdout is its address; the log, on stderr, is JSON."""
    chosen = settings_of(data, config, host, port, store)
    if open_feed:
        chosen = msgspec.structs.replace(chosen, feed=msgspec.structs.replace(chosen.feed, open=True))
    files.make_directory(data)
    try:
        with lock.hold(data):
            allow_connections(chosen.limits.connections_max)
            # Servers are large, and every other command starts without them.
            from holdfast.cli.relay_process import serve

            serve(data, chosen, lake)
    except lock.RelayRunning as fault:
        raise Failure(ExitCode.UNAVAILABLE, type(fault).__name__, str(fault)) from fault


app.command("token")(relay_data.token)
app.command("stats")(relay_data.stats)
app.command("queues")(relay_queues.queues)
app.command("moderate")(relay_queues.moderate)
app.command("backup")(relay_data.backup)
app.command("restore")(relay_data.restore)
app.command("migrate")(relay_store.migrate)
app.command("fork")(relay_store.fork)


def allow_connections(connections_max: int) -> None:
    """Ask the system for as many descriptors as the connections need."""
    needed = connections_max + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            message = f"limits.connections_max needs {needed} open files, and the system allows {hard} (ulimit -Hn)"
            raise Failure(ExitCode.USAGE, "too_few_files", f"{message}. Lower the setting, or raise that limit.")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
