"""What homes make of edits, of what relays bring, and of what relays have forgotten."""

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.device import author as authors
from holdfast.device import feed_documents, feed_relays, feed_views, operations, recover, sending
from holdfast.device.feed_views import RelayView
from holdfast.device.home import Home
from holdfast.device.mesh import OtherRelay
from holdfast.device.operations import Address
from holdfast.protocol import document, sealing
from holdfast.protocol.clock import DEVICES_MAX, VectorClock
from holdfast.protocol.document import DOCUMENT_KIND, Outcome
from holdfast.protocol.event import encode
from holdfast.protocol.history import Kind
from holdfast.protocol.payload import Payload
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import DAY, HOUR, SECOND
from holdfast.protocol.snapshot import Operation
from tests.device.feed_world import AUTHOR, Dwelling, Town
from tests.people import public_key, secret_of
from tests.relay.feed_client import Author as RelayAuthor
from tests.relay.place import Whose


class World:
    """Two homes and a relay."""

    def __init__(self, path: Path) -> None:
        self.town = Town(path, "town")
        self.one, self.other = (Dwelling(path, name, self.town.place.clock) for name in ("one", "other"))
        for home in (self.one, self.other):
            home.add(self.town)

    def meet(self) -> None:
        """Everybody knows everything."""
        for home in (self.one, self.other, self.one, self.other):
            home.meet(self.town)

    def close(self) -> None:
        for home in (self.one, self.other):
            home.check()
            home.close()
        self.town.check()
        self.town.place.engine.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def bodies(home: Dwelling, name: str = "list") -> list[str | None]:
    return sorted((version.body for version in home.client.document(name).versions), key=str)


def refusal(home: Dwelling, name: str, body: str | None, **more: object) -> Refusal:
    with pytest.raises(Refused) as caught:
        asyncio.run(home.client.delete(name, **more) if body is None else home.client.put(name, body, **more))  # type: ignore[arg-type]
    return caught.value.refusal


def outcomes(home: Dwelling) -> list[str | None]:
    return [entry.reason for entry in home.entries(Kind.SNAPSHOT)]


def in_conflict(world: World) -> None:
    """`list` says milk in one home, bread in the other."""
    world.one.edit("list", "milk")
    world.meet()
    world.one.edit("list", "milk!")
    world.other.edit("list", "bread")
    world.meet()


def test_an_edit_in_one_home_is_read_in_the_other(world: World) -> None:
    assert world.one.edit("list", "milk")
    world.meet()
    assert bodies(world.other) == ["milk"]
    assert world.other.edit("list", "milk, bread")
    world.meet()
    assert bodies(world.one) == ["milk, bread"]
    assert outcomes(world.one) == ["edited", "applied"]
    assert outcomes(world.other) == ["applied", "edited"]


def test_a_relay_learns_neither_names_nor_texts(world: World) -> None:
    world.one.edit("a secret name", "a secret text")
    world.meet()
    ((raw, d),) = world.town.place.rows("SELECT event, d FROM snapshot")
    assert b"secret" not in raw
    assert d == document.document_id(AUTHOR, "a secret name")
    assert "secret" not in str(world.town.place.dump())


def test_edits_that_did_not_know_of_each_other_are_a_conflict_in_both_homes(world: World) -> None:
    in_conflict(world)
    for home in (world.one, world.other):
        assert bodies(home) == ["bread", "milk!"]
        assert home.client.document("list").status == "conflict"
        assert refusal(home, "list", "jam") is Refusal.DOCUMENT_CONFLICTED
        assert refusal(home, "list", None) is Refusal.DOCUMENT_CONFLICTED
    assert outcomes(world.one)[-1] == outcomes(world.other)[-1] == "conflict"


def test_a_resolution_knows_of_all_versions_and_counts_one_more(world: World) -> None:
    in_conflict(world)
    before = world.other.client.document("list")
    done = asyncio.run(world.one.client.resolve("list", "milk and bread"))
    merged = {
        device: max(version.clock.get(device, 0) for version in before.versions) for device in done.versions[0].clock
    }
    mine = next(version for version in before.versions if version.body == "milk!")
    own = next(device for device, counter in mine.clock.items() if counter == 2)
    assert done.versions[0].clock == {**merged, own: merged[own] + 1}
    world.meet()
    assert bodies(world.other) == ["milk and bread"]
    assert outcomes(world.one)[-1] == outcomes(world.other)[-1] == "resolved"
    assert world.other.edit("list", "jam")


def test_only_a_conflict_can_be_resolved(world: World) -> None:
    world.one.edit("list", "milk")
    with pytest.raises(Refused) as caught:
        asyncio.run(world.one.client.resolve("list", "jam"))
    assert caught.value.refusal is Refusal.DOCUMENT_NOT_CONFLICTED


def test_a_decision_on_what_is_no_longer_so_changes_nothing(world: World) -> None:
    world.one.edit("list", "milk")
    (seen,) = world.one.client.document("list").versions
    world.meet()
    world.other.edit("list", "bread")
    world.meet()
    assert refusal(world.one, "list", "jam", seen=[seen.id]) is Refusal.DOCUMENT_CHANGED
    assert refusal(world.one, "list", None, seen=[seen.id]) is Refusal.DOCUMENT_CHANGED
    (seen,) = world.one.client.document("list").versions
    asyncio.run(world.one.client.put("list", "jam", seen=[seen.id]))
    assert refusal(world.one, "new", "text", seen=[seen.id]) is Refusal.DOCUMENT_CHANGED
    asyncio.run(world.one.client.put("new", "text", seen=[]))


@pytest.mark.parametrize(
    ("name", "body"),
    [("list", 5), ("list", b"bytes"), ("list", "\udcff"), ("\udcff", "milk"), (5, "milk"), (None, "milk")],
)
def test_what_is_no_text_is_refused_and_changes_nothing(world: World, name: Any, body: Any) -> None:
    world.one.edit("list", "milk")
    before = world.one.rows("SELECT count(*) FROM operation_log")
    assert refusal(world.one, name, body) is Refusal.MALFORMED
    if name != "list":
        for look in (world.one.client.document, world.one.client.history):
            with pytest.raises(Refused):
                look(name)
    assert world.one.rows("SELECT count(*) FROM operation_log") == before
    assert bodies(world.one) == ["milk"]


def test_the_same_text_again_is_no_edit(world: World) -> None:
    world.one.edit("list", "milk")
    before = world.one.rows("SELECT count(*) FROM operation_log")
    world.one.edit("list", "milk")
    assert outcomes(world.one) == ["edited"]
    assert world.one.rows("SELECT count(*) FROM operation_log") == before


def test_a_deletion_reaches_the_other_home(world: World) -> None:
    world.one.edit("list", "milk")
    world.meet()
    assert world.other.edit("list", None)
    world.meet()
    for home in (world.one, world.other):
        assert home.shown() == {}
        assert home.client.document("list").status == "deleted"
        assert refusal(home, "list", None) is Refusal.NOT_FOUND
    assert world.one.edit("list", "milk again")
    world.meet()
    assert bodies(world.other) == ["milk again"]


def test_an_edit_beside_a_deletion_is_a_conflict_and_the_text_is_kept(world: World) -> None:
    world.one.edit("list", "milk")
    world.meet()
    world.one.edit("list", None)
    world.other.edit("list", "milk!")
    world.meet()
    for home in (world.one, world.other):
        found = home.client.document("list")
        assert (found.status, sorted(version.operation for version in found.versions)) == ("conflict", ["del", "put"])


def test_deletions_that_did_not_know_of_each_other_are_no_conflict(world: World) -> None:
    world.one.edit("list", "milk")
    world.meet()
    for home in (world.one, world.other):
        home.edit("list", None)
    world.meet()
    for home in (world.one, world.other):
        assert home.client.document("list").status == "deleted"
        assert len(home.client.document("list").versions) == 2
    assert world.one.edit("list", "new")
    world.meet()
    assert bodies(world.other) == ["new"]


def forget_deletions(world: World) -> None:
    """The relay remembers one deletion: the last one of two others."""
    for name in ("first", "second"):
        world.one.edit(name, "x")
        world.one.edit(name, None)
    world.one.meet(world.town)
    world.town.compact()
    assert world.town.place.rows("SELECT count(*) FROM document WHERE pruned_seq IS NOT NULL") != [(0,)]


def test_a_deleted_document_does_not_return_through_a_home_that_was_away(world: World) -> None:
    world.one.edit("list", "milk")
    world.meet()
    world.one.edit("list", None)
    world.one.meet(world.town)
    world.other.meet(world.town)
    assert world.other.shown() == {}
    assert world.one.shown() == {}


def test_nor_if_the_relay_has_forgotten_the_deletion_by_then(world: World, tmp_path: Path) -> None:
    """The home comes back with a note that its relay no longer has, in any form: it must not take that for a loss."""
    world.one.edit("list", "milk")
    world.meet()
    world.one.edit("list", None)
    forget_deletions(world)
    (before,) = world.other.rows("SELECT seq FROM feed_relay")
    assert world.other.client.document("list").body == "milk"
    world.meet()
    assert world.other.shown() == world.one.shown() == {}
    assert world.other.rows("SELECT status FROM snapshot WHERE name = 'list'") == [("gone",)]
    (entry,) = world.other.entries(Kind.COMPACTED)
    assert (entry.reason, entry.destination_kind, entry.destination_ref) == ("deleted", "feed", public_key(AUTHOR))
    assert world.other.rows("SELECT seq FROM feed_relay") > [before]
    new = Dwelling(tmp_path, "new", world.town.place.clock)
    new.add(world.town)
    new.meet(world.town)
    assert new.shown() == {}
    new.check()
    new.close()


def test_a_document_can_be_made_again_where_its_deletion_was_forgotten(world: World) -> None:
    world.one.edit("list", "milk")
    world.meet()
    world.one.edit("list", None)
    forget_deletions(world)
    world.other.meet(world.town)
    assert world.other.shown() == {}
    assert world.other.edit("list", "bread")
    statuses = world.other.rows("SELECT status FROM snapshot WHERE name = 'list' ORDER BY number")
    assert statuses == [("superseded",), ("current",)]
    (version,) = world.other.client.document("list").versions
    assert sorted(version.clock.values()) == [1, 1]  # it knew of the note that is gone
    world.meet()
    for home in (world.one, world.other):
        assert home.client.document("list").status == "conflict"  # it did not know of the deletion


def test_a_home_that_follows_while_an_old_note_comes_back_does_not_see_it(world: World, tmp_path: Path) -> None:
    """It came after the deletion was forgotten, so nothing that it knows tells it that the note is dead."""
    world.one.edit("list", "milk")
    world.meet()
    world.one.edit("list", None)
    forget_deletions(world)
    new = Dwelling(tmp_path, "new", world.town.place.clock)
    new.add(world.town)
    new.meet(world.town)
    world.other.meet(world.town)
    new.meet(world.town)
    assert new.shown() == {}
    new.check()
    new.close()


def test_who_makes_a_document_again_without_knowing_of_its_forgotten_deletion_is_told(
    world: World, tmp_path: Path
) -> None:
    world.one.edit("list", "milk")
    world.one.edit("list", None)
    forget_deletions(world)
    world.other.meet(world.town)
    world.other.edit("list", "bread")
    world.meet()
    for home in (world.one, world.other):
        found = home.client.document("list")
        assert (found.status, sorted(version.operation for version in found.versions)) == ("conflict", ["del", "put"])


def test_a_note_edited_in_a_home_that_was_away_is_no_loss_though_the_deletion_is_forgotten(world: World) -> None:
    world.one.edit("list", "milk")
    world.meet()
    world.one.edit("list", None)
    forget_deletions(world)
    world.other.edit("list", "milk!")
    world.meet()
    for home in (world.one, world.other):
        assert home.client.document("list").status == "conflict"
        assert None in bodies(home)
        assert "milk!" in bodies(home)


@pytest.mark.parametrize("is_other_log", [False, True], ids=["and does not say so", "and says so"])
def test_a_relay_that_lost_everything_gets_it_back(world: World, tmp_path: Path, is_other_log: bool) -> None:
    world.one.edit("list", "milk")
    world.one.edit("gone", "x")
    world.one.edit("gone", None)
    world.meet()
    (tmp_path / "new").mkdir()
    empty = Town(tmp_path / "new", "town", is_other_log=is_other_log)  # the same address and key
    if is_other_log:  # it has got further than the old one had when it was met last
        stranger = RelayAuthor("a stranger", now_s=empty.place.now // SECOND)
        empty.place.expect(201, *(stranger.snapshot(f"{number}", kind=DOCUMENT_KIND) for number in range(20)))
    world.other.edit("list", "bread")
    world.one.meet(empty)
    mine = f"SELECT o FROM snapshot WHERE author = '{public_key(AUTHOR)}' ORDER BY o"
    assert empty.place.rows(mine) == [("del",), ("put",)]
    for home in (world.other, world.one):
        home.meet(empty)
        assert bodies(home) == ["bread"]
        assert home.client.document("gone").status == "deleted"
    empty.check()
    empty.place.engine.close()


def test_a_relay_with_another_key_is_told_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.one.edit("list", "milk")
    world.meet()
    before = world.town.place.relay.head()
    world.one.edit("list", "bread")
    monkeypatch.setattr(Whose, "pubkey", public_key(secret_of("somebody else")))
    with pytest.raises(OtherRelay):
        world.one.meet(world.town)
    assert world.town.place.relay.head() == before


def test_an_edit_of_another_program_under_the_very_clock_of_one_made_here_is_a_conflict_everywhere(
    world: World,
) -> None:
    world.one.edit("list", "milk")
    ((raw,),) = world.one.rows("SELECT event FROM snapshot")
    kept = feed_documents.read_kept(raw)
    content = document.seal_content(
        document.sealing_key(AUTHOR), document.Content(version=1, name="list", body="not milk"), bytes(32)
    )
    other = document.sign_snapshot(AUTHOR, 1, kept.said.d, Operation.PUT, kept.said.clock, content, bytes(32))
    world.town.place.expect(201, other)
    world.meet()
    assert bodies(world.one) == bodies(world.other) == ["milk", "not milk"]
    assert [view.refused for view in relay_views(world.one)] == [0]
    asyncio.run(world.one.client.resolve("list", "milk"))
    world.meet()
    assert bodies(world.other) == ["milk"]


def _fill(world: World, name: str) -> None:
    """Let so many devices edit a document of home one that no further one has a place in its clock."""
    world.one.edit(name, "mine")
    ((clock,),) = world.one.rows("SELECT clock FROM snapshot")
    others = {f"device {number:02}": 1 for number in range(DEVICES_MAX - 1)}
    full = VectorClock(tuple(sorted((dict(feed_documents.read_clock(clock).entries) | others).items())))
    content = document.Content(version=1, name=name, body="everybody's")
    sealed = document.seal_content(document.sealing_key(AUTHOR), content, bytes(32))
    d = document.document_id(AUTHOR, name)
    world.town.place.expect(201, document.sign_snapshot(AUTHOR, 1, d, Operation.PUT, full, sealed, bytes(32)))
    world.meet()
    assert bodies(world.one, name) == bodies(world.other, name) == ["everybody's"]


def test_a_document_whose_clock_is_full_is_edited_only_by_those_who_are_in_it(world: World) -> None:
    _fill(world, "list")
    assert refusal(world.other, "list", "one more") is Refusal.DOCUMENT_FULL
    assert refusal(world.other, "list", None) is Refusal.DOCUMENT_FULL
    assert world.one.edit("list", "mine again")
    world.meet()
    assert bodies(world.other) == ["mine again"]


def test_what_a_home_wrote_after_it_went_back_in_time_is_kept_though_the_clock_is_full(world: World) -> None:
    """Under its old counter it would seem to be known to what the home forgot; and the meeting must not fail for ever."""
    _fill(world, "list")
    copy = world.one.remember()
    for body in ("second", "third"):
        world.one.edit("list", body)
    world.meet()
    world.one.go_back(copy)
    epoch = world.one.device.epoch
    world.one.edit("list", "written since")
    world.meet()
    assert world.one.device.epoch != epoch
    for home in (world.one, world.other):
        shown = {one.name: one.body for one in home.client.documents()}
        assert shown.pop("list") == "third"
        ((name, said),) = shown.items()
        assert (str(name).partition(" ")[0], said) == ("list", "written since")


def relay_views(home: Dwelling) -> list[RelayView]:
    return home.device.look(lambda tx: feed_views.relays(tx, lambda relay: False, {}))


def test_of_the_versions_of_a_document_the_last_ten_that_were_replaced_are_kept(world: World) -> None:
    for number in range(15):
        world.one.edit("list", f"{number}")
    kept = world.one.client.history("list")
    assert [version.body for version in kept] == [f"{number}" for number in range(14, 3, -1)]
    world.meet()
    assert bodies(world.other) == ["14"]


def test_an_edit_never_grows_too_old_to_be_offered_and_hides_nothing_that_does(world: World) -> None:
    """A relay knows a snapshot again for ever, so nobody need give it up; the sender of messages leaves it alone."""
    for number in range(5):
        world.one.edit(f"note {number}", "text")
    device = world.one.device
    to_bob = Address(destination_kind="dm", destination_ref="bob", mesh="mesh", client_message_id="a message")
    device.do(lambda tx: operations.append_message(tx, device.clock(), device.random, Payload(body=b"hi"), to_bob))
    later = device.clock() + 1_000 * DAY
    old = device.look(lambda tx: sending.too_old(tx, later, 3))
    assert [operation.client_message_id for operation in old] == ["a message"]
    due, _ = device.look(lambda tx: feed_relays.waiting(tx, world.town.url, device.clock()))
    device.do(lambda tx: feed_relays.claim(tx, device.clock(), due))
    assert device.look(lambda tx: sending.in_flight(tx, 10)) == []


@pytest.mark.parametrize("table", ["sighting", "operation_log", "feed_relay"])
def test_a_home_that_lost_what_it_knew_of_its_relay_offers_its_edits_all_the_same(world: World, table: str) -> None:
    """As one that was recovered from a damaged file."""
    world.one.edit("list", "milk")
    world.meet()
    world.one.edit("list", "bread")
    world.one.edit("plan", "walk")
    lost = [f"DELETE FROM {table}"]
    if table == "operation_log":  # of which the history knows, so that begins anew, too
        lost = [
            "DELETE FROM operation_log WHERE status = 'pending'",
            "DELETE FROM history",
            "UPDATE history_head SET anchor_seq = seq, anchor_chain = chain",
        ]
    for statement in lost:
        world.one.device.do(lambda tx, statement=statement: tx.run(statement))  # type: ignore[misc]
    if table == "feed_relay":
        world.one.add(world.town)
    world.meet()
    assert (bodies(world.other), bodies(world.other, "plan")) == (["bread"], ["walk"])


def plan(home: Dwelling, statement: str, *parameters: str) -> str:
    asked = home.device.look(lambda tx: tx.rows(f"EXPLAIN QUERY PLAN {statement}", dict.fromkeys(parameters, "")))
    return "; ".join(step[-1] for step in asked)


def test_a_look_at_what_waits_does_not_read_what_was_ever_sent(world: World) -> None:
    due = ("relay", "now", "wait_max", "limit")
    for name, parameters in (("waiting", due), ("next_attempt_at", due[:1]), ("count_waiting", due[:1])):
        assert "operation_log_lane" in plan(world.one, feed_relays._SQL[name], *parameters)
    of_document = feed_documents.SQL["waiting_of_document"]
    assert "operation_log_by_object" in plan(world.one, of_document, "object_id"), "nor all that waits for a relay"


def test_a_page_of_documents_is_read_in_the_order_of_an_index(world: World) -> None:
    steps = plan(world.one, feed_documents.SQL["documents"], "after_name", "after_d", "with_deleted", "limit")
    assert "snapshot_name ((name,d)>(?,?))" in steps
    assert "TEMP B-TREE" not in steps
    assert "snapshot_current" in plan(world.one, feed_documents.SQL["count_documents"])


def test_large_documents_travel_in_several_requests(world: World) -> None:
    for number in range(20):
        world.one.edit(f"note {number}", "x" * 40_000)
    due, _ = world.one.device.look(lambda tx: feed_relays.waiting(tx, world.town.url, world.one.device.clock()))
    assert 1 < len(due) < 20
    world.meet()
    assert len(world.other.shown()) == 20


def test_a_recovered_home_fetches_again_what_it_lost(world: World, tmp_path: Path) -> None:
    """What is known of relays survived, and what came from them did not."""
    for name in ("list", "plan"):
        world.other.edit(name, "first")
    world.meet()
    world.one.edit("list", "second")
    world.one.edit("unsent", "first")
    world.one.edit("unsent", "second")
    world.one.device.do(lambda tx: tx.run("DELETE FROM snapshot WHERE name = 'plan' OR status = 'current'"))
    world.one.device.do(lambda tx: tx.run("DELETE FROM operation_log"))
    world.one.device.close()
    home = Home(tmp_path / "recovered")
    home.path.mkdir(mode=0o700)
    world.one.path.rename(home.database)
    recover.recover(home, world.town.place.clock, world.one.random, force=True)
    home.database.rename(world.one.path)
    world.one.open()
    world.meet()
    assert {name: bodies(world.one, name) for name in ("list", "plan", "unsent")} == {
        "list": ["first"],
        "plan": ["first"],
        "unsent": ["first"],
    }
    assert world.one.shown() == world.other.shown()


def test_a_restored_home_counts_its_edits_anew(world: World) -> None:
    world.one.edit("list", "milk")
    (before,) = world.one.client.document("list").versions
    device = world.one.device
    device.do(partial(operations.renew_epoch, now=device.clock(), random=device.random))
    world.one.edit("list", "bread")
    (after,) = world.one.client.document("list").versions
    assert set(before.clock) < set(after.clock)
    assert sorted(after.clock.values()) == [1, 1]


def test_what_is_written_in_a_home_that_went_back_in_time_is_not_taken_for_what_it_wrote_before(world: World) -> None:
    """Its next edit would have the counter of one that it forgot, and would seem to be known to the one after that."""
    world.one.edit("list", "first")
    world.meet()
    copy = world.one.remember()
    for body in ("second", "third"):
        world.one.edit("list", body)
    world.meet()
    world.one.go_back(copy)
    epoch = world.one.device.epoch
    world.one.edit("list", "written since")
    world.one.edit("new", "untouched")
    world.meet()
    assert world.one.device.epoch != epoch
    for home in (world.one, world.other):
        assert bodies(home) == ["third", "written since"]
        assert bodies(home, "new") == ["untouched"]
    assert world.one.entries(Kind.RESTORED)


def test_nor_though_the_relay_of_its_messages_noticed_it_first(world: World) -> None:
    """Then the relay of documents has nothing of the new epoch, and cannot show that the home went back in time."""
    world.one.edit("list", "first")
    world.meet()
    copy = world.one.remember()
    for body in ("second", "third"):
        world.one.edit("list", body)
    world.meet()
    world.one.go_back(copy)
    world.one.edit("list", "written since")
    asyncio.run(world.one.device.take_new_epoch())
    world.meet()
    for home in (world.one, world.other):
        assert bodies(home) == ["third", "written since"]


def test_nor_though_another_relay_that_has_what_it_wrote_noticed_it_first(world: World, tmp_path: Path) -> None:
    far = Town(tmp_path, "far")
    for home in (world.one, world.other):
        home.add(far)
    world.one.edit("list", "first")
    for town in (far, world.town):
        world.one.meet(town)
    copy = world.one.remember()
    for body in ("second", "third"):
        world.one.edit("list", body)
    world.one.meet(far)
    world.one.go_back(copy)
    world.one.edit("list", "written since")
    world.one.meet(world.town)  # which lacks what was forgotten
    asyncio.run(world.one.device.take_new_epoch())
    for _ in range(2):
        for town in (far, world.town):
            for home in (world.one, world.other):
                home.meet(town)
    for home in (world.one, world.other):
        assert bodies(home) == ["third", "written since"]
    far.check()
    far.place.engine.close()


@pytest.mark.parametrize(("forgotten", "since"), [(1, 1), (1, 2), (2, 2), (2, 3), (3, 2), (1, 9), (1, 15), (3, 30)])
def test_nor_though_it_wrote_as_much_since_as_it_forgot(world: World, forgotten: int, since: int) -> None:
    """Then an edit that it forgot and one that it wrote since have one clock, and what came after knew of one of them only."""
    world.one.edit("list", "first")
    world.meet()
    copy = world.one.remember()
    for number in range(forgotten):
        world.one.edit("list", f"forgotten {number}")
    world.meet()
    world.one.go_back(copy)
    for number in range(since):
        world.one.edit("list", f"since {number}")
    world.meet()
    world.meet()
    for home in (world.one, world.other):
        assert bodies(home) == [f"forgotten {forgotten - 1}", f"since {since - 1}"]
    world.other.edit("list", "both")
    world.meet()
    assert bodies(world.one) == bodies(world.other) == ["both"]


def test_edits_under_one_clock_are_set_apart_alike_by_whoever_sees_them(world: World, tmp_path: Path) -> None:
    far = Town(tmp_path, "far")
    world.other.add(far)
    copy = world.one.remember()
    world.one.edit("list", "forgotten")
    world.one.meet(world.town)
    world.one.go_back(copy)
    world.one.add(far)
    world.one.edit("list", "since")
    world.one.meet(far)
    for town in (far, world.town, far):
        world.other.meet(town)
    assert bodies(world.other) == ["forgotten", "since"]
    world.one.meet(world.town)
    assert world.one.shown() == world.other.shown()
    far.check()
    far.place.engine.close()


def test_nor_though_another_relay_has_it_already(world: World, tmp_path: Path) -> None:
    far = Town(tmp_path, "far")
    for home in (world.one, world.other):
        home.add(far)
    world.one.edit("list", "first")
    world.one.meet(far)
    copy = world.one.remember()
    for body in ("second", "third"):
        world.one.edit("list", body)
    world.one.meet(far)
    world.one.go_back(copy)
    world.one.edit("list", "written since")
    world.one.meet(world.town)  # which has seen nothing of what is forgotten
    for _ in range(2):
        for town in (far, world.town):
            for home in (world.one, world.other):
                home.meet(town)
    for home in (world.one, world.other):
        assert bodies(home) == ["third", "written since"]
    far.check()
    far.place.engine.close()


def test_a_home_that_went_back_in_time_and_wrote_nothing_just_catches_up(world: World) -> None:
    world.one.edit("list", "first")
    world.meet()
    copy = world.one.remember()
    world.one.edit("list", "second")
    world.one.meet(world.town)
    world.one.go_back(copy)
    world.meet()
    assert bodies(world.one) == bodies(world.other) == ["second"]
    world.one.edit("list", "third")
    world.meet()
    assert bodies(world.one) == bodies(world.other) == ["third"]


def test_an_edit_that_was_dated_ahead_by_a_wrong_clock_travels_when_the_clock_is_right(world: World) -> None:
    world.one.ahead = 30 * DAY
    world.one.edit("list", "milk")
    world.one.meet(world.town)
    assert world.one.waiting() == 1
    world.one.edit("other", "text")
    world.one.ahead = 0
    world.one.edit("now", "text")
    world.meet()
    assert world.other.shown().keys() == {"now", "list", "other"}
    assert bodies(world.other) == ["milk"]
    world.town.place.now += 31 * DAY
    world.meet()
    assert world.one.waiting() == 0
    assert world.other.shown() == world.one.shown()


def test_an_edit_dated_ahead_that_was_replaced_so_often_that_it_is_trimmed_just_waits(world: World) -> None:
    world.one.ahead = 30 * DAY
    world.one.edit("list", "milk")
    world.one.ahead = 0
    for number in range(feed_documents.VERSIONS_KEPT + 2):
        world.one.edit("list", f"milk and {number}")
    world.meet()
    assert bodies(world.other) == bodies(world.one) == [f"milk and {feed_documents.VERSIONS_KEPT + 1}"]
    world.town.place.now += 31 * DAY
    world.meet()
    assert world.one.waiting() == 0


def test_one_edit_that_has_to_wait_holds_up_no_other(world: World) -> None:
    world.one.ahead = HOUR
    world.one.edit("list", "milk")
    world.one.meet(world.town)
    world.one.edit("other", "text")
    world.one.ahead = 0
    world.town.place.now += 30_000_000
    world.one.edit("now", "text")
    world.one.meet(world.town)
    world.other.meet(world.town)
    assert "now" in world.other.shown()


def test_a_snapshot_that_is_not_the_authors_own_is_passed_over(world: World) -> None:
    stranger = secret_of("a stranger")
    content = document.seal_content(
        document.sealing_key(stranger), document.Content(version=1, name="list", body="forged"), bytes(32)
    )
    clock = document.successor([], "device")
    forged = document.sign_snapshot(stranger, 1, "d", Operation.PUT, clock, content, bytes(32))
    with pytest.raises(Refused):
        feed_documents.read_arrived(encode(forged), public_key(AUTHOR))
    changed = json.loads(encode(forged))
    changed["pubkey"] = public_key(AUTHOR)
    with pytest.raises(Refused):
        feed_documents.read_arrived(json.dumps(changed).encode(), public_key(AUTHOR))


def arrive(home: Dwelling, d: str, plaintext: bytes) -> str:
    """A snapshot that another program made with the author's key, in its own form; says its id."""
    sealed = sealing.seal(document.sealing_key(AUTHOR), plaintext, bytes(range(32)))
    clock = document.successor([], "another program")
    event = document.sign_snapshot(AUTHOR, 1, d, Operation.PUT, clock, sealed, bytes(32))
    arrived = feed_documents.read_arrived(encode(event), public_key(AUTHOR))
    author = home.device.look(authors.need)
    (ruling,) = home.device.do(lambda tx: feed_documents.apply(tx, 1, author, [arrived]))
    assert ruling is not None
    assert ruling.outcome is Outcome.APPLIED
    return event.id


def test_what_cannot_be_opened_is_kept_and_stands_in_the_way_of_nothing(world: World) -> None:
    for d in ("a note", "a/b", "a/b/c"):
        arrive(world.one, d, b'{"markdown":"# hi"}')
    found = world.one.client.document("a note")
    assert (found.name, found.status, found.body, found.versions[0].readable) == (None, "ok", None, False)
    world.one.edit("list", "milk")
    pages = [world.one.device.look(lambda tx: feed_views.page(tx, limit=1))]
    while (after := pages[-1].next_after) is not None:
        pages.append(world.one.device.look(partial(feed_views.page, after=after, limit=1)))
    assert [one.id for page in pages for one in page.documents][:3] == ["a note", "a/b", "a/b/c"]
    assert len(world.one.client.documents()) == 4
    world.meet()
    assert bodies(world.other) == ["milk"]


def test_nobody_replaces_unawares_what_cannot_be_read(world: World) -> None:
    """A newer program may have written it: an edit on top of it would be its end."""
    event_id = arrive(world.one, document.document_id(AUTHOR, "list"), b'{"version":2,"name":"list","rich":[]}')
    assert refusal(world.one, "list", "milk") is Refusal.UNREADABLE
    assert refusal(world.one, "list", None) is Refusal.UNREADABLE
    asyncio.run(world.one.client.put("list", "milk", seen=[event_id]))
    assert bodies(world.one) == ["milk"]


def test_an_author_is_made_once_and_never_replaced(tmp_path: Path, world: World) -> None:
    first = asyncio.run(world.one.client.init())
    assert asyncio.run(world.one.client.init()) == first
    assert first.pubkey == public_key(AUTHOR)


def test_a_checkpoint_never_goes_back(world: World) -> None:
    world.one.edit("list", "milk")
    world.meet()
    device, author = world.one.device, world.one.device.look(authors.need)
    (known,) = device.look(feed_relays.load)
    assert known.log_id is not None
    device.do(lambda tx: feed_relays.follow(tx, 1, device.random, author, known.relay, known.log_id or b"", 0, []))
    assert device.look(feed_relays.load) == [known]
