"""The relay as a process: assembled from its parts, told to stop by signals. Loaded only by whoever runs one."""

import os
import sys
from functools import partial
from pathlib import Path

import structlog

from holdfast.cli import json_log, relay_store, settings_seen
from holdfast.cli.lake_report import lake_report
from holdfast.cli.output import ExitCode, Failure, print_json
from holdfast.cli.process import run, stop_signal
from holdfast.console.relay_console import RelayConsole
from holdfast.export.exporter import Exporter
from holdfast.relay import identity, lock, neighbours
from holdfast.relay.database import EXPORT_READER, engine_at, prepare
from holdfast.relay.relay import VERIFIERS, Relay
from holdfast.relay.service import Service
from holdfast.relay.settings import Settings
from holdfast.relay.verifying import Verifiers
from holdfast.store.engine import Engine
from holdfast.store.world import wall_clock
from holdfast.wire.network import CannotListen, SystemNetwork

_log = structlog.get_logger("holdfast.relay")


def serve(data: Path, chosen: Settings, lake: Path | None = None) -> None:
    """Serve until a signal says otherwise; the console shows what `lake` proves."""
    json_log.configure(chosen.log_level)
    try:
        run(_serve(data, chosen, lake))
    except CannotListen as fault:
        raise Failure(ExitCode.UNAVAILABLE, type(fault).__name__, str(fault)) from fault


async def _serve(data: Path, chosen: Settings, lake: Path | None) -> None:
    engine, relay = open_in(data, chosen)
    exporter = Exporter(engine.where, EXPORT_READER)
    service = Service(relay, exporter)
    pages = with_console(relay, service, lake)
    stop = stop_signal()
    try:
        await service.start(SystemNetwork())
        lock.note_address(data, service.url)
        print_json({"url": service.url})
        sys.stdout.flush()  # whoever started us waits for this line
        _log.info("serving", url=service.url, data=str(data), store=engine.where, pubkey=relay.pubkey, pid=os.getpid())
        await service.run_until(stop)
        _log.info("draining")
    finally:
        pages.end()
        await service.close()
    _log.info("stopped")


def with_console(relay: Relay, service: Service, lake: Path | None) -> RelayConsole:
    """The pages of a relay, served where it is."""
    readers = identity.public_keys(relay.settings.readers)
    report = None if lake is None else partial(lake_report, lake.absolute())
    return RelayConsole(relay, service.app, report=report, readers=readers)


def open_in(data: Path, chosen: Settings) -> tuple[Engine, Relay]:
    """The relay of a data directory; a new one gets its keys."""
    is_new = not (data / identity.OPERATOR_KEY).exists()
    is_other = (data / identity.DATABASE).exists() and not (data / identity.RELAY_KEY).exists()
    found = identity.Identity.load(data, os.urandom, chosen.operators)
    if is_new:
        path = str((data / identity.OPERATOR_KEY).absolute())
        _log.warning("operator key made: whoever has it runs this relay", path=path, pubkey=found.operators[0])
    if is_other:
        path = str((data / identity.RELAY_KEY).absolute())
        _log.warning(
            "relay key made for an older database: homes refuse this relay until the old key is back", path=path
        )
    engine = engine_at(relay_store.where(data, chosen))
    try:
        if engine.is_shared:
            neighbours.refuse_other(engine, found.pubkey)
        prepare(engine, wall_clock, os.urandom)
        if engine.is_shared:
            with engine.write() as transaction:
                neighbours.claim_key(transaction, found.pubkey)
        settings_seen.tell(data, "relay", chosen)
        return engine, Relay(engine, chosen, found, verifiers=Verifiers(VERIFIERS))
    except BaseException:
        engine.close()
        raise
