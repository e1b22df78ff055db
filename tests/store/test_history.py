"""The history: dense, in order, chained, and prunable only from its beginning."""

import hashlib
import struct
import threading
from collections.abc import Callable

import msgspec
import pytest

from holdfast.protocol.history import Draft, Entry, Kind
from holdfast.store import history
from holdfast.store.check import check
from holdfast.store.engine import Engine
from holdfast.store.migrations import Schema, migrate

SCHEMA = Schema("test", (history.MIGRATION,), (history.CHECKS,), (history.verify,))
LOG_ID = bytes(range(16))
FULL = Draft(
    kind=Kind.ACCEPTED,
    mesh="m",
    message_id="id",
    client_message_id="ours",
    sender="alice",
    epoch=b"e" * 16,
    sequence=7,
    recipient="bob",
    recipients=(("bob", "queued"), ("cäcilie", "full")),
    mentions=("bob", ""),
    destination_kind="dm",
    destination_ref="bob",
    event_id=b"i" * 32,
    size=300,
    was_stored=False,
    reason="",
    detail=b"\x00\xff",
)


@pytest.fixture
def store(engine: Engine) -> Engine:
    migrate(engine, SCHEMA, lambda: 0)
    with engine.write() as transaction:
        history.create(transaction, LOG_ID)
    return engine


def _append(engine: Engine, *drafts: Draft, now: int = 100) -> list[Entry]:
    with engine.write() as transaction:
        return history.append(transaction, now, drafts)


def _entries(engine: Engine, after: int = 0, until: int = 10**9, limit: int = 1000) -> list[Entry]:
    with engine.read() as transaction:
        return history.read(transaction, after, until, limit)


def _head(engine: Engine) -> history.Head:
    with engine.read() as transaction:
        return history.head(transaction)


def _findings(engine: Engine) -> list[tuple[str, str]]:
    return [(finding.check, finding.found) for finding in check(engine, SCHEMA)]


def test_a_new_history_is_at_zero(store: Engine) -> None:
    head = _head(store)
    assert (head.log_id, head.seq, head.anchor_seq) == (LOG_ID, 0, 0)
    assert _entries(store) == []
    assert _findings(store) == []


def test_a_history_is_created_once(store: Engine) -> None:
    with store.write() as transaction:
        history.create(transaction, b"another log id..")
    assert _head(store).log_id == LOG_ID


def test_entries_come_back_as_they_were_appended(store: Engine) -> None:
    appended = _append(store, FULL, Draft(kind=Kind.ADMIN), now=5) + _append(store, FULL, now=6)
    assert _entries(store) == appended
    assert [entry.seq for entry in appended] == [1, 2, 3]
    assert [entry.at for entry in appended] == [5, 5, 6]
    assert msgspec.structs.asdict(FULL).items() <= msgspec.structs.asdict(appended[0]).items()


def test_time_never_goes_back_when_the_clock_does(store: Engine) -> None:
    _append(store, FULL, now=50)
    _append(store, FULL, now=20)
    assert [entry.at for entry in _entries(store)] == [50, 50]


def test_appending_nothing_changes_nothing(store: Engine) -> None:
    before = _head(store)
    assert _append(store) == []
    assert _head(store) == before


def test_entries_of_a_transaction_that_failed_leave_no_hole(store: Engine) -> None:
    with pytest.raises(ZeroDivisionError), store.write() as transaction:
        history.append(transaction, 1, [FULL])
        raise ZeroDivisionError
    assert [entry.seq for entry in _append(store, FULL)] == [1]


def test_a_range_is_read_in_pages(store: Engine) -> None:
    _append(store, *[FULL] * 10)
    assert [entry.seq for entry in _entries(store, after=2, until=8, limit=4)] == [3, 4, 5, 6]
    assert [entry.seq for entry in _entries(store, after=6, until=8, limit=4)] == [7, 8]
    assert [entry.seq for entry in history.walk(store, page_rows=3)] == list(range(1, 11))


def test_writers_in_many_threads_get_dense_positions(store: Engine) -> None:
    def work() -> None:
        for _ in range(25):
            _append(store, FULL, FULL)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [entry.seq for entry in _entries(store)] == list(range(1, 201))
    assert _findings(store) == []


def _chain_by_hand(previous: bytes, entry: Entry) -> bytes:
    """The chain again, from the description in the documentation and none of our code."""

    def field(value: object) -> bytes:
        match value:
            case None:
                return b"\xff\xff\xff\xff"
            case bool():
                value = bytes([value])
            case int():
                value = struct.pack(">q", value)
            case str():
                value = value.encode()
            case tuple():
                flat = [x for item in value for x in (item if isinstance(item, tuple) else (item,))]
                value = b"".join(map(field, flat))
        assert isinstance(value, bytes)
        return struct.pack(">I", len(value)) + value

    names = [
        "seq",
        "at",
        "kind",
        "mesh",
        "message_id",
        "client_message_id",
        "sender",
        "epoch",
        "sequence",
        "recipient",
        "recipients",
        "mentions",
        "destination_kind",
        "destination_ref",
        "event_id",
        "size",
        "was_stored",
        "reason",
        "detail",
    ]
    return hashlib.sha256(previous + b"".join(field(getattr(entry, name)) for name in names)).digest()


def test_the_chain_is_what_the_documentation_says(store: Engine) -> None:
    _append(store, FULL, Draft(kind=Kind.RELAYED, sequence=0), FULL)
    chain = hashlib.sha256(b"holdfast history 1\x00" + LOG_ID).digest()
    for entry in _entries(store):
        chain = _chain_by_hand(chain, entry)
        assert entry.chain == chain
    assert _head(store).chain == chain


def test_the_chain_of_one_entry_has_not_changed() -> None:
    """A published figure: if it moves, old histories no longer verify."""
    from holdfast.protocol.history import genesis, link

    assert link(genesis(LOG_ID), 1, 2, FULL).chain.hex() == GOLDEN


GOLDEN = "1d3bc269854ee07cf865d49cc158b649ef16490710ceb47a65970fb2f6caf7e1"


def _bytes(count: int) -> str:
    """So many bytes, in the words of a migration."""
    return f"CAST('{'0' * count}' AS BLOB)"


Tamper = tuple[str, str]
TAMPERINGS: dict[str, Tamper] = {
    "another time": ("UPDATE history SET at = at + 1 WHERE seq = 3", "chain"),
    "another kind": ("UPDATE history SET kind = 'dead' WHERE seq = 3", "chain"),
    "a kind there is not": ("UPDATE history SET kind = 'lost' WHERE seq = 3", "chain"),
    "another size": ("UPDATE history SET size = size + 1 WHERE seq = 3", "chain"),
    "a text emptied": ("UPDATE history SET reason = NULL WHERE seq = 3", "chain"),
    "a recipient taken out": (
        'UPDATE history SET recipients = \'[["bob","queued"]]\' WHERE seq = 3',
        "chain",
    ),
    "recipients that are no list": ("UPDATE history SET recipients = '{' WHERE seq = 3", "chain"),
    "another detail": ("UPDATE history SET detail = CAST('other' AS BLOB) WHERE seq = 3", "chain"),
    "an entry taken out": ("DELETE FROM history WHERE seq = 3", "history_has_no_holes"),
    "the first entry taken out": ("DELETE FROM history WHERE seq = 1", "history_has_no_holes"),
    "the last entry taken out": ("DELETE FROM history WHERE seq = 5", "head_is_the_last_entry"),
    "all entries taken out": ("DELETE FROM history", "head_is_the_last_entry"),
    "another head": (f"UPDATE history_head SET chain = {_bytes(32)}", "head_is_the_last_entry"),
    "another anchor": (f"UPDATE history_head SET anchor_chain = {_bytes(32)}", "chain"),
    "another log id": (f"UPDATE history_head SET log_id = {_bytes(16)}", "chain"),
    "time going back": ("UPDATE history SET at = 1 WHERE seq = 3", "history_time_never_goes_back"),
    "two entries swapped": (
        """UPDATE history SET seq = -3 WHERE seq = 3;
           UPDATE history SET seq = 3 WHERE seq = 4;
           UPDATE history SET seq = 4 WHERE seq = -3""",
        "chain",
    ),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_tampering_is_found(store: Engine, name: str) -> None:
    statement, expected = TAMPERINGS[name]
    for _ in range(5):
        _append(store, FULL)
    assert _findings(store) == []
    with store.write() as transaction:
        transaction.script(statement)
    assert expected in {check_name for check_name, _ in _findings(store)}


def test_pruning_drops_a_prefix_keeps_an_anchor_and_says_so(store: Engine) -> None:
    _append(store, *[FULL] * 10)
    chain = _entries(store, 5, 6)[0].chain
    with store.write() as transaction:
        history.prune(transaction, 200, through=6)
    head = _head(store)
    assert (head.anchor_seq, head.anchor_chain, head.seq) == (6, chain, 11)
    assert [entry.seq for entry in _entries(store, after=6)] == [7, 8, 9, 10, 11]
    assert _entries(store, after=10)[0].kind is Kind.PRUNED
    assert _findings(store) == []


def test_reading_what_was_pruned_is_an_error_and_not_a_gap(store: Engine) -> None:
    _append(store, *[FULL] * 10)
    with store.write() as transaction:
        history.prune(transaction, 200, through=6)
    with pytest.raises(history.HistoryPruned, match="up to 6 were pruned"):
        _entries(store, after=5)


@pytest.mark.parametrize("through", [0, -1, 11])
def test_only_what_is_there_can_be_pruned(store: Engine, through: int) -> None:
    _append(store, *[FULL] * 10)
    with pytest.raises(ValueError, match="cannot prune"), store.write() as transaction:
        history.prune(transaction, 200, through)
    assert len(_entries(store)) == 10


def test_the_whole_history_can_be_pruned_and_goes_on(store: Engine) -> None:
    _append(store, *[FULL] * 3)
    with store.write() as transaction:
        history.prune(transaction, 200, through=3)
    assert [entry.seq for entry in _append(store, FULL)] == [5]
    assert _findings(store) == []


def test_a_fork_goes_on_under_another_log_id(store: Engine) -> None:
    _append(store, *[FULL] * 3)
    with store.write() as transaction:
        history.fork(transaction, 200, b"n" * 16)
    assert _head(store).log_id == b"n" * 16
    (entry,) = _entries(store, after=3)
    assert entry.kind is Kind.RESTORED
    assert entry.detail[:32] == LOG_ID + b"n" * 16
    assert _findings(store) == []
    with store.write() as transaction:
        transaction.script(f"UPDATE history_head SET log_id = {_bytes(16)}")
    assert _findings(store) == [("chain", "entry 4 belongs to a log of another id")]


Change = Callable[[Draft], Draft]


@pytest.mark.parametrize("field", Draft.__struct_fields__)
def test_every_field_is_covered_by_the_chain(field: str) -> None:
    from holdfast.protocol.history import encode

    other = {
        "kind": Kind.DEAD,
        "recipients": (("bobqueued", ""), ("cäcilie", "full")),  # the same letters, cut elsewhere
        "mentions": ("", "bob"),
        "sequence": -7,
        "size": 301,
        "was_stored": None,
        "reason": None,
        "epoch": None,
    }.get(field, b"other" if isinstance(getattr(FULL, field), bytes) else "other")
    changed = msgspec.structs.replace(FULL, **{field: other})
    assert encode(1, 2, changed) != encode(1, 2, FULL)
