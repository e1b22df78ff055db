"""`holdfast outbox`: what was given up is seen, and sent again under a new id, one by one or in bulk."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import outbox
from holdfast.device import operations
from holdfast.device.client import Client
from holdfast.device.operations import Address
from holdfast.protocol.schedule import HOUR, SECOND
from tests import ports
from tests.cli.person import PATIENCE_S, Person, founder, member_of
from tests.device.house import new_house
from tests.proxy import proxy_to
from tests.relay.running import RunningRelay, running

MANY = 7


@pytest.fixture(scope="module")
def far_relay(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A relay beside 127.0.0.1, where a proxy finds room."""
    place = tmp_path_factory.mktemp("far") / "relay"
    with running(place, 'host = "127.0.0.3"', options=ports.options()) as started:
        yield started


def _dead(person: Person, count: int) -> list[Any]:
    """What was given up, as soon as it is so much."""

    def look(client: Client) -> list[Any]:
        found = list(client.outbox(status="dead").items)
        return found if len(found) >= count else []

    return person.until(look)


def test_what_the_relay_refuses_for_good_is_dead_and_its_content_goes_on_under_a_new_id(
    resident: Callable[[str], Person], far_relay: RunningRelay, tmp_path: Path
) -> None:
    """Ben leaves while Ann, who writes to him, cannot reach the relay."""
    with proxy_to(far_relay.address, "127.0.0.1") as proxy:
        ann = founder(resident("ann"), proxy.url)
        ben = member_of(resident("ben"), ann)
        with ann.daemon():
            ann.until(lambda client: len(client.peers().peers) == 2)
            proxy.cut()
            with ann.client() as client:
                for number in range(MANY):
                    client.send("ben", f"message {number}", client_message_id=f"id-{number}")
        proxy.restore()
        ben.run("member", "revoke", "ben")
        with ann.daemon():
            _look_at_what_is_dead(ann, tmp_path)


def _look_at_what_is_dead(ann: Person, tmp_path: Path) -> None:
    _dead(ann, MANY)
    found = ann.json("outbox", "list", "--status", "dead")
    assert [item["client_message_id"] for item in found["items"]] == [f"id-{n}" for n in range(MANY)]
    assert {item["last_error"].partition(":")[0] for item in found["items"]} == {"destination_unknown"}
    dead = ann.fails(4, "send", "ben", "message 0", "--id", "id-0")
    assert "belongs to an earlier request" in dead
    first = found["items"][0]["id"]
    patch = tmp_path / "patch.txt"
    patch.write_text("another message")
    done = ann.json("outbox", "requeue", first, "--new-client-id", "again", "--patch-payload", str(patch))
    assert [(one["aborted_row_id"], one["new_client_message_id"]) for one in done["requeued"]] == [(first, "again")]
    chain = ann.json("outbox", "inspect", "id-0")["chain"]
    assert (chain[0]["client_message_id"], chain[0]["status"]) == ("id-0", "aborted")
    assert chain[0]["superseded_by"] == chain[1]["id"]
    assert "→" in ann.says("outbox", "inspect", "id-0")
    assert "goes on as" in ann.says("trace", "id-0")
    assert "requeued before" in ann.fails(4, "outbox", "requeue", "id-0")
    _dead(ann, MANY)
    bulk = ann.json("outbox", "requeue", "--where", "status=dead", "--rate", "100", "--expires", "+1h")
    successor = ann.json("outbox", "inspect", bulk["requeued"][0]["new_row_id"])["item"]
    assert 0 < successor["enqueued_at"] + HOUR - successor["expires_at"] < PATIENCE_S * SECOND
    assert {one["aborted_row_id"] for one in bulk["requeued"]} == {
        item["id"] for item in [*found["items"][1:], chain[1]]
    }
    counts = ann.json("outbox", "list")["counts"]
    assert counts["aborted"] == MANY + 1


def test_a_row_that_the_relay_may_have_is_not_sent_twice_without_force(
    resident: Callable[[str], Person], far_relay: RunningRelay
) -> None:
    with proxy_to(far_relay.address, "127.0.0.1") as proxy:
        ann = founder(resident("ann"), proxy.url)
        ben = member_of(resident("ben"), ann)
        with ann.daemon():
            ann.until_connected(2)
            proxy.swallow(b"4201")
            sent = ann.json("send", "ben", "once")["client_message_id"]
            assert proxy.swallowed.wait(PATIENCE_S), "the relay has it, and its answer is lost"
            proxy.cut()
            ann.until(lambda client: (row := client.inspect(sent).item).attempts and row.status == "pending")
            said = ann.fails(5, "outbox", "requeue", sent)
            assert "--force" in said
            proxy.restore()
            ann.until(lambda client: client.inspect(sent).item.status == "done")
            assert "The relay has this message" in ann.fails(4, "outbox", "requeue", sent)
        with ben.daemon():
            messages = ben.until(lambda client: client.inbox().messages)
            assert [message.body for message in messages] == ["once"]


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("x", "--where", "status=dead"),
        ("--where", "status=done"),
        ("--where", "colour=red"),
        ("x", "y", "--new-client-id", "z"),
    ],
)
def test_a_requeue_that_names_nothing_or_too_much_is_wrong_usage(ann: Person, options: tuple[str, ...]) -> None:
    """No daemon runs: nobody is asked before the command knows what it is to ask."""
    assert json.loads(ann.fails(2, "outbox", "requeue", *options, "--json"))["error"] == "usage"


def test_only_messages_are_sent_again_and_a_list_shows_what_a_row_is_and_for_whom(tmp_path: Path) -> None:
    """Nobody is connected, so everything waits: a message, a post, a receipt, and a decision about the mesh."""
    with new_house(tmp_path / "home") as house:
        ann = Person(tmp_path / "home")
        message, post = house.sent("bob"), house.sent("@news")
        house.store(house.arrival(house.carol.message(house.me), house.carol))
        decision = Address(destination_kind="admin", destination_ref=house.facts.mesh, mesh=house.facts.mesh)
        house.do(lambda tx: operations.append_next(tx, house.now, house.random, b"d" * 32, b"{}", decision))
        lines = ann.says("outbox", "list").splitlines()
        assert lines[0].split()[:5] == ["sequence", "id", "kind", "to", "status"]
        shown = [tuple(line.split()[2:4]) for line in lines[1:5]]
        assert shown == [("dm", "bob"), ("topic", "@news"), ("receipt", "carol"), ("admin", house.facts.mesh)]
        for line in lines[3:5]:
            assert "Only a message can be requeued" in ann.fails(4, "outbox", "requeue", line.split()[1], "--force")
        bulk = ann.json("outbox", "requeue", "--where", "status=pending", "--force")
        assert [one["aborted_row_id"] for one in bulk["requeued"]] == [message.id, post.id]


def test_what_was_sent_again_is_told_though_the_next_row_fails(tmp_path: Path) -> None:
    with new_house(tmp_path / "home") as house:
        ann = Person(tmp_path / "home")
        first, second = house.sent("bob"), house.sent("bob")
        done = ann.run("outbox", "requeue", first.id, "nosuch", second.id, "--force", code=3)
        assert f"{first.id} goes on as {house.item(first.id).superseded_by}" in done.stdout
        assert "no operation 'nosuch'" in done.stderr
        done = ann.run("outbox", "requeue", second.id, "nosuch", "--force", "--json", code=3)
        assert [one["aborted_row_id"] for one in json.loads(done.stdout)["requeued"]] == [second.id]


def test_a_patch_that_cannot_be_read_is_said_before_anything_is_asked(ann: Person, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"caf\xe9")
    assert "/nonexistent cannot be read: No such file" in ann.fails(
        3, "outbox", "requeue", "x", "--patch-payload", "/nonexistent"
    )
    assert "cannot be read: Is a directory" in ann.fails(3, "outbox", "requeue", "x", "--patch-payload", tmp_path)
    assert "a message must be UTF-8, and byte 3 of this file is not" in ann.fails(
        2, "outbox", "requeue", "x", "--patch-payload", tmp_path / "binary"
    )


def test_bulk_goes_at_the_pace_that_was_asked_for() -> None:
    """On a clock that only moves when somebody sleeps or works."""
    now = [100.0]
    begun: list[float] = []

    def sleep(seconds: float) -> None:
        now[0] += seconds

    for number in outbox.paced(range(5), 4.0, clock=lambda: now[0], sleep=sleep):
        begun.append(now[0] - 100.0)
        now[0] += 2.0 if number == 1 else 0.1
    assert begun == pytest.approx([0.0, 0.25, 2.25, 2.5, 2.75]), "and nothing is made up for after a stall"
