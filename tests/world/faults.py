"""What goes wrong, as a table: how often an hour, and what it does. When and to whom is the seed's."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.protocol.refusal import Refused
from holdfast.relay import queue
from holdfast.relay.relay import Relay
from holdfast.store import faults
from tests.world.machine import HomeMachine, Machine, RelayMachine
from tests.world.network import Link

if TYPE_CHECKING:
    from tests.world.world import World

SECOND = 1_000_000
AWAY_S = 90.0  # from somebody's last word until it is put out
SEVERAL = 3  # events that are offered together
WAITING = "SELECT DISTINCT message_id FROM delivery WHERE state = 'open' AND is_receipt = 0 ORDER BY seq"
OPERATOR = "0" * 64
STEPS_MAX = 60  # of a disk until a process ends in the middle of what it writes


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong."""

    name: str
    per_hour: float
    do: Callable[["World"], None]


def _machine(world: "World") -> Machine:
    """One of them; relays as often as all homes together."""
    return _relay(world) if world.luck.random() < 0.5 else _home(world)


def _relay(world: "World") -> RelayMachine:
    return world.luck.choice(list(world.relays.values()))


def _home(world: "World") -> HomeMachine:
    return world.luck.choice(list(world.homes.values()))


def _link(world: "World") -> Link:
    """Between a home and one of the relays that it needs."""
    home = _home(world)
    return world.internet.link(home.name, world.luck.choice(home.followed).name)


def _kill(world: "World") -> None:
    _machine(world).kill()


def _kill_within_a_write(world: "World") -> None:
    machine = _machine(world)
    machine.fail_at_step(world.luck.randrange(1, STEPS_MAX), machine.kill, is_done=False)


def _kill_behind_a_write(world: "World") -> None:
    """Between two transactions: the process has written something, and comes to nothing more."""
    machine = _machine(world)
    machine.fail_at_step(world.luck.randrange(1, STEPS_MAX), machine.kill, is_done=True)


def _cut_power(world: "World") -> None:
    _machine(world).cut_power(torn=world.luck.random() < 0.5)


def _cut_power_within_a_write(world: "World") -> None:
    machine, torn, is_done = _machine(world), world.luck.random() < 0.5, world.luck.random() < 0.3
    machine.fail_at_step(world.luck.randrange(1, STEPS_MAX), lambda: machine.cut_power(torn=torn), is_done=is_done)


def _cut_connections(world: "World") -> None:
    """Some of those that are open, with what is on its way in either direction, or without it."""
    for connection in list(world.internet.open.values()):
        if world.luck.random() < 0.5:
            world.internet.cut(connection, keeps=(world.luck.random() < 0.5, world.luck.random() < 0.5))


def _cut_a_next_connection(world: "World") -> None:
    """One that is made within the next seconds, at some moment of its short life."""
    last = max(world.internet.open, default=0)

    def cut() -> None:
        for number, connection in list(world.internet.open.items()):
            if number > last:
                world.internet.cut(connection, keeps=(True, False))

    for _ in range(40):
        world.loop.call_later(world.luck.uniform(0.0, 20.0), cut)


def _lose_an_answer(world: "World") -> None:
    """A relay takes what it is offered next, or the next few at once, and whoever offered it hears nothing."""
    world.internet.answer_to_lose = world.luck.choice((1, SEVERAL))


def _lose_link(world: "World") -> None:
    """Nothing passes between a home and a relay for a while."""
    _link(world).down_until_s = world.loop.time() + world.luck.uniform(1.0, 60.0)


def _delay_link(world: "World") -> None:
    link = _link(world)
    link.late_s = world.luck.uniform(0.1, 8.0)
    world.loop.call_later(world.luck.uniform(5.0, 60.0), lambda: setattr(link, "late_s", 0.0))


def _repeat_connection(world: "World") -> None:
    if world.internet.past:
        connection = world.luck.choice(world.internet.past)
        world.loop.call_later(world.luck.uniform(0.0, 30.0), world.internet.repeat, connection)


def _fill_disk(world: "World") -> None:
    machine = _machine(world)
    machine.is_full = True
    world.loop.call_later(world.luck.uniform(1.0, 40.0), lambda: setattr(machine, "is_full", False))


def _slow_disk(world: "World") -> None:
    machine = _machine(world)
    machine.slow_s = world.luck.uniform(0.05, 3.0)
    world.loop.call_later(world.luck.uniform(5.0, 60.0), lambda: setattr(machine, "slow_s", 0.0))


def _step_clock(world: "World") -> None:
    """A clock is wrong for a while, by little or by much, in either direction."""
    machine = _machine(world)
    machine.offset = round(world.luck.choice((-1, 1)) * world.luck.choice((0.5, 20, 50, 600, 4_000)) * SECOND)
    world.loop.call_later(world.luck.uniform(5.0, 120.0), lambda: setattr(machine, "offset", 0))


def _go_away(world: "World") -> None:
    """A home is switched off for so long that its queue gets full."""
    _home(world).go_away(world.luck.uniform(60.0, 240.0))


def _back_up(world: "World") -> None:
    _machine(world).back_up()


def _restore_relay(world: "World") -> None:
    _relay(world).restore()


def _restore_home(world: "World") -> None:
    """Not one whose key changes: a backup with an old key is of no use, and a home that has one ends."""
    homes = [home for name, home in world.homes.items() if name != world.mesh_of(name).changing]
    world.luck.choice(homes).restore()


def _rotate_key(world: "World") -> None:
    """A member takes another key, in the middle of everything."""
    world.apps[world.luck.choice(world.places.meshes).changing].administer("rotate_key", {})


def _revoke(world: "World") -> None:
    """In some worlds a member is put out of its mesh."""
    if world.seed % 3 == 0 and not world.journal.revoked and world.loop.time() > world.seconds / 4:
        mesh = world.luck.choice(world.places.meshes)
        world.journal.revoked[mesh.changing] = world.loop.now()
        world.homes[mesh.changing].go_away(AWAY_S)
        world.apps[mesh.founder].write_much(mesh.changing)  # so that something waits for it
        put_out = world.apps[mesh.founder].administer
        world.loop.call_later(world.luck.uniform(AWAY_S / 4, AWAY_S), put_out, "revoke", {"who": mesh.changing})


def _sweep(world: "World") -> None:
    """A relay cleans up just now."""
    relay = _relay(world)
    if relay.is_up and relay.relay is not None and relay.life is not None:
        world.loop.create_task(_swept(relay.relay), context=relay.life.context)


def _take_down(world: "World") -> None:
    """The operator of a relay decides that nobody shall get a message who has not got it yet."""
    relay = _relay(world)
    if relay.is_up and relay.relay is not None and relay.life is not None:
        world.loop.create_task(_taken_down(relay.relay, world.luck.random()), context=relay.life.context)


async def _taken_down(relay: Relay, luck: float) -> None:
    with suppress(faults.Fault, Refused):
        waiting = await relay.look(lambda tx: tx.rows(WAITING))
        if waiting:
            ((message_id,),) = [waiting[int(luck * len(waiting))]]
            await relay.decide(lambda tx: queue.moderate(tx, relay.now(), message_id, OPERATOR, "spam"))


async def _swept(relay: Relay) -> None:
    with suppress(faults.Fault):
        await relay.sweep()


FAULTS: tuple[Fault, ...] = (
    Fault("kill", 20, _kill),
    Fault("kill_within_a_write", 40, _kill_within_a_write),
    Fault("kill_behind_a_write", 30, _kill_behind_a_write),
    Fault("cut_power", 10, _cut_power),
    Fault("cut_power_within_a_write", 40, _cut_power_within_a_write),
    Fault("cut_connections", 20, _cut_connections),
    Fault("cut_a_next_connection", 20, _cut_a_next_connection),
    Fault("lose_an_answer", 40, _lose_an_answer),
    Fault("lose_link", 15, _lose_link),
    Fault("delay_link", 15, _delay_link),
    Fault("repeat_connection", 30, _repeat_connection),
    Fault("fill_disk", 8, _fill_disk),
    Fault("slow_disk", 16, _slow_disk),
    Fault("step_clock", 8, _step_clock),
    Fault("go_away", 20, _go_away),
    Fault("back_up", 40, _back_up),
    Fault("restore_relay", 6, _restore_relay),
    Fault("restore_home", 8, _restore_home),
    Fault("rotate_key", 6, _rotate_key),
    Fault("revoke", 40, _revoke),
    Fault("take_down", 12, _take_down),
    Fault("sweep", 8, _sweep),
)


async def fall(world: "World", until_s: float) -> None:
    """Let faults fall until a time."""
    per_second = sum(fault.per_hour for fault in FAULTS) / 3600
    while True:
        wait_s = world.luck.expovariate(per_second)
        if world.loop.time() + wait_s >= until_s:
            await asyncio.sleep(until_s - world.loop.time())
            return
        await asyncio.sleep(wait_s)
        (fault,) = world.luck.choices(FAULTS, [fault.per_hour for fault in FAULTS])
        world.told("fault", fault.name)
        world.journal.faults[fault.name] = world.journal.faults.get(fault.name, 0) + 1
        fault.do(world)


def mend(world: "World") -> None:
    """Everything works again, and is switched on."""
    world.internet.answer_to_lose = 0
    for link in world.internet.links.values():
        link.late_s = link.down_until_s = 0.0
    for machine in world.machines:
        machine.come_back()
        machine.fuse, machine.is_full, machine.slow_s, machine.offset = 0, False, 0.0, 0
        if not machine.is_up and machine.ended is None:
            machine.restart_later()
