"""`holdfast relay run`, and the commands of an operator beside it."""

import asyncio
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import structlog
import typer

from holdfast.cli import json_log, relay_data
from holdfast.cli.output import ExitCode, Failure, print_json
from holdfast.relay import files, identity, lock, settings
from holdfast.relay.database import open_relay
from holdfast.relay.export import Exporter
from holdfast.relay.relay import Relay
from holdfast.relay.service import Service
from holdfast.relay.settings import Settings
from holdfast.store.sqlite import SqliteEngine
from holdfast.wire.network import CannotListen, SystemNetwork

OTHER_FILES = 256  # descriptors beside connections: databases, pipes, those who are told that the relay is full

app = typer.Typer(help="Run a relay, and look after one.", no_args_is_help=True)
app.command("token")(relay_data.token)
app.command("stats")(relay_data.stats)
app.command("backup")(relay_data.backup)
app.command("restore")(relay_data.restore)

_log = structlog.get_logger("holdfast.relay")


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
) -> None:
    """Run a relay until it is told to stop. The first line on stdout is its address; the log, on stderr, is JSON."""
    chosen = _settings(data, config, host, port)
    files.make_directory(data)
    try:
        with lock.hold(data):
            json_log.configure(chosen.log_level)
            _allow_connections(chosen.limits.connections_max)
            asyncio.run(_serve(data, chosen))
    except (lock.RelayRunning, CannotListen) as fault:
        raise Failure(ExitCode.UNAVAILABLE, type(fault).__name__, str(fault)) from fault


def _settings(data: Path, config: Path | None, host: str | None, port: int | None) -> Settings:
    default = data / settings.FILE_NAME
    try:
        loaded = settings.load(config or (default if default.exists() else None), os.environ)
    except settings.SettingsInvalid as invalid:
        raise Failure(ExitCode.USAGE, "settings_invalid", str(invalid)) from invalid
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    return msgspec.structs.replace(loaded, **given)


def _allow_connections(connections_max: int) -> None:
    """Ask the system for as many descriptors as the connections need."""
    needed = connections_max + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            message = f"limits.connections_max needs {needed} open files, and the system allows {hard} (ulimit -Hn)"
            raise Failure(ExitCode.USAGE, "too_few_files", f"{message}. Lower the setting, or raise that limit.")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


async def _serve(data: Path, chosen: Settings) -> None:
    engine, relay = _open(data, chosen)
    exporter = Exporter(engine.where)
    service = Service(relay, exporter)
    stop = _stop_signal()
    try:
        await service.start(SystemNetwork())
        print_json({"url": service.url})
        sys.stdout.flush()  # whoever started us waits for this line
        _log.info("serving", url=service.url, data=str(data), pubkey=relay.pubkey, pid=os.getpid())
        await service.run_until(stop)
        _log.info("draining")
    finally:
        await service.close()
    _log.info("stopped")


def _open(data: Path, chosen: Settings) -> tuple[SqliteEngine, Relay]:
    is_new = not (data / identity.OPERATOR_KEY).exists()
    found = identity.Identity.load(data, os.urandom, chosen.operators)
    if is_new:
        path = str((data / identity.OPERATOR_KEY).absolute())
        _log.warning("operator key made: whoever has it runs this relay", path=path, pubkey=found.operators[0])
    engine = open_relay(data / identity.DATABASE)
    try:
        return engine, Relay(engine, chosen, found)
    except BaseException:
        engine.close()
        raise


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
