"""`holdfast check`: does a database keep all of its rules?"""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from holdfast.cli.output import AsJson, ExitCode, Failure, console, print_json
from holdfast.device.database import SCHEMA as DEVICE
from holdfast.device.home import Home
from holdfast.hook.database import SCHEMA as HOOK
from holdfast.hook.layout import DATABASE_NAME as HOOK_DATABASE
from holdfast.relay.database import SCHEMA as RELAY
from holdfast.relay.database import engine_at
from holdfast.relay.identity import DATABASE as RELAY_DATABASE
from holdfast.store import check as store_check
from holdfast.store import faults, history, migrations
from holdfast.store.finding import Finding

_SCHEMAS = {schema.program: schema for schema in (DEVICE, HOOK, RELAY)}


def check(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A database of ours: a file, or postgresql://….")],
    as_json: AsJson = False,
) -> None:
    """Check every rule of a database, and its hash chain. Reads only; exit code 4 if one is broken."""
    _check_file(path)
    program, findings = inspect(path)
    if as_json:
        print_json(
            {
                "path": path,
                "program": program,
                "ok": not findings,
                "findings": msgspec.to_builtins(findings),
            }
        )
    else:
        for finding in findings:
            console().print(f"✗ {finding.check}: {finding.found}\n  The rule: {finding.rule}")
        if not findings:
            chain = ", and every entry is in its chain" if history.verify in _SCHEMAS[program].walks else ""
            console().print(f"✓ {path}: every rule of a {program} holds{chain}")
    if findings:
        raise typer.Exit(ExitCode.VIOLATION)


def _check_file(path: str) -> None:
    """Refuse a directory, such as a home or a relay's data, and name the databases in it."""
    if not Path(path).is_dir():
        return
    known = (Home(Path(path)).database.name, HOOK_DATABASE, RELAY_DATABASE)
    found = [name for name in known if (Path(path) / name).exists()]
    advice = f"Name a database in it: {', '.join(found)}." if found else "No database of ours is in it."
    raise Failure(ExitCode.USAGE, "usage", f"{path} is a directory. {advice}")


def inspect(path: str | Path) -> tuple[str, list[Finding]]:
    """The program that a database belongs to, and the rules that it breaks."""
    engine = engine_at(path, read_only=True)
    try:
        program = migrations.owner(engine)
        if program not in _SCHEMAS:
            raise faults.NotOurs(engine.where, f"it belongs to a {program}, which this Holdfast does not know")
        schema = _SCHEMAS[program]
        if not migrations.current(engine, schema):
            raise faults.Outdated(engine.where)
        return program, list(store_check.check(engine, schema))
    finally:
        engine.close()
