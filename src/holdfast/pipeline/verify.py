"""Does the lake still hold what its certificates say? Answered from the rows, without Spark."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
from deltalake.exceptions import DeltaError

from holdfast.pipeline import balance, content, records
from holdfast.pipeline.certificate import Certificate
from holdfast.pipeline.digest import Digest
from holdfast.pipeline.lake import VersionMissing
from holdfast.pipeline.shelf import Run, Shelf

_UNREADABLE = (OSError, pa.ArrowException, duckdb.Error, DeltaError, VersionMissing)

BATCHES_TOGETHER = 5_000
"""Certificates of so many batches are in memory at once: a lake that runs every minute has half a million a year."""


@dataclass(frozen=True)
class Part:
    """What is written down about consecutive batches."""

    begins: int  # the place of the first certificate among all, from 1
    certificates: list[Certificate]
    beside: list[dict[str, Any]]  # the number and the time in the row of each certificate
    runs: list[dict[str, Any]]

    def numbered(self) -> list[tuple[int, Certificate]]:
        return list(enumerate(self.certificates, start=self.begins))


def verify(shelf: Shelf, pubkey: str | None = None) -> list[str]:
    """Every difference between the lake and its certificates, one line each; an empty list means that there is none."""
    try:
        last = shelf.last_run()
        certified = shelf.certificate(last.number)
        if certified is None:
            return ["there is no certificate"]
        unsigned = _unsigned(shelf, last, pubkey)
        if unsigned:  # then it does not matter what they say
            return unsigned
        wrong = _written_down(shelf, last)
    except _UNREADABLE as error:
        return [f"the certificates, or the batches that they are of, cannot be read: {_first_line(error)}"]
    return wrong + _contents(shelf, certified)


def _spans(last: Run) -> Iterator[tuple[int | None, int]]:
    """The batches up to the last one, some at a time: after which, and until which."""
    for after in range(0, last.number, BATCHES_TOGETHER):
        yield after or None, min(after + BATCHES_TOGETHER, last.number)


def _parts(shelf: Shelf, last: Run) -> Iterator[Part]:
    """Everything that is written down up to the last batch, in order."""
    begins = 1
    for span in _spans(last):
        part = Part(begins, shelf.certificates(*span), shelf.beside_certificates(*span), shelf.runs(*span))
        yield part
        begins += len(part.certificates)


def _unsigned(shelf: Shelf, last: Run, pubkey: str | None) -> list[str]:
    """Certificates that their key has not signed, or that are of another key than the named one, or than the first."""
    unsigned: list[str] = []
    others: list[str] = []
    certificates = chain.from_iterable(shelf.certificates(*span) for span in _spans(last))
    for number, one in enumerate(certificates, start=1):
        pubkey = pubkey or one.pubkey
        if not one.is_signed():
            unsigned.append(f"certificate {number} is not signed by its key")
        if one.pubkey != pubkey:
            others.append(f"certificate {number} is of the key {one.pubkey}, not {pubkey}")
    return unsigned + others


def _written_down(shelf: Shelf, last: Run) -> list[str]:
    """Whether the certificates follow each other, and the rows beside them and in `run` are as certified."""
    order: list[str] = []
    beside: list[str] = []
    runs: list[str] = []
    previous: Certificate | None = None
    batches: list[int] = []
    certificates = 0
    for part in _parts(shelf, last):
        order += _order(part, previous)
        beside += _beside(part)
        runs += _runs(part)
        previous = part.certificates[-1] if part.certificates else previous
        batches += [row["number"] for row in part.runs]
        certificates += len(part.certificates)
    if previous is not None and previous.said["batch"] != last.number:
        order.append(f"the last batch is {last.number}, the last certificate is of batch {previous.said['batch']}")
    if batches != list(range(1, certificates + 1)):
        runs.insert(0, f"{certificates} batches are certified, and `run` has {len(batches)}, or others than these")
    return order + beside + runs


def _order(part: Part, previous: Certificate | None) -> list[str]:
    """Whether each certificate is of its batch, and names the one before it."""
    wrong = []
    for number, one in part.numbered():
        if one.said["batch"] != number:
            wrong.append(f"certificate {number} is of batch {one.said['batch']}")
        if one.said["previous"] != (None if previous is None else previous.hash):
            wrong.append(f"certificate {number} does not follow the one before it")
        previous = one
    return wrong


def _beside(part: Part) -> list[str]:
    """Whether the number and the time beside each certificate are those in it."""
    wrong = []
    for (number, one), row in zip(part.numbered(), part.beside, strict=True):
        told = {"number": one.said["batch"], "at": records.as_time(one.said["at"])}
        wrong += [
            f"certificate {number}: its {name} in `certificate` is not what was certified"
            for name in told
            if row[name] != told[name]
        ]
    return wrong


def _runs(part: Part) -> list[str]:
    """Whether the rows of `run` are as they were certified."""
    wrong = []
    of_batch = {one.said["batch"]: one for one in part.certificates}
    for row in part.runs:
        if row["number"] in of_batch:
            told = _certified_run(of_batch[row["number"]], row["versions"])
            wrong += [
                f"batch {row['number']}: its {name} in `run` are not what was certified"
                for name in told
                if row[name] != told[name]
            ]
    return wrong


def _certified_run(one: Certificate, versions: list[dict[str, Any]]) -> dict[str, Any]:
    """The row of `run` that a certificate implies; only the version of the table of certificates is taken from the row."""
    own = [pair for pair in versions if pair["table"] == records.CERTIFICATE.name]
    certified = [{"table": name, "version": version} for name, version in one.said["versions"].items()]
    return {
        "at": records.as_time(one.said["at"]),
        "entries": sum(log["until"] - log["after"] for log in one.said["logs"]),
        "ranges": one.ranges,
        "heads": one.heads,
        "versions": sorted([*certified, *own[:1]], key=lambda pair: pair["table"]),
    }


def _contents(shelf: Shelf, last: Certificate) -> list[str]:
    said = last.said
    wrong: list[str] = []
    for name in sorted({*said["digests"], *said.get("files", {})}):  # the oldest certificates have no files
        try:
            wrong += _table(shelf, name, said)
        except _UNREADABLE as error:
            wrong.append(f"{name} cannot be read: {_first_line(error)}")
    if not wrong:  # a count of wrong rows would say nothing
        wrong += _balance(shelf, said)
    return wrong


def _table(shelf: Shelf, name: str, said: Mapping[str, Any]) -> list[str]:
    """Whether a table has the files and the rows that were certified; older certificates list no files of the tables that prove."""
    version, told, listed = said["versions"].get(name), said["digests"].get(name), said.get("files", {}).get(name)
    found = shelf.files(name, version)
    wrong = [f"{name}: {path} is not where the log says" for path in shelf.misplaced(name, version)]
    if told is not None:
        wrong += _rows(name, shelf.digest(name, found), told)
    if listed is not None:
        wrong += _files(name, shelf.lake.root(name), found, listed)
    return wrong


def _rows(name: str, found: Digest, told: Mapping[str, Any]) -> list[str]:
    """Whether a table has the rows that were certified."""
    if found.rows != told["rows"]:
        return [f"{name} has {found.rows} rows, {told['rows']} are certified"]
    return [] if found.text() == told["digest"] else [f"{name}: a value is not what was certified"]


def _files(name: str, root: Path, found: Sequence[Path], listed: str) -> list[str]:
    """Whether a table has the files that were certified, each with the content that its name says."""
    if content.listing(root, found) != listed:
        return [f"{name} has other files than were certified"]
    changed = [path.relative_to(root) for path in found if not content.is_as_named(path)]
    return [f"{name}: {path} is not what was certified" for path in changed]


def _balance(shelf: Shelf, said: Mapping[str, Any]) -> list[str]:
    versions = said["versions"]
    files = {name: shelf.files(name, versions.get(name)) for name in ("history", "message_fate")}
    try:
        found = balance.counted(shelf, {}, files, shelf.rows("fate_open", versions.get("fate_open")))
    except _UNREADABLE as error:
        return [f"the balance cannot be counted: {_first_line(error)}"]
    wrong = [] if found == said["balance"] else [f"the balance is {found}, certified is {said['balance']}"]
    return wrong if balance.holds(found) == said["balance_holds"] else [*wrong, "the balance does not hold"]


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
