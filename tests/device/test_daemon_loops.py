"""Whole daemons and a relay that is a process of its own: what one sends the others have, whatever happens on the way."""

import asyncio
import gc
import itertools
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from holdfast.device import daemon as daemons
from holdfast.device import directory, inbox, link, sending, topic_keys, topics
from holdfast.device.daemon import Daemon, Ended
from holdfast.device.device import at_work
from holdfast.device.home import Home
from holdfast.device.mesh import in_session
from holdfast.device.publish import PutOff
from holdfast.device.send import Send, send
from holdfast.device.settings import OutboxSettings
from holdfast.device.settings import Settings as DeviceSettings
from holdfast.export.exporter import Exporter
from holdfast.protocol import administration
from holdfast.protocol.action import RenameMember, RevokeMember, Role, SetRole
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import DAY, SECOND
from holdfast.relay.service import Service
from holdfast.relay.settings import Settings
from holdfast.store import faults
from holdfast.store.engine import Transaction
from holdfast.store.world import wall_clock
from holdfast.wire.client import Unreachable
from tests import ports
from tests.device.company import WAIT_S, Friend, at_home, company, gather_in_mesh, until
from tests.device.house import furnish, new_house
from tests.people import secret_of, topic_key
from tests.proxy import RoughProxy, proxy_to
from tests.relay.place import Place as RelayPlace
from tests.relay.running import RunningRelay, running
from tests.wire.memory import MemoryNetwork


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRelay]:
    """One for all who leave it as it is; each has a mesh of its own."""
    with running(tmp_path_factory.mktemp("near") / "relay") as relay:
        yield relay


@pytest.fixture(scope="module")
def far_relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRelay]:
    """A relay to which a road leads."""
    place = tmp_path_factory.mktemp("far") / "relay"
    with running(place, 'host = "127.0.0.2"\n', options=ports.options()) as relay:
        yield relay


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Daemons look at their mesh, and ask for fates, more often than they would."""
    monkeypatch.setattr(link, "LOOK_S", 0.2)
    monkeypatch.setattr(link, "FATES_S", 0.3)


def _together(url: str, place: Path, act: Callable[[Friend, Friend], Awaitable[None]]) -> None:
    async def meet() -> None:
        async with company(url, place, "ann", "bob") as (ann, bob):
            await act(ann, bob)

    asyncio.run(meet())


def test_what_one_sends_the_other_has_and_the_sender_gets_its_receipt(relay: RunningRelay, tmp_path: Path) -> None:
    async def act(ann: Friend, bob: Friend) -> None:
        sent = [await ann.send("bob", f"{number}") for number in range(30)]
        await until(lambda: len(bob.messages()) == 30, lambda: ann.receipted() == 30)
        assert [message.client_message_id for message in bob.messages()] == sent
        assert bob.bodies() == [str(number) for number in range(30)]
        await bob.send("ann", "back")
        await until(lambda: ann.bodies() == ["back"], lambda: bob.receipted() == 1)
        assert ann.rows("SELECT DISTINCT log_id IS NOT NULL FROM operation_log WHERE status = 'done'") == [(1,)]

    _together(relay.url, tmp_path, act)


def test_what_became_of_a_send_is_known_by_the_relays_word_as_well(relay: RunningRelay, tmp_path: Path) -> None:
    async def act(ann: Friend, bob: Friend) -> None:
        await ann.send("bob", "hello")
        await until(lambda: ann.rows("SELECT kind, recipient FROM fate") == [("delivered", bob.daemon.facts.member)])

    _together(relay.url, tmp_path, act)


def test_a_topics_key_is_granted_without_anybodys_doing_and_posts_are_read(relay: RunningRelay, tmp_path: Path) -> None:
    async def act(ann: Friend, bob: Friend) -> None:
        async with ann.daemon.session() as session:
            await topics.create(session, "news")
        async with bob.daemon.session() as session:
            assert await topics.subscribe(session, "news") is topics.KeyState.WAITING
        await until(lambda: bob.rows("SELECT count(*) FROM topic_key WHERE source = 'granted'") == [(1,)])
        await ann.send("@news", "to all")
        await until(lambda: bob.bodies() == ["to all"], lambda: ann.receipted() == 1)
        assert bob.messages()[0].topic == "news"

    _together(relay.url, tmp_path, act)


class _Gate(httpx.AsyncBaseTransport):
    """A way to the relay on which a topic's next key is made current only when the gate is open."""

    def __init__(self, friend: Friend) -> None:
        http = friend.daemon.client._http
        self._way, http._transport = http._transport, self
        self.is_reached, self.is_open = False, asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if b"advance_topic_key" in await request.aread():
            self.is_reached = True
            await self.is_open.wait()
        return await self._way.handle_async_request(request)

    async def aclose(self) -> None:
        await self._way.aclose()


def test_a_keeper_that_lost_the_race_for_a_new_key_reads_and_posts_with_the_winners(
    relay: RunningRelay, tmp_path: Path
) -> None:
    async def meet() -> None:
        async with company(relay.url, tmp_path, "ann", "bob", "carol") as (ann, bob, carol):
            async with ann.daemon.session() as session:
                await topics.create(session, "news")
            for friend in (ann, bob, carol):
                async with friend.daemon.session() as session:
                    await topics.subscribe(session, "news")
            await until(*(lambda friend=friend: _key_epoch(friend) == 1 for friend in (ann, bob, carol)))
            async with ann.daemon.session() as session:
                await session.ask(SetRole(member=bob.daemon.facts.member, role=Role.ADMIN))
            await until(lambda: bob.daemon.directory.members[bob.daemon.facts.member].role == Role.ADMIN)
            winner, loser = _Gate(ann), _Gate(bob)
            async with carol.daemon.session() as session:
                await topics.unsubscribe(session, "news")
            await until(lambda: winner.is_reached, lambda: loser.is_reached)
            winner.is_open.set()
            await until(lambda: ann.rows(_GRANTED) == [(2,)])
            loser.is_open.set()
            await until(lambda: bob.rows(_GRANTED) == [(2,)])
            await ann.send("@news", "from the winner")
            await bob.send("@news", "from the loser")
            await until(lambda: bob.bodies() == ["from the winner"], lambda: ann.bodies() == ["from the loser"])

    asyncio.run(meet())


_GRANTED = "SELECT max(key_epoch) FROM topic_key WHERE source = 'granted'"


def test_a_key_from_before_its_relay_was_restored_is_not_taken_for_another_keepers_of_the_same_epoch(
    relay: RunningRelay, tmp_path: Path
) -> None:
    async def act(ann: Friend, bob: Friend) -> None:
        await bob.daemon.do(lambda tx: topic_keys.keep_granted(tx, bob.device.clock(), "news", 1, b"\x07" * 32))
        async with ann.daemon.session() as session:
            await topics.create(session, "news")
            await topics.subscribe(session, "news")
        async with bob.daemon.session() as session:
            assert await topics.subscribe(session, "news") is topics.KeyState.WAITING
        await bob.send("@news", "from bob")
        await until(lambda: bob.receipted() == 1)
        await ann.send("@news", "from ann")
        await until(lambda: ann.bodies() == ["from bob"], lambda: bob.bodies() == ["from ann"])

    _together(relay.url, tmp_path, act)


def test_a_send_at_a_later_time_waits_for_it(relay: RunningRelay, tmp_path: Path) -> None:
    async def act(ann: Friend, bob: Friend) -> None:
        daemon, random = ann.daemon, ann.device.random
        now = ann.device.clock()
        at = now + SECOND // 2

        def send_both(transaction: Transaction) -> None:
            # In one transaction, for the time may come before a second one is on disk.
            for request in (Send(to="bob", message="later", not_before=at), Send(to="bob", message="now")):
                answer = send(transaction, daemon.facts, daemon.directory, now, random, request)
                assert answer.refusal is None, answer

        await daemon.do(send_both)
        await until(lambda: bob.bodies() == ["now", "later"])
        assert ann.rows(
            f"SELECT min(enqueued_at) >= {at} FROM operation_log WHERE client_message_id IN "
            "(SELECT client_message_id FROM scheduled_send)"
        ) == [(1,)]

    _together(relay.url, tmp_path, act)


def test_the_directory_follows_the_mesh(relay: RunningRelay, tmp_path: Path) -> None:
    async def act(ann: Friend, bob: Friend) -> None:
        assert {known.name for known in ann.daemon.directory.members.values()} == {"ann", "bob"}
        async with bob.daemon.session() as session:
            await topics.create(session, "sport")
        await until(lambda: "sport" in ann.daemon.directory.topics)
        assert ann.device.look(directory.load) == ann.daemon.directory

    _together(relay.url, tmp_path, act)


def test_a_mesh_that_stays_as_it_is_is_not_told_again_and_a_change_is_noticed(
    relay: RunningRelay, tmp_path: Path
) -> None:
    def told(status: int) -> int:
        return int(relay.metric(f'holdfast_requests_total{{route="/v1/meshes/{{mesh}}",status="{status}"}}'))

    async def act(ann: Friend, bob: Friend) -> None:
        await until(lambda: ann.daemon.sightings > 1, lambda: bob.daemon.sightings > 1)
        whole, unchanged = told(200), told(304)
        await until(lambda: told(304) >= unchanged + 5)
        assert told(200) == whole
        async with bob.daemon.session() as session:
            await topics.create(session, "sport")
        await until(lambda: "sport" in ann.daemon.directory.topics)
        assert told(200) > whole

    _together(relay.url, tmp_path, act)


def test_what_is_sent_while_the_relay_is_away_arrives_in_order_when_it_is_back(
    far_relay: RunningRelay, tmp_path: Path
) -> None:
    async def act(ann: Friend, bob: Friend) -> None:
        await ann.send("bob", "0")
        await until(lambda: ann.receipted() == 1)
        proxy.cut()
        await until(lambda: not ann.is_connected)
        with pytest.raises(Unreachable):
            async with ann.daemon.session():
                pass
        for number in range(1, 150):
            await ann.send("bob", f"{number}")
        proxy.restore()
        await until(lambda: len(bob.messages()) == 150, lambda: ann.receipted() == 150)
        assert bob.bodies() == [str(number) for number in range(150)]
        assert ann.daemon.counters["disconnections"] == 1
        state = ann.daemon.state
        assert (state.detail, state.last_error is not None) == ("", True), "that it was gone is still known"
        assert (state.last_error_at or 0) <= state.since

    with proxy_to(far_relay.address, "127.0.0.1") as proxy:
        _together(proxy.url, tmp_path, act)


def test_administration_on_which_the_relay_cannot_decide_holds_up_no_message(
    far_relay: RunningRelay, tmp_path: Path
) -> None:
    async def act(ann: Friend, bob: Friend) -> None:
        proxy.failing = b'"kind":4204'
        with pytest.raises(PutOff):
            async with ann.daemon.session() as session:
                await session.ask(RenameMember(member=ann.daemon.facts.member, name="anna"))
        proxy.cut()
        await until(lambda: not ann.is_connected)
        proxy.restore()
        await ann.send("bob", "all the same")
        await until(lambda: bob.bodies() == ["all the same"], lambda: ann.receipted() == 1)
        proxy.failing = b""
        await until(lambda: "anna" in {member.name for member in bob.daemon.directory.members.values()})

    with proxy_to(far_relay.address, "127.0.0.1") as proxy:
        _together(proxy.url, tmp_path, act)


def test_a_relay_that_is_killed_midway_and_comes_back_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """The relay's answers to what it committed are lost with it; the same bytes are offered again."""
    killed_after, moment_s = random.randrange(200), random.uniform(0, 0.05)  # another moment every time
    seen = f"killed {moment_s} s after {killed_after}"

    async def act(ann: Friend, bob: Friend) -> None:
        for number in range(200):
            await ann.send("bob", f"{number}")
            if number == killed_after:
                await asyncio.sleep(moment_s)
                first.stop(signal.SIGKILL)
        await until(lambda: not ann.is_connected)
        with running(tmp_path / "relay", options=("--port", str(first.address[1]))):
            await until(lambda: len(bob.messages()) == 200, lambda: ann.receipted() == 200)
            assert bob.bodies() == [str(number) for number in range(200)], seen

    with running(tmp_path / "relay", options=ports.options()) as first:
        _together(first.url, tmp_path, act)


def test_a_question_that_is_given_up_leaves_no_connection_behind(far_relay: RunningRelay, tmp_path: Path) -> None:
    """Connections that the relay has ended are let go of all together, at whichever moment nobody waits any more."""

    async def meet() -> None:
        home = Home(tmp_path / "ann")
        await gather_in_mesh(proxy.url, [home])
        with at_work(home, threaded=True) as device:
            async with Daemon(device).client as client:
                for turns in range(8):
                    await asyncio.gather(*(client.information() for _ in range(3)))
                    proxy.cut()
                    asked = asyncio.create_task(client.information())
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    asked.cancel()
                    with pytest.raises((asyncio.CancelledError, Unreachable)):
                        await asked
                    proxy.restore()

    with proxy_to(far_relay.address, "127.0.0.1") as proxy:
        asyncio.run(meet())
    gc.collect()  # a connection that nobody has closed complains when it goes, which fails a test


def test_through_a_network_that_loses_delays_repeats_and_cuts_everything_arrives_once_and_in_order(
    far_relay: RunningRelay, tmp_path: Path
) -> None:
    async def act(ann: Friend, bob: Friend) -> None:
        proxy.is_rough = True
        sent = 0
        async with asyncio.timeout(WAIT_S):
            while sent < 120 or 0 in proxy.counts.values():  # until everything has happened that can
                await ann.send("bob", f"{sent}")
                await bob.send("ann", f"{sent}")
                sent += 1
                await asyncio.sleep(0.01 if sent < 120 else 0.3)
        await until(
            lambda: len(bob.messages()) == sent,
            lambda: len(ann.messages()) == sent,
            lambda: ann.receipted() == bob.receipted() == sent,
            # A receipt may come before the answer to what it is for, and one's own receipts are sends as well.
            lambda: ann.statuses() == bob.statuses() == {"done"},
        )
        proxy.is_rough = False
        assert ann.bodies() == bob.bodies() == [str(number) for number in range(sent)]

    with RoughProxy.to(far_relay.address, "127.0.0.1", random.Random(6)) as proxy:
        _together(proxy.url, tmp_path, act)


def test_a_second_home_with_the_same_key_ends_the_daemon_of_the_first_for_good(
    relay: RunningRelay, tmp_path: Path
) -> None:
    async def act(ann: Friend, bob: Friend) -> None:
        shutil.copytree(tmp_path / "ann", tmp_path / "copy", ignore=shutil.ignore_patterns("lock", "*.sock"))
        async with at_home(Home(tmp_path / "copy")) as copy:
            await until(lambda: copy.is_connected, ann.running.done)
            ended = ann.running.exception()
            assert isinstance(ended, Ended)
            assert ended.refusal is Refusal.REPLACED_BY_NEWER_CONNECTION

    _together(relay.url, tmp_path, act)


def test_a_member_who_is_revoked_is_told_and_its_daemon_ends_for_good(relay: RunningRelay, tmp_path: Path) -> None:
    async def act(ann: Friend, bob: Friend) -> None:
        async with ann.daemon.session() as session:
            await session.ask(RevokeMember(member=bob.daemon.facts.member))
        await until(bob.running.done)
        ended = bob.running.exception()
        assert isinstance(ended, Ended)
        assert ended.refusal in (Refusal.MEMBER_REVOKED, Refusal.NOT_A_MEMBER)

    _together(relay.url, tmp_path, act)


def test_a_home_that_went_back_in_time_goes_on_as_another_sender(relay: RunningRelay, tmp_path: Path) -> None:
    """Its sequences of the lost time are known to the relay: under the old epoch they would be two sends in one place."""
    ann, bob = (Home(tmp_path / name) for name in ("ann", "bob"))

    async def meet() -> None:
        await gather_in_mesh(relay.url, [ann, bob])
        shutil.copytree(ann.path, tmp_path / "earlier")
        async with at_home(bob) as b:
            async with at_home(ann) as a:
                epoch = a.device.epoch
                await a.send("bob", "lost")
                await until(lambda: a.receipted() == 1)
            shutil.rmtree(ann.path)
            shutil.copytree(tmp_path / "earlier", ann.path)
            async with at_home(ann) as a:
                await a.send("bob", "after")
                await until(lambda: a.receipted() == 1)
                assert a.device.epoch != epoch
                assert a.rows("SELECT count(*) FROM history WHERE kind = 'restored'") == [(1,)]
            assert b.bodies() == ["lost", "after"]
            first, second = b.messages()
            assert (first.sequence, first.epoch) != (second.sequence, second.epoch)
            assert first.sequence == second.sequence  # the same place of the log, in two epochs

    asyncio.run(meet())


def test_a_command_without_a_daemon_in_a_home_that_went_back_in_time_signs_as_another_sender(
    relay: RunningRelay, tmp_path: Path
) -> None:
    ann = Home(tmp_path / "ann")

    async def rename(name: str) -> bytes:
        with at_work(ann) as device:
            async with in_session(device) as session:
                await session.ask(RenameMember(member=session.me.member, name=name))
            return device.epoch

    async def meet() -> None:
        await gather_in_mesh(relay.url, [ann])
        shutil.copytree(ann.path, tmp_path / "earlier")
        epoch = await rename("Anna")
        shutil.rmtree(ann.path)
        shutil.copytree(tmp_path / "earlier", ann.path)
        assert await rename("Annie") != epoch
        with at_work(ann) as device:
            signed = device.look(lambda tx: tx.rows("SELECT epoch FROM operation_log ORDER BY sequence"))
        assert signed == [(epoch,), (device.epoch,)]

    asyncio.run(meet())


def test_a_command_without_a_daemon_offers_what_a_restored_relay_has_lost_before_it_signs_anything_newer(
    tmp_path: Path,
) -> None:
    """Behind the newer one the relay would take the lost ones for replayed."""
    ann, data = Home(tmp_path / "ann"), tmp_path / "relay"

    async def make(topic: str) -> set[str]:
        with at_work(ann) as device:
            async with in_session(device) as session:
                await topics.create(session, topic)
                return {found.topic for found in session.mesh.topics}

    with running(data, options=ports.options()) as first:
        asyncio.run(gather_in_mesh(first.url, [ann]))
        _relay_command("backup", str(tmp_path / "copy"), "--data", str(data))
        assert asyncio.run(make("lost")) == {"lost"}
        first.stop(signal.SIGKILL)
    shutil.rmtree(data)
    _relay_command("restore", str(tmp_path / "copy"), "--data", str(data))
    with running(data, options=("--port", str(first.address[1]))):
        assert asyncio.run(make("new")) == {"lost", "new"}


def test_a_home_that_lost_its_inbox_is_brought_it_again_and_nothing_fires_twice(
    relay: RunningRelay, tmp_path: Path
) -> None:
    ann, bob = (Home(tmp_path / name) for name in ("ann", "bob"))

    async def meet() -> None:
        await gather_in_mesh(relay.url, [ann, bob])
        shutil.copytree(bob.path, tmp_path / "earlier")
        async with at_home(ann) as a:
            async with at_home(bob):
                await a.send("bob", "one")
                await a.send("bob", "two")
                await until(lambda: a.receipted() == 2)
            await a.send("bob", "three")
            await until(lambda: a.statuses() == {"done"})
            shutil.rmtree(bob.path)
            shutil.copytree(tmp_path / "earlier", bob.path)
            async with at_home(bob, replay=True) as b:
                await until(lambda: b.bodies() == ["one", "two", "three"], lambda: a.receipted() == 3)
                assert [message.replayed for message in b.messages()] == [True, True, False]
                assert len(b.device.look(lambda tx: inbox.page(tx, unapplied=True))) == 1

    asyncio.run(meet())


def test_a_disk_that_is_full_for_a_moment_is_waited_out(
    relay: RunningRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay has the message and the device could not note it: the same bytes are offered again, and recognised."""
    settle, failed = sending.settle_all, [faults.DiskFull("the disk")]

    def fail_once(*arguments: Any) -> Any:
        # Of the message, and not of the receipt for it, whose sender may have its answer sooner.
        if failed and any(operation.destination_kind == "dm" for operation, _ in arguments[-1]):
            raise failed.pop()
        return settle(*arguments)

    async def act(ann: Friend, bob: Friend) -> None:
        monkeypatch.setattr(sending, "settle_all", fail_once)
        await ann.send("bob", "hello")
        await until(lambda: not failed, lambda: ann.receipted() == 1, lambda: ann.statuses() == {"done"})
        assert bob.bodies() == ["hello"]
        kinds = ann.rows("SELECT kind, reason FROM history WHERE destination_kind = 'dm' AND kind = 'attempted'")
        assert kinds == [("attempted", None), ("attempted", "restarted"), ("attempted", None)]

    _together(relay.url, tmp_path, act)


def test_a_disk_that_failed_ends_the_daemon(
    relay: RunningRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> Any:
        raise faults.DiskFailed("the disk")

    async def act(ann: Friend, bob: Friend) -> None:
        monkeypatch.setattr(sending, "settle_all", fail)
        await ann.send("bob", "hello")
        await until(ann.running.done)
        assert isinstance(ann.running.exception(), faults.DiskFailed)
        monkeypatch.undo()

    _together(relay.url, tmp_path, act)


def test_a_home_whose_founding_got_no_answer_is_a_member_when_its_daemon_has_asked_again(
    far_relay: RunningRelay, tmp_path: Path
) -> None:
    async def meet() -> None:
        home = Home(tmp_path / "ann")
        proxy.swallow(b"create_mesh")
        with pytest.raises(PutOff):
            await gather_in_mesh(proxy.url, [home])
        async with at_home(home) as ann:
            await until(lambda: ann.is_connected)
            await until(lambda: [known.name for known in ann.daemon.directory.members.values()] == ["ann"])

    with proxy_to(far_relay.address, "127.0.0.1") as proxy:
        asyncio.run(meet())


def test_a_daemon_that_stops_settles_what_is_in_flight(
    relay: RunningRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemons, "DRAIN_S", WAIT_S)  # the relay may be slow, and is waited for

    async def act(ann: Friend, bob: Friend) -> None:
        for number in range(50):
            await ann.send("bob", f"{number}")
        await ann.stop()
        assert ann.running.exception() is None
        assert "inflight" not in ann.statuses()

    _together(relay.url, tmp_path, act)


def test_a_relay_and_daemons_meet_on_a_network_that_has_no_sockets(tmp_path: Path) -> None:
    """All of them know the world as arguments only, so that a simulation can be one."""

    async def meet() -> None:
        network = MemoryNetwork()
        network.caller = ("127.0.0.1", 1)
        relay = RelayPlace(tmp_path / "relay.db", Settings(host="127.0.0.1", port=7447))
        relay.now = wall_clock()
        service = Service(relay.relay, Exporter("nowhere", "nobody"), clock=wall_clock)
        await service.start(network)
        homes = [Home(tmp_path / name) for name in ("ann", "bob")]
        try:
            await gather_in_mesh(service.url, homes, network=network)
            async with at_home(homes[0], network=network) as ann, at_home(homes[1], network=network) as bob:
                await until(lambda: ann.is_connected, lambda: bob.is_connected)
                await ann.send("bob", "hello")
                await until(lambda: bob.bodies() == ["hello"], lambda: ann.receipted() == 1)
        finally:
            await service.close()

    asyncio.run(meet())


def _shown(pubkey: str, days: int) -> httpx.AsyncBaseTransport:
    """A relay that shows this key and remembers ids for so long, and answers nothing else."""
    document = {"pubkey": pubkey, "features": {"dedupe": {"mode": "retention_scoped", "days": days}}}
    return httpx.MockTransport(lambda request: httpx.Response(200, json=document))


def test_a_relay_that_forgets_too_soon_is_not_sent_to(relay: RunningRelay, tmp_path: Path) -> None:
    async def meet() -> None:
        home = Home(tmp_path / "ann")
        await gather_in_mesh(relay.url, [home])
        with at_work(home, threaded=True) as device:
            daemon = Daemon(device)
            daemon.client._http = httpx.AsyncClient(transport=_shown(daemon.membership.relay_pubkey, 3))
            with pytest.raises(Ended, match="at least 7 needed") as ended:
                await daemon.run()
            assert ended.value.refusal is Refusal.FEATURE_PARAM_BELOW_FLOOR

    asyncio.run(meet())


def test_another_relay_under_the_known_address_is_told_and_gets_nothing(relay: RunningRelay, tmp_path: Path) -> None:
    async def meet() -> None:
        home = Home(tmp_path / "ann")
        await gather_in_mesh(relay.url, [home])
        with at_work(home, threaded=True) as device:
            friend = Friend(device)
            friend.daemon.client._http = httpx.AsyncClient(transport=_shown("ab" * 32, 30))
            await until(lambda: "shows the key" in friend.daemon.state.detail)
            assert not friend.is_connected
            await friend.stop()

    asyncio.run(meet())


def test_what_a_restored_relay_has_lost_is_offered_again_and_nobody_gets_it_twice(tmp_path: Path) -> None:
    async def act(ann: Friend, bob: Friend) -> None:
        await ann.send("bob", "before")
        await until(lambda: ann.receipted() == 1)
        _relay_command("backup", str(tmp_path / "copy"), "--data", str(data))
        await ann.send("bob", "after")
        await until(lambda: ann.receipted() == 2)
        first.stop(signal.SIGKILL)
        shutil.rmtree(data)
        _relay_command("restore", str(tmp_path / "copy"), "--data", str(data))
        with running(data, options=("--port", str(first.address[1]))):
            await until(
                lambda: ann.rows("SELECT count(DISTINCT log_id) FROM operation_log WHERE log_id NOT NULL") == [(2,)]
            )
            await until(lambda: ann.statuses() == {"done"})
            await ann.send("bob", "later")
            await until(lambda: ann.receipted() == 3)
            assert bob.bodies() == ["before", "after", "later"]

    data = tmp_path / "relay"
    with running(data, options=ports.options()) as first:
        _together(first.url, tmp_path, act)


def test_a_restored_relay_hears_of_changed_keys_again_before_what_was_sealed_with_them(tmp_path: Path) -> None:
    """Else a post is refused for its key and sealed anew, though its recipient has it: two events in one place of the log."""

    async def subscribed(*friends: Friend) -> None:
        for friend in friends:
            async with friend.daemon.session() as session:
                await topics.subscribe(session, "news")
        await until(*(lambda friend=friend: _key_epoch(friend) == 1 for friend in friends))

    async def meet() -> None:
        async with company(first.url, tmp_path, "ann", "bob", "carol") as (ann, bob, carol):
            async with ann.daemon.session() as session:
                await topics.create(session, "news")
            await subscribed(bob, carol)
            _relay_command("backup", str(tmp_path / "copy"), "--data", str(data))
            async with ann.daemon.session() as session:
                await session.ask(RevokeMember(member=carol.daemon.facts.member))
            await until(lambda: _key_epoch(ann) == 2, lambda: _key_epoch(bob) == 2)
            await ann.send("@news", "without Carol")
            await until(lambda: ann.receipted() == 1)
            sealed = ann.rows("SELECT event_id FROM operation_log WHERE destination_kind = 'topic'")
            first.stop(signal.SIGKILL)
            shutil.rmtree(data)
            _relay_command("restore", str(tmp_path / "copy"), "--data", str(data))
            with running(data, options=("--port", str(first.address[1]))):
                await until(lambda: ann.rows(_LOGS) == [(2,)], lambda: ann.statuses() == {"done"})
                assert ann.rows("SELECT event_id FROM operation_log WHERE destination_kind = 'topic'") == sealed
                assert bob.bodies() == ["without Carol"]
                assert bob.rows("SELECT count(*) FROM inbox_duplicate") == [(0,)]

    data = tmp_path / "relay"
    with running(data, options=ports.options()) as first:
        asyncio.run(meet())


@pytest.mark.parametrize("backup", ["before the topic", "before the subscription"])
def test_a_member_that_is_back_before_the_topics_keeper_loses_no_post_after_a_restore(
    tmp_path: Path, backup: str
) -> None:
    ann, bob, data = Home(tmp_path / "ann"), Home(tmp_path / "bob"), tmp_path / "relay"

    def back_up(when: str) -> None:
        if when == backup:
            _relay_command("backup", str(tmp_path / "copy"), "--data", str(data))

    async def subscribe(friend: Friend) -> None:
        async with friend.daemon.session() as session:
            await topics.subscribe(session, "news")

    async def talk() -> None:
        await gather_in_mesh(first.url, [ann, bob])
        async with at_home(ann) as a, at_home(bob) as b:
            await until(lambda: a.is_connected, lambda: b.is_connected)
            back_up("before the topic")
            async with a.daemon.session() as session:
                await topics.create(session, "news")
            await subscribe(a)
            back_up("before the subscription")
            await subscribe(b)
            await until(lambda: _key_epoch(b) == 1)
            await b.send("@news", "once")
            await until(lambda: b.receipted() == 1)

    async def come_back() -> None:
        async with at_home(bob) as b:
            await until(lambda: b.rows(_PUT_OFF) == [(1,)])
            if backup == "before the topic":
                assert "given up: subject_unknown: there is no topic news" in (b.daemon.state.last_error or "")
            async with at_home(ann) as a:
                await until(lambda: "news" in b.daemon.directory.topics)
                await subscribe(b)
                await until(lambda: b.statuses() == {"done"})
                await a.send("@news", "back")
                await until(lambda: b.bodies() == ["back"])
                assert a.bodies() == ["once"]

    with running(data, options=ports.options()) as first:
        asyncio.run(talk())
        first.stop(signal.SIGKILL)
    shutil.rmtree(data)
    _relay_command("restore", str(tmp_path / "copy"), "--data", str(data))
    with running(data, options=("--port", str(first.address[1]))):
        asyncio.run(come_back())


_PUT_OFF = "SELECT count(*) FROM operation_log WHERE destination_kind = 'topic' AND status = 'pending' AND attempts > 1"
_LOGS = "SELECT count(DISTINCT log_id) FROM operation_log WHERE log_id NOT NULL"


def _key_epoch(friend: Friend) -> int:
    """The newest key of a topic that somebody has."""
    ((found,),) = friend.rows("SELECT coalesce(max(key_epoch), 0) FROM topic_key")
    return int(found)


def _relay_command(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "holdfast.cli", "relay", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_a_key_opens_is_opened_though_the_connection_was_lost_while_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_house(tmp_path / "home") as house:
        post = house.bob.post("news", b"to all")
        house.store(house.arrival(post, body=None))
        house.do(lambda tx: topic_keys.keep_granted(tx, house.now, "news", 1, topic_key("news", 1)))
        daemon = house.service.daemon

        async def lost(opened: object) -> None:
            raise asyncio.CancelledError

        def see() -> None:
            asyncio.run_coroutine_threadsafe(daemon._link.see_mesh(), house.loop).result()

        with monkeypatch.context() as broken:
            broken.setattr(daemon._link, "_keep_opened", lost)
            with pytest.raises(CancelledError):
                see()
        see()
        assert [message.body for message in house.inbox()] == [b"to all"]


@pytest.mark.parametrize("hours", [None, 24])
def test_before_its_relay_was_met_only_a_setting_says_when_a_send_is_too_old(tmp_path: Path, hours: int | None) -> None:
    """A computer that is started in the wild must not give up what its relay would still take at home."""
    settings = DeviceSettings(outbox=OutboxSettings(max_age_hours_override=hours))
    with new_house(tmp_path / "home", settings=settings) as house:
        assert house.service.daemon.state.max_age_hours == hours
        assert house.service.daemon.sender.max_age_hours == hours


_LONG_AGO = "UPDATE inbox SET received_at = 0"
_PRUNED = "SELECT count(*) FROM inbox WHERE pruned_at IS NOT NULL"


def test_what_is_old_is_pruned_while_the_relay_is_connected(
    relay: RunningRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemons, "HOUSEKEEPING_S", 0.05)
    monkeypatch.setattr(daemons, "PRUNE_EVERY", 1)

    async def act(ann: Friend, bob: Friend) -> None:
        await ann.send("bob", "hello")
        await until(lambda: bob.bodies() == ["hello"])
        await bob.daemon.do(lambda tx: tx.run(_LONG_AGO))
        await until(lambda: bob.rows(_PRUNED) == [(1,)])

    _together(relay.url, tmp_path, act)


def test_a_daemon_that_runs_for_less_than_a_minute_prunes_too(relay: RunningRelay, tmp_path: Path) -> None:
    """Its first round of housekeeping comes before the first connection, and there may be no second one."""
    ann, bob = Home(tmp_path / "ann"), Home(tmp_path / "bob")

    async def meet() -> None:
        await gather_in_mesh(relay.url, [ann, bob])
        async with at_home(ann) as a, at_home(bob) as b:
            await a.send("bob", "hello")
            await until(lambda: b.bodies() == ["hello"])
            await b.daemon.do(lambda tx: tx.run(_LONG_AGO))
        async with at_home(bob) as b, asyncio.timeout(daemons.HOUSEKEEPING_S / 2):
            await until(lambda: b.rows(_PRUNED) == [(1,)])

    asyncio.run(meet())


def test_nothing_is_pruned_by_a_clock_that_no_relay_has_found_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A computer that starts with a clock far ahead would lose the content of all its messages."""
    monkeypatch.setattr(daemons, "HOUSEKEEPING_S", 0.001)
    monkeypatch.setattr(daemons, "PRUNE_EVERY", 1)
    rounds, enough = itertools.count(1), threading.Event()

    async def counted() -> int:
        if next(rounds) == 10:
            enough.set()
        return 0

    with new_house(tmp_path / "home") as house:
        house.store(house.arrival(house.bob.message(house.me)))
        house.do(lambda tx: tx.run(_LONG_AGO))
        monkeypatch.setattr(house.service.daemon.sender, "age_out", counted)
        assert enough.wait(WAIT_S)
        assert house.rows(_PRUNED) == [(0,)]


def test_a_home_whose_founding_grew_too_old_is_not_told_that_the_relay_refused_it(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    furnish(home)
    with at_work(home, clock=lambda: wall_clock() + 7 * DAY) as device:
        device.do(lambda tx: tx.run("UPDATE operation_log SET status = 'pending', delivered_at = NULL"))
        with pytest.raises(Refused, match=r"did not get into its mesh.*waited for more than 144 hours"):
            asyncio.run(Daemon(device)._link._finish_joining())


def test_a_full_mesh_is_not_asked_to_admit_an_author_again_and_again(tmp_path: Path) -> None:
    """Every edit is offered again and again, and each time the author would be one more decision that was given up."""

    async def act(ann: Friend, bob: Friend) -> None:
        async with ann.daemon.session() as session:
            other = administration.admit_author(
                secret_of("other"), ann.daemon.facts.mesh, ann.daemon.facts.member, bytes(32)
            )
            await session.ask(other)
        await ann.daemon.feed.init()
        await ann.daemon.feed.put("list", "milk")
        await until(lambda: ann.rows(_OFFERED)[0][0] > 2)
        assert ann.rows(_ADMISSIONS_GIVEN_UP) == [(1,)]
        assert "mesh.member_authors_max" in (ann.daemon.state.last_error or "")

    with running(tmp_path / "relay", "[mesh]\nmember_authors_max = 1\n", options=ports.options()) as relay:
        _together(relay.url, tmp_path, act)


_OFFERED = "SELECT coalesce(max(attempts), 0) FROM operation_log WHERE destination_kind = 'feed'"
_ADMISSIONS_GIVEN_UP = "SELECT count(*) FROM operation_log WHERE destination_kind = 'admin' AND status = 'dead'"
