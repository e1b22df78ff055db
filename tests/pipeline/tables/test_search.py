"""What an owner can search, however the history of the device is cut into batches, against a slow twin."""

import unicodedata
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline.search._words import MARKS_MAX, composed
from holdfast.pipeline.searching import Snippet, snippet
from holdfast.pipeline.table import load_search
from holdfast.protocol import payload
from holdfast.protocol.history import Draft, Kind
from tests.pipeline.tables.memory_lake import MemoryLake, Part, Rows, as_time
from tests.pipeline.tables.test_twins import seen
from tests.pipeline.twins import letters
from tests.pipeline.twins.letters import Look
from tests.pipeline.twins.random_world import Log

ORIGIN = "device:mesh-1/ann"
WORDS = (
    "Grüße",
    "grüße",
    "TEA",
    "tea",
    "tea-time",
    "42",
    "naïve",
    "東京",
    "Ünïcode",
    "a",
    "e\u0301t\u00e9",
    "\u1112\u1161\u11ab",
    "a=\u0338b",
    "x_y",
    "…",
    "?!",
)

pytestmark = pytest.mark.timeout(600)  # a session of Spark on a busy machine takes its time


class Desk:
    """A device that gets and sends letters as chance says."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.log = Log(b"L" * 16)
        self.inbox: dict[str, dict[str, Any]] = {}
        self.sent: Rows = []
        self.sealed: dict[str, bytes] = {}
        self.count = 0

    def step(self) -> None:
        self.random.choice([self.get, self.get, self.send, self.open])()

    def get(self, name: str = "") -> None:
        self.count += 1
        client_message_id = name or f"got-{self.count}"
        is_readable = self.random.random() < 0.6
        entry = self.log.say(
            Draft(
                kind=Kind.STORED, event_id=client_message_id.encode(), reason="stored" if is_readable else "unreadable"
            ),
            1,
        )
        body = self.body()
        if not is_readable:
            self.sealed[client_message_id] = body
        who = {"sender": self.random.choice(("ben", "cy")), "sender_name": "Ben", "mesh": "mesh-1"}
        where = {"topic": self.random.choice((None, "news")), "broker_message_id": f"m-{self.count}"}
        self.inbox[client_message_id] = {
            "seq": entry.seq,
            "received_at": as_time(entry.at),
            "client_message_id": client_message_id,
            **who,
            **where,
            "body": body if is_readable else None,
        }

    def open(self) -> None:
        if self.sealed:
            name, body = self.sealed.popitem()
            self.log.say(Draft(kind=Kind.OPENED, event_id=name.encode()), 1)
            self.inbox[name]["body"] = body

    def send(self) -> None:
        self.count += 1
        entry = self.log.say(Draft(kind=Kind.ENQUEUED), 1)
        kind = self.random.choice(("dm", "topic", "admin"))
        meta = self.random.choice((None, b'{"a":1}'))
        blob = payload.encode(payload.Payload(body=self.body(), meta=meta, previous_sequence=self.count))
        where = {"destination_kind": kind, "destination_ref": self.random.choice(("ben", "news"))}
        names = {"client_message_id": f"sent-{self.count}", "broker_message_id": None}
        blob_kept = None if self.random.random() < 0.1 else blob
        self.sent.append({"seq": entry.seq, "enqueued_at": as_time(entry.at), "blob": blob_kept, **where, **names})

    def body(self) -> bytes:
        if self.random.random() < 0.1:
            return b"\xff\xfe tea"
        return " ".join(self.random.choices(WORDS, k=self.random.randint(0, 8))).encode()

    def look(self, after: int) -> Look:
        """What is new after a position, and the tables as they are now."""
        until = len(self.log.entries)
        page = {"origin": ORIGIN, "log_id": self.log.log_id}
        part = Part(ORIGIN, self.log.log_id, after, until, self.log.entries[after:until])
        return Look(part, [{**page, **row} for row in self.inbox.values()], [{**page, **row} for row in self.sent])


def test_messages_and_words_are_what_their_twin_says(spark: SparkSession) -> None:
    desk, looks, after = Desk(Random(4)), [], 0
    for number in range(3):
        if number == 2:  # it is restored: what it got since is told of once more, under another log
            kept = after - 8
            copy = Log(desk.log.log_id, desk.log.entries[:kept], desk.log.entries[kept - 1].chain, desk.log.at)
            desk.log, after = copy.forked(b"M" * 16), kept
            for name in [one for one, row in desk.inbox.items() if row["seq"] > kept]:
                desk.get(name)
            desk.sent = [row for row in desk.sent if row["seq"] <= kept]
        for _ in range(40):
            desk.step()
        looks.append(desk.look(after))
        after = len(desk.log.entries)
    lake = MemoryLake(spark, registry=load_search())
    for look in looks:
        lake.run([look.part], state={"inbox": look.inbox, "sent": look.sent})
    assert lake.breaches == []
    expected = letters.search_message(looks)
    assert {row["direction"] for row in expected} == {"received", "sent"}
    assert seen(lake.rows["search_message"], None) == seen(expected, sorted(expected[0]))
    postings = letters.search_posting(expected)
    assert {"\u00e9t\u00e9", "\ud55c"} <= {row["word"] for row in postings}, "each in the one form that is looked for"
    assert seen(lake.rows["search_posting"], None) == seen(postings, sorted(postings[0]))


FAMILY = "\U0001f468\U0001f3fd\u200d\U0001f469\u200d\U0001f466\ufe0f"  # one picture of seven characters


@pytest.mark.parametrize(
    ("text", "terms", "found"),
    [
        ("We drink tea.", ["tea"], Snippet("We drink tea.", ((9, 12),))),
        ("Tea,\n\ntea", ["tea"], Snippet("Tea, tea", ((0, 3), (5, 8)))),
        ("teapots", ["tea"], Snippet("teapots", ())),
        ("teapots", ["tea*"], Snippet("teapots", ((0, 7),))),
        ("Un Cafe\u0301!", ["caf\u00e9"], Snippet("Un Cafe\u0301!", ((3, 8),))),
        ("cafe\u0301s, 1 x", ["caf\u00e9*", "x"], Snippet("cafe\u0301s, 1 x", ((0, 6), (10, 11)))),
        ("\u1112\u1161\u11ab a=\u0338b", ["\ud55c", "b"], Snippet("\u1112\u1161\u11ab a=\u0338b", ((0, 3), (7, 8)))),
        ("a " * 100 + "tea " + "b " * 100, ["tea"], Snippet("…" + "a " * 19 + "tea " + "b " * 59 + "…", ((39, 42),))),
        ("tea" * 100, ["tea*"], Snippet("tea" * 53 + "t…", ((0, 160),))),
        ("tea " + "b" * 154 + " teapot", ["tea", "teapot"], Snippet("tea " + "b" * 154 + " t…", ((0, 3), (159, 160)))),
        ("tea " + "b" * 155 + "e\u0301\u0323d", ["tea"], Snippet("tea " + "b" * 155 + "…", ((0, 3),))),
        ("e\u0301" * 30 + "-tea", ["tea"], Snippet("…" + "e\u0301" * 20 + "-tea", ((42, 45),))),
        ("tea" + "\u0301" * 300, ["t*"], Snippet("tea" + "\u0301" * 157 + "…", ((0, 160),))),
        (f"tea {FAMILY * 30}", ["tea"], Snippet(f"tea {FAMILY * 22}…", ((0, 3),))),
    ],
)
def test_a_snippet_is_what_stands_around_the_first_match(text: str, terms: list[str], found: Snippet) -> None:
    assert snippet(text, terms) == found


@pytest.mark.timeout(20)
def test_a_letter_with_many_marks_holds_nobody_up() -> None:
    text = "e" + "\u0301\u0323" * 100_000 + " tea"  # the marks in the order in which sorting them takes longest
    assert snippet(text, ["tea"]) == Snippet("…tea", ((1, 4),))


@pytest.mark.parametrize("marks", [1, MARKS_MAX, 5 * MARKS_MAX])
def test_only_marks_past_a_limit_are_composed_apart(marks: int) -> None:
    text = "o e" + "\u0301\u0323" * (marks // 2) + "\u0301" * (marks % 2) + " \u1112\u1161\u11ab"
    whole = unicodedata.normalize("NFC", text)
    assert (composed(text) == whole) == (marks <= MARKS_MAX)
    assert composed(text)[:3] == whole[:3], "the letter itself is composed in any case"
