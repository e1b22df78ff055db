"""`holdfast doctor`: what is wrong with a home, its relay, its hooks or its lake, and what to do about each."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from holdfast.cli.at_home import AtHome, find_home
from holdfast.cli.doctor_checks import CHECKS, Finding, Patient, State
from holdfast.cli.output import AsJson, ExitCode, console, plain, print_json
from holdfast.store import faults, files

_SIGNS = {State.OK: "✓", State.NOTE: "·", State.AWAY: "!", State.WRONG: "✗"}
_STYLES = {State.OK: "green", State.NOTE: "none", State.AWAY: "yellow", State.WRONG: "bold red"}
_AREA_CHARACTERS = 8


def doctor(
    home: AtHome = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="A relay's directory. Default: HOME/relay, if there.")
    ] = None,
    lake: Annotated[Path | None, typer.Option("--lake", metavar="DIR", help="A lake, too.")] = None,
    thorough: Annotated[
        bool,
        typer.Option("--thorough", help="Check every rule and hash of the databases; of large ones this takes long."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Examine this home: modes, daemon, relay, clock, disk, hooks, Java, and a lake. Each finding says what to do.

    Exit code 4 if something is wrong, 5 if something only does not run or answer, 0 if all is well.
    """
    patient = Patient(find_home(home), data=data, lake=lake, is_thorough=thorough, environment=dict(os.environ))
    findings = examine(patient)
    if as_json:
        print_json({"ok": _code(findings) is ExitCode.OK, "findings": msgspec.to_builtins(findings)})
    else:
        _print(findings)
    raise typer.Exit(_code(findings))


def examine(patient: Patient) -> list[Finding]:
    """What every check found, in the order of the table, each thing once; a check that fails has found that."""
    found = [finding for area, check in CHECKS for finding in _examined(patient, area, check(patient))]
    first = {finding.what: finding for finding in reversed(found)}  # a file that many checks read is broken once
    return [finding for finding in found if first[finding.what] is finding]


def _examined(patient: Patient, area: str, found: Iterable[Finding]) -> list[Finding]:
    findings: list[Finding] = []
    try:
        for one in found:
            findings.append(msgspec.structs.replace(one, area=area))  # noqa: PERF401 - what came before a fault counts
    except faults.Fault as fault:
        findings.append(_fault(fault, area))
    except OSError as error:  # what we may not even look at
        findings.append(_fault(files.meaning(error, Path(error.filename or patient.home.path)), area))
    return findings


def _fault(fault: faults.Fault, area: str) -> Finding:
    what = f"{fault.where}: {fault.what}{f' ({fault.detail})' if fault.detail else ''}."
    return Finding(State.AWAY if fault.temporary else State.WRONG, what, fault.remedy, area)


def _code(findings: Sequence[Finding]) -> ExitCode:
    states = {finding.state for finding in findings}
    if State.WRONG in states:
        return ExitCode.VIOLATION
    return ExitCode.UNAVAILABLE if State.AWAY in states else ExitCode.OK


def _print(findings: Sequence[Finding]) -> None:
    for finding in findings:
        line = f"{_SIGNS[finding.state]} {finding.area:<{_AREA_CHARACTERS}}{plain(finding.what)}"
        console().print(line, style=_STYLES[finding.state])
        if finding.remedy:
            console().print(f"  {'':<{_AREA_CHARACTERS}}→ {plain(finding.remedy)}")
