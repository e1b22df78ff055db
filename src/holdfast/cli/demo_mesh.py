"""The demo's messages: somebody is away, the relay dies, a message is said twice, and a home comes back from a backup."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

from holdfast.cli.check import inspect
from holdfast.cli.demo_world import World, command, hold
from holdfast.device.client import Client
from holdfast.hook import agent_settings
from holdfast.protocol.refusal import Refusal, Refused

BEFORE, AFTER = 60, 40  # messages that Alice sends before and after the relay is killed
TOPIC = "agents"
LETTER = "invoice-7"


def meet(world: World) -> str:
    """A relay, and a mesh of three; Alice's agents are told of in a topic that Bob follows."""
    world.start_relay()
    world.run(world.alice, "mesh", "create", "friends", "--relay", world.url, "--as", "alice")
    for home in (world.bob, world.carol):
        invite = world.ask(world.alice, "mesh", "invite")["invite"]
        world.run(home, "mesh", "join", invite, "--as", home.name)
    world.run(world.alice, "topic", "create", TOPIC)
    world.run(world.bob, "topic", "subscribe", TOPIC)
    (world.alice / agent_settings.FILE_NAME).write_text(f'{{"topics": ["@{TOPIC}"]}}')
    _up(world, world.alice)
    members = [one["name"] for one in world.ask(world.alice, "member", "list")]
    hold(sorted(members) == ["alice", "bob", "carol"], f"the members are {members}")
    return f"{', '.join(members)} at {world.url}; only Alice's daemon runs"


def send_to_somebody_away(world: World) -> str:
    with world.client(world.alice) as alice:
        world.sent += [alice.send("bob", f"message {n}").client_message_id for n in range(BEFORE)]
    world.until(lambda: waiting(world) >= BEFORE, "the relay has not got everything")
    found = waiting(world)
    hold(found == BEFORE, f"{found} wait")
    with world.client(world.alice) as alice:  # what the relay has, its sender need not know yet
        world.until(lambda: not alice.health().queue_depth, "Alice has not heard that the relay has everything")
    return f"{found} messages wait for Bob in the relay's file"


def kill_the_relay(world: World) -> str:
    """What was sent meanwhile is on Alice's disk; what the relay had said yes to is on its own."""
    world.stop_relay(signal.SIGKILL)
    found = waiting(world)
    hold(found == BEFORE, f"of {BEFORE} messages that the relay had taken {found} are in its file")
    _check(world.data / "relay.db")
    with world.client(world.alice) as alice:
        more = [alice.send("bob", f"message {BEFORE + n}").client_message_id for n in range(AFTER)]
        depth = alice.health().queue_depth
    hold(depth == AFTER, f"{depth} of {AFTER} wait in Alice's outbox")
    world.sent += more
    world.start_relay()
    with world.client(world.alice) as alice:
        world.until(lambda: not alice.health().queue_depth, "the relay that was started again has not taken the rest")
    return f"its file still had all {found}; {AFTER} more were taken without it, and came to it when it was back"


def come_back(world: World) -> str:
    world.run(world.bob, "daemon", "up")
    expected = [f"message {n}" for n in range(len(world.sent))]
    with world.client(world.bob) as bob, world.client(world.alice) as alice:
        world.until(lambda: len(bodies(bob)) >= len(expected), "Bob has not got everything")
        found = bodies(bob)
        hold(found == expected, f"Bob has {found}")
        world.until(lambda: has_receipt(alice, world.sent[-1]), "Alice has no receipt")
        without = [one for one in world.sent if not has_receipt(alice, one)]
        hold(not without, f"Alice has no receipt for {without}")
    return f"{len(found)} messages, each once, in order; {len(world.sent)} receipts, signed by Bob"


def say_twice(world: World) -> str:
    """The same id with the same content is the same message; with other content it is refused."""
    first = world.sent[0]
    with world.client(world.alice) as alice, world.client(world.bob) as bob:
        again = alice.send("bob", "message 0", client_message_id=first)
        hold(bool(again.duplicate), f"the repetition was answered with {again}")
        try:
            other = alice.send("bob", "something else", client_message_id=first)
        except Refused as refused:
            hold(refused.refusal is Refusal.IDEMPOTENCY_KEY_REUSED, f"the other one was answered with {refused}")
            said = refused.refusal
        else:
            hold(False, f"an id stands for two messages: {other}")
        found = bodies(bob)
    hold(found.count("message 0") == 1 and "something else" not in found, f"Bob has {found}")
    return f"the same again: sent once; another text under its id: {said}"


def requeue_a_dead_letter(world: World) -> str:
    """Carol's home is restored from a backup that does not know what she sent since, and uses that id again."""
    backup = world.folder / "carol.backup"
    world.run(world.carol, "daemon", "backup", str(backup))
    _send_first_letter(world)
    shutil.rmtree(world.carol)
    world.run(world.carol, "daemon", "restore", str(backup))
    _up(world, world.carol)
    with world.client(world.carol) as carol, world.client(world.alice) as alice:
        carol.send("alice", "please pay 70", client_message_id=LETTER)
        world.until(lambda: carol.health().dead == 1, "the letter was not given up")
        (dead,) = carol.outbox(status="dead").items
        hold(str(dead.last_error).startswith(Refusal.IDEMPOTENCY_KEY_REUSED), f"it died of {dead.last_error}")
        world.run(world.carol, "outbox", "requeue", dead.id)
        (after,) = (one for one in carol.inspect(dead.id).chain if one.superseded_by is None)
        world.until(lambda: state(carol, after.client_message_id) == "delivered", "no receipt for the new one")
        found = bodies(alice)
    hold(found == ["please pay 7", "please pay 70"], f"Alice has {found}")
    return f"the relay refused it ({Refusal.IDEMPOTENCY_KEY_REUSED}); requeued as {after.client_message_id}, delivered"


def keep_the_rules(world: World) -> str:
    """Every rule and every hash of every database, while their programs run."""
    places = [world.data / "relay.db", *(home / "device.db" for home in world.homes), world.alice / "hooks.db"]
    for place in places:
        _check(place)
    return f"in {len(places)} of them no row breaks a rule, and every entry is in its chain"


def _up(world: World, home: Path) -> None:
    """Start a daemon that is to be asked for something: before it has seen its mesh, it knows nobody."""
    world.run(home, "daemon", "up")
    with world.client(home) as client:
        has_seen = f"the daemon of {home.name} has not seen its mesh"
        world.until(lambda: client.health().connected and client.peers().peers, has_seen)


def _check(place: Path) -> None:
    _, findings = inspect(place)
    hold(not findings, f"{place} breaks a rule: {[(one.check, one.found) for one in findings]}")


def _send_first_letter(world: World) -> None:
    """After the backup; then the home is gone."""
    _up(world, world.carol)
    with world.client(world.carol) as carol:
        carol.send("alice", "please pay 7", client_message_id=LETTER)
        world.until(lambda: state(carol, LETTER) == "delivered", "Carol's first letter did not arrive")
    world.run(world.carol, "daemon", "down")


def waiting(world: World) -> int:
    """How many messages the relay's file has for Bob."""
    shown = json.loads(command("relay", "queues", "--data", str(world.data), "--json").stdout)
    return sum(int(one["messages"]) for one in shown["queues"] if one["name"] == world.bob.name)


def bodies(client: Client) -> list[Any]:
    """The messages of an inbox, in the order of arrival; a topic's are no letters."""
    found: list[Any] = []
    after = 0
    while page := client.inbox(after=after, limit=100).messages:
        found += [message.body for message in page if message.topic is None]
        after = page[-1].arrival
    return found


def has_receipt(client: Client, name: str) -> bool:
    """Whether the recipient's own word came back; that it was handed over the relay says, too."""
    (recipient,) = client.trace(name)["sent"]["recipients"] or ({"rungs": []},)
    return any(rung["what"] == "receipt" for rung in recipient["rungs"])


def state(client: Client, name: str) -> str:
    return str(client.trace(name)["sent"]["state"])
