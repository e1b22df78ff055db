"""What is left of a storm, against the books of those who were in it: nothing acknowledged is lost, nothing came twice or out of order."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli.check import inspect
from holdfast.device import database as device_database
from holdfast.hook import database as hook_database
from holdfast.hook import spool
from holdfast.protocol import keys
from holdfast.protocol.hook_queue import Item
from holdfast.relay import database as relay_database
from holdfast.store import faults
from holdfast.store.engine import Engine, Row
from holdfast.store.world import wall_clock
from tests.crash.storm_people import MARK, TOPIC, Person
from tests.hook.feeder import PROMPT
from tests.hook.receivers import spooled, waiting

if TYPE_CHECKING:
    from tests.crash.storm import Storm

SETTLE_S = 600.0  # for everything to come to its end when nobody is struck any more
LOOK_S = 0.5
MISTAKE_CHARACTERS = 3_000
HOLDFAST = (sys.executable, "-m", "holdfast.cli")

Arrival = tuple[str, str, str]  # recipient, sender and id


def expected(storm: "Storm") -> Counter[Arrival]:
    """What has to arrive, by what senders were told is accepted."""
    names = [person.name for person in storm.people]
    return Counter(
        (recipient, person.name, name)
        for person in storm.people
        for to, name in person.accepted
        for recipient in (set(names) - {person.name} if to == TOPIC else {to})
    )


def settle(storm: "Storm") -> None:
    """Wait until every send is receipted, applied, and every hook event ended and told of; then for all that follows of it.

    The last receipts are sends as well, which have their answers and are handed over, later than what they are for.
    """
    wanted = expected(storm)
    receipts = Counter(sender for _, sender, _ in wanted.elements())
    arrivals = Counter(recipient for recipient, _, _ in wanted.elements())
    for person in storm.people:
        name = person.name
        _until(partial(_device, person, _RECEIPTED), receipts[name], f"{name}: receipts")
        _until(partial(_device, person, _APPLIED), arrivals[name], f"{name}: applied")
        _until(partial(_unheard, person), 0, f"{name}: hook events that no worker has taken in")
        _until(partial(_hooks, person, _UNTOLD), 0, f"{name}: hook events that are open")
        person.finish()
    for person in storm.people:
        _until(partial(_device, person, _UNSENT), 0, f"{person.name}: sends without an answer")
    _until(partial(_relayed, storm, _OPEN), 0, "what is not handed over")


_RECEIPTED = "SELECT count(*) FROM send_receipt WHERE status = 'stored'"
_APPLIED = "SELECT count(*) FROM history WHERE kind = 'applied'"
_UNSENT = "SELECT count(*) FROM operation_log WHERE status IN ('pending', 'inflight')"
_OPEN = "SELECT count(*) FROM delivery WHERE state = 'open'"
_UNTOLD = "SELECT count(*) FROM hook_outbox WHERE ended_at IS NULL OR ended_reported = 0"


def _until(look: Callable[[], list[Row]], wanted: int, what: str) -> None:
    give_up_at, found = time.monotonic() + SETTLE_S, -1
    while found != wanted:
        assert time.monotonic() < give_up_at, f"{what}: {found}, not {wanted}"
        time.sleep(LOOK_S)
        try:
            ((found,),) = look()
        except (faults.Fault, FileNotFoundError):
            continue  # somebody writes just now, or begins another file


def _rows(engine: Engine, statement: str) -> list[Row]:
    try:
        with engine.read() as transaction:
            return transaction.rows(statement)
    finally:
        engine.close()


def _device(person: Person, statement: str) -> list[Row]:
    return _rows(device_database.open_to_read(person.home / "device.db"), statement)


def _hooks(person: Person, statement: str) -> list[Row]:
    return _rows(hook_database.opened(person.home / "hooks.db", wall_clock), statement)


def _unheard(person: Person) -> list[Row]:
    """Whole lines of the spool, and what was said to be kept; half a line at its end is nobody's."""
    left = waiting(person.home)
    lines = spooled(person.home)[-left:].rpartition(b"\n")[0] if left else b""
    known = {number for (number,) in _hooks(person, "SELECT json_extract(payload, '$.n') FROM hook_outbox")}
    records, damaged = spool.parse(lines)
    return [(len(records) + len(damaged) + len(person.hooked - known),)]


def _relayed(storm: "Storm", statement: str) -> list[Row]:
    return _rows(relay_database.open_to_read(_relay(storm)), statement)


def _relay(storm: "Storm") -> str | Path:
    return storm.store or storm.place / "relay-0" / "relay.db"


def files(storm: "Storm") -> None:
    """Every database keeps its rules, and together they have what was promised: all of it, once, in order."""
    for program in storm.programs:
        _, found, mistake = program.log.read_text().partition("Traceback")
        assert not found, (
            f"{program.log.name}: a mistake of its own, which no blow excuses: {mistake[:MISTAKE_CHARACTERS]}"
        )
    assert inspect(_relay(storm)) == ("relay", [])
    taken = _relayed(storm, "SELECT client_message_id FROM history WHERE kind = 'accepted' ORDER BY seq")
    books = {person.name: person for person in storm.people}
    arrived: Counter[Arrival] = Counter()
    for person in storm.people:
        assert inspect(person.home / "device.db") == ("device", [])
        assert inspect(person.home / "hooks.db") == ("hook", [])
        _assert_in_order(f"{person.name} at the relay", person, [name for (name,) in taken])
        came = _device(person, "SELECT sender_name, client_message_id, CAST(body AS TEXT) FROM inbox ORDER BY arrival")
        for sender in books:
            _assert_in_order(
                f"{sender} to {person.name}",
                books[sender],
                [name for who, name, _ in came if who == sender],
                person.name,
            )
        assert all(body == f"{MARK} {name}" for _, name, body in came)
        arrived.update((person.name, sender, name) for sender, name, _ in came)
        assert len(person.applied) == len(set(person.applied))
        _assert_hooks(person)
    assert arrived == expected(storm)


def _assert_in_order(where: str, person: Person, found: list[str], recipient: str | None = None) -> None:
    """Of every destination in the order of the calls, and nothing else."""
    for destination in {to for to, _ in person.accepted}:
        if recipient in (None, destination) or destination == TOPIC:
            names = [name for to, name in person.accepted if to == destination]
            mine = set(names)
            assert [name for name in found if name in mine] == (names if recipient != person.name else []), where


def _assert_hooks(person: Person) -> None:
    """What a receiver said is kept came to its end; what is critical was handled."""
    rows = _hooks(person, "SELECT json_extract(payload, '$.n'), status, event_type, id FROM hook_outbox")
    ends = {number: (status, Item(row_id, event_type).is_critical) for number, status, event_type, row_id in rows}
    assert len(ends) == len(rows)
    assert person.hooked <= ends.keys()
    assert all(status == "done" or (status == "coalesced" and not is_critical) for status, is_critical in ends.values())
    told = Counter(_device(person, "SELECT event_id, kind FROM history WHERE kind LIKE 'hook_%'"))
    assert sum(told.values()) == 2 * len(rows)
    assert set(told.values()) <= {1}


def pipeline(storm: "Storm", **where: Any) -> "subprocess.Popen[bytes]":
    """A run of the pipeline over the relay and every home."""
    token = storm.place / "token"
    if not token.exists():
        words = [*HOLDFAST, "relay", "token", "--data", str(storm.place / "relay-0")]
        made = subprocess.run(words, check=True, capture_output=True)
        token.touch(mode=0o600)
        token.write_bytes(made.stdout)
    devices = [word for person in storm.people for word in ("--device", person.daemon.first["socket"])]
    words = [
        *HOLDFAST,
        "pipeline",
        "run",
        "--relay",
        storm.url,
        "--lake",
        str(storm.place / "lake"),
        "--once",
        "--full",
    ]
    words += ["--token-file", str(token), *devices]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen(words, env=environment, start_new_session=True, **where)


def plan(storm: "Storm") -> Path:
    return storm.place / "lake" / ".holdfast" / "plan.json"


def has_plan(storm: "Storm") -> bool:
    """Whether a run has begun with a batch."""
    return plan(storm).exists()


def lake(storm: "Storm") -> dict[str, int]:
    """Spark's account of the same, taken up from where killed runs left it; says its balance."""
    with (storm.place / "pipeline.log").open("ab") as log:
        code = pipeline(storm, stdout=log, stderr=log).wait()
    assert code == 0, f"{code}: {(storm.place / 'pipeline.log').read_text()[-3_000:]}"
    report, wanted = _asked(storm, "report", "--json"), expected(storm)
    assert report["findings"] == []
    assert report["balance_holds"]
    balance: dict[str, int] = report["balance"]
    assert {name for name, count in balance.items() if count} == {"recipients", "delivered"}, balance
    _asked(storm, "verify", "--json")
    names: dict[str, str] = dict(_relayed(storm, "SELECT member, name FROM member"))
    for question in (_LAKE_DELIVERED, _LAKE_APPLIED):
        rows = _asked(storm, "sql", question, "--json")["rows"]
        found = [(names[one["recipient"]], names[one["sender"]], one["client_message_id"]) for one in rows]
        assert Counter(found) == wanted, question
    assert _asked(storm, "sql", _LAKE_INVERSIONS, "--json")["rows"] == []
    _assert_no_secret(storm)
    return balance


_LAKE_DELIVERED = """
    SELECT recipient, sender, client_message_id FROM message_fate WHERE kind = 'message' AND outcome = 'delivered'
"""
_LAKE_APPLIED = "SELECT recipient, sender, client_message_id FROM applied WHERE outcome = 'applied'"
_LAKE_INVERSIONS = """
    SELECT seq FROM (
        SELECT seq, sequence, lag(sequence) OVER (PARTITION BY sender, epoch, destination_kind, destination_ref ORDER BY seq) AS before
        FROM history WHERE kind = 'accepted'
    ) WHERE before > sequence
"""


def _assert_no_secret(storm: "Storm") -> None:
    """Neither rows nor files of the lake, nor what the pipeline planned and said, have what is nobody's business there."""
    from tests.pipeline import lakes  # which needs Spark's package

    folder = storm.place / "lake"
    rows = lakes.contents(folder, without=())
    seen = {f"rows of {name}": "\n".join(found).encode() for name, found in rows.items()}
    files = [*(path for path in folder.rglob("*") if path.is_file()), *storm.place.glob("plan-*.json")]
    seen |= {str(path): path.read_bytes() for path in (*files, storm.place / "pipeline.log")}
    assert any(b"ann-bob-0" in content for content in seen.values()), "nothing at all can be found there"
    secrets = [MARK.encode(), PROMPT.encode(), (storm.place / "token").read_bytes().strip()]
    for path in [*storm.place.glob("*/*.key"), *storm.place.glob("*/local-token")]:
        text = path.read_text().strip()
        secrets.append(text.encode())
        secrets += [keys.read_nsec(text), keys.read_nsec(text).hex().encode()] if text.startswith("nsec") else []
    assert len(secrets) > 3 + 2 * len(storm.people)
    for secret in secrets:
        assert [where for where, content in seen.items() if secret in content] == []


def _asked(storm: "Storm", *words: str) -> Any:
    done = subprocess.run(
        [*HOLDFAST, "pipeline", *words, "--lake", str(storm.place / "lake")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr or done.stdout
    return json.loads(done.stdout)


def told(storm: "Storm", rounds: int, seed: int, balance: dict[str, int] | None) -> dict[str, Any]:
    """What a storm was, in numbers."""
    return {
        "engine": "postgres" if storm.store else "sqlite",
        "seed": seed,
        "rounds": rounds,
        "blows": dict(sorted(storm.fallen.items())),
        "sends": sum(len(person.accepted) for person in storm.people),
        "unanswered": sum(person.unanswered for person in storm.people),
        "arrivals": expected(storm).total(),
        "hook events": sum(len(person.hooked) for person in storm.people),
        "pipelines killed": storm.pipelines,
        "balance": balance,
    }
