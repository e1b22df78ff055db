"""A member gets another key: what was sealed to the old one opens, what is sealed to it anew is put right, nobody is locked out."""

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from holdfast.device import link, member_keys, own_key, sender, topics
from holdfast.device.daemon import Ended
from holdfast.device.device import Device, at_work
from holdfast.device.home import Damaged, Exposed, Home
from holdfast.device.member_keys import ARCHIVE_NAME, ARCHIVED_MAX, NEXT_NAME
from holdfast.device.mesh import Session, in_session, standing
from holdfast.device.publish import Publisher, PutOff
from holdfast.device.rotation import Rotated, rotate
from holdfast.protocol import keys
from holdfast.protocol.refusal import Refusal, Refused, problem
from holdfast.protocol.schedule import DAY
from holdfast.store import files
from holdfast.store.world import wall_clock
from holdfast.wire.client import RelayClient, Unreachable
from tests import ports
from tests.device.company import Friend, at_home, gather_in_mesh, until
from tests.device.place import yes
from tests.relay.running import RunningRelay, running

TTL_DAYS = 3  # of the relay of these tests


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRelay]:
    settings = f"[retention]\nqueue_ttl_days = {TTL_DAYS}\n"
    with running(tmp_path_factory.mktemp("rotation") / "relay", settings) as started:
        yield started


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "LOOK_S", 0.2)
    monkeypatch.setattr(sender, "BAR_S", 1)


@pytest.fixture
def homes(relay: RunningRelay, tmp_path: Path) -> tuple[Home, Home]:
    """Two members of one mesh."""
    pair = Home(tmp_path / "ann"), Home(tmp_path / "bob")
    asyncio.run(gather_in_mesh(relay.url, pair))
    return pair


async def _rotate(device: Device) -> Rotated:
    async with in_session(device) as session:
        return await rotate(session)


def _rotated(home: Home) -> Rotated:
    with at_work(home) as device:
        return asyncio.run(_rotate(device))


class _Deaf(httpx.AsyncHTTPTransport):
    """A way to the relay on which no answer to what is published ever comes back."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        if request.method == "POST":
            await response.aclose()
            raise httpx.ReadError("the connection broke")
        return response


def _rotated_unheard(home: Home) -> tuple[str, str]:
    """A rotation that the relay takes and whose answer is lost; says the key before and the key after."""

    async def act(device: Device) -> None:
        membership, _ = standing(device)
        assert membership is not None
        async with RelayClient(membership.relay, device.secret, transport=_Deaf()) as client:
            publisher = Publisher(device, client, membership.relay_pubkey)
            session = Session(device, client, publisher, membership)
            await session.refresh()
            with pytest.raises(PutOff):
                await rotate(session)

    with at_work(home) as device:
        before = device.pubkey
        asyncio.run(act(device))
        assert device.pubkey == before, "nobody knows yet"
        asked = member_keys.asked_for(home)
        assert asked is not None
        return before, keys.public_key(keys.read_nsec(asked.secret))


def _files(home: Home) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in home.path.glob("member*")}


def test_what_waits_under_the_old_key_opens_and_what_is_sealed_to_it_later_is_sealed_anew(
    homes: tuple[Home, Home],
) -> None:
    ann, bob = homes

    async def meet() -> None:
        async with at_home(ann) as a:
            await until(lambda: a.is_connected)
            async with a.daemon.session() as session:
                await topics.create(session, "news")
            async with at_home(bob) as b:
                await until(lambda: b.is_connected)
                async with b.daemon.session() as session:
                    await topics.subscribe(session, "news")
                await until(lambda: b.rows("SELECT count(*) FROM topic_key") == [(1,)])
                member, old = b.daemon.facts.member, b.device.pubkey
            await a.send("bob", "to the old key")
            await a.send("@news", "to all")
            await until(lambda: a.statuses() == {"done"})
            with at_work(bob) as device:
                rotated = await _rotate(device)
                assert (rotated.member, rotated.was) == (member, old)
                assert device.pubkey == rotated.pubkey != old
            sealed_to = a.daemon.directory.sealing_key_of(member)
            await a.send("bob", "sealed to whichever key is known")
            async with at_home(bob) as b:
                await until(lambda: len(b.bodies()) == 3)
                bodies = b.bodies()
                assert bodies.count("to all") == 1  # to another destination, so at any time
                bodies.remove("to all")
                assert bodies == ["to the old key", "sealed to whichever key is known"]
                await b.send("ann", "from the new key")
                await until(lambda: a.bodies() == ["from the new key"], lambda: b.receipted() == 1)
                await until(lambda: a.receipted() == 3)
                assert a.messages()[0].sender == member, "the same member as before"
                assert sealed_to in (old, rotated.pubkey)

    asyncio.run(meet())


def test_a_sender_whose_directory_is_old_learns_of_the_new_key_by_a_refusal(
    homes: tuple[Home, Home], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "LOOK_S", 3600.0)  # it would not find out by itself
    ann, bob = homes

    async def meet() -> None:
        async with at_home(ann) as a:
            await until(lambda: a.is_connected and a.daemon.sightings > 0)
            with at_work(bob) as device:
                rotated = await _rotate(device)
            assert a.daemon.directory.sealing_key_of(rotated.member) == rotated.was
            await a.send("bob", "hello")
            async with at_home(bob) as b:
                await until(lambda: b.bodies() == ["hello"], lambda: a.receipted() == 1)
            ((event,),) = a.rows("SELECT event FROM operation_log WHERE destination_kind = 'dm'")
            assert rotated.pubkey.encode() in event
            assert rotated.was.encode() not in event

    asyncio.run(meet())


def test_a_key_rotates_under_traffic_both_ways_and_nothing_is_lost_or_doubled(homes: tuple[Home, Home]) -> None:
    ann, bob = homes

    async def talk(sender: Friend, to: str, count: int) -> None:
        for number in range(count):
            await sender.send(to, str(number))
            await asyncio.sleep(0.01)

    async def meet() -> None:
        async with at_home(ann) as a, at_home(bob) as b:
            await until(lambda: a.is_connected, lambda: b.is_connected)
            await until(lambda: a.daemon.sightings > 0, lambda: b.daemon.sightings > 0)  # each knows of the other
            talking = asyncio.gather(talk(a, "bob", 60), talk(b, "ann", 60))
            used = {b.device.pubkey}
            for _ in range(2):
                await asyncio.sleep(0.1)
                await until(lambda: b.is_connected)
                async with b.daemon.session() as session:
                    used.add((await rotate(session)).pubkey)
            await talking
            await until(lambda: a.receipted() == 60, lambda: b.receipted() == 60)
            # The answer to what a receipt is for may still be on its way, and so may the last receipts.
            await until(lambda: a.statuses() == b.statuses() == {"done"})
            assert len(used) == 3
            for friend in (a, b):
                assert friend.bodies() == [str(number) for number in range(60)]

    asyncio.run(meet())


@pytest.mark.parametrize("state", ["the send waits", "the log went back", "the send grew too old"])
def test_a_rotation_whose_answer_was_lost_is_finished_by_the_daemon(homes: tuple[Home, Home], state: str) -> None:
    _, bob = homes
    earlier = bob.path.with_name("earlier.db")
    shutil.copyfile(bob.database, earlier)
    before, after = _rotated_unheard(bob)
    if state == "the log went back":
        for path in bob.path.glob("device.db*"):
            path.unlink()
        shutil.copyfile(earlier, bob.database)
        bob.database.chmod(0o600)
    late = DAY * 30 if state == "the send grew too old" else 0

    async def meet() -> None:
        with at_work(bob, clock=lambda: wall_clock() + late) as device:
            if late:
                async with RelayClient(standing(device)[0].relay, device.secret) as client:  # type: ignore[union-attr]
                    membership, _ = standing(device)
                    assert membership is not None
                    await Publisher(device, client, membership.relay_pubkey).heal(membership.mesh)
        async with at_home(bob) as b:
            await until(lambda: b.is_connected)
            assert b.device.pubkey == after
            assert set(b.device._secrets) == {before, after}

    asyncio.run(meet())
    assert not (bob.path / NEXT_NAME).exists()
    with at_work(bob) as device:
        assert device.pubkey == after


@pytest.mark.parametrize("step", ["archive", "key", "next"])
def test_a_death_at_any_step_of_the_end_leaves_a_home_that_the_next_start_finishes(
    homes: tuple[Home, Home], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Death(BaseException):
        pass

    def die(*arguments: object, **more: object) -> None:
        raise Death

    _, bob = homes
    replace = files.replace

    def dying(path: Path, content: bytes) -> None:
        if path.name == {"archive": ARCHIVE_NAME, "key": "member.key"}.get(step):
            raise Death
        replace(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(files, "replace", dying)
        if step == "next":
            patch.setattr(member_keys, "_remove", die)
        with pytest.raises((Death, BaseExceptionGroup)):
            _rotated(bob)
    asked = member_keys.asked_for(bob)
    assert asked is not None

    async def meet() -> None:
        async with at_home(bob) as b:
            await until(lambda: b.is_connected)

    asyncio.run(meet())
    with at_work(bob) as device:
        assert device.secret == keys.read_nsec(asked.secret)
        assert len(device.secrets) == 2
    assert sorted(_files(bob)) == [ARCHIVE_NAME, "member.key"]


def test_a_rotation_that_the_relay_refuses_leaves_the_key_as_it_was(
    homes: tuple[Home, Home], monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, bob = homes
    with at_work(ann) as device:
        taken = device.secret
    before = _files(bob)
    monkeypatch.setattr(member_keys, "begin", _begin_with(taken))
    with at_work(bob) as device:
        with pytest.raises(Refused) as refused:
            asyncio.run(_rotate(device))
        assert refused.value.refusal is Refusal.KEY_TAKEN
    assert _files(bob) == before


def _begin_with(secret: bytes):  # type: ignore[no-untyped-def]  # stands in for a function whose type it has
    begin = member_keys.begin

    def begun(home: Home, now: int, random: object, name: str, ttl_days: int) -> bytes:
        return begin(home, now, lambda size: secret[:size], name, ttl_days)

    return begun


def test_old_keys_are_kept_for_the_queues_time_and_a_day_and_a_ninth_rotation_meanwhile_is_refused(
    homes: tuple[Home, Home],
) -> None:
    _, bob = homes
    for number in range(ARCHIVED_MAX):
        rotated = _rotated(bob)
        assert stat.S_IMODE((bob.path / ARCHIVE_NAME).stat().st_mode) == 0o600, number
    kept = rotated.kept_until - wall_clock()
    assert (TTL_DAYS + 1) * DAY - 60_000_000 < kept <= (TTL_DAYS + 1) * DAY
    before = _files(bob)
    with pytest.raises(Refused) as refused:
        _rotated(bob)
    assert refused.value.refusal is Refusal.TOO_MANY_OLD_KEYS
    assert _files(bob) == before
    first = member_keys.archived(bob, wall_clock())[0]
    assert member_keys.drop_expired(bob, first.expires_at - 1) == 0
    assert member_keys.drop_expired(bob, first.expires_at) == 1
    assert len(member_keys.archived(bob, wall_clock())) == ARCHIVED_MAX - 1
    _rotated(bob)
    assert member_keys.drop_expired(bob, wall_clock() + 5 * DAY) == ARCHIVED_MAX
    assert sorted(_files(bob)) == ["member.key"]


def test_a_copy_of_a_home_from_before_the_rotation_is_told_that_its_key_is_no_more(homes: tuple[Home, Home]) -> None:
    _, bob = homes
    copy = Home(bob.path.with_name("copy"))
    shutil.copytree(bob.path, copy.path)
    _rotated(bob)

    async def meet() -> None:
        async with at_home(copy) as old:
            await until(old.running.done)
            ended = old.running.exception()
            assert isinstance(ended, Ended)
            assert ended.refusal is Refusal.KEY_SUPERSEDED

    asyncio.run(meet())


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b'{"version": 2, "keys": []}',
        b'{"version": 1, "keys": [{"pubkey": "00"}]}',
        b'{"version": 1, "keys": [], "more": 1}',
        b"\xff\xfe",
    ],
)
def test_an_archive_that_cannot_be_read_is_put_aside_and_not_overwritten(tmp_path: Path, content: bytes) -> None:
    home = _home(tmp_path)
    (home.path / ARCHIVE_NAME).write_bytes(content)
    (home.path / ARCHIVE_NAME).chmod(0o600)
    assert member_keys.archived(home, 7) == ()
    assert (home.path / f"{ARCHIVE_NAME}.malformed-7").read_bytes() == content
    assert not (home.path / ARCHIVE_NAME).exists()


def test_an_archive_stays_small_though_no_daemon_ever_drops_a_key(tmp_path: Path) -> None:
    home, now = Home(tmp_path), 0
    secret = home.secret(os.urandom)
    for number in range(80):
        now += DAY
        member_keys.begin(home, now, os.urandom, f"rotation-{number}", ttl_days=3)
        asked = member_keys.asked_for(home)
        assert asked is not None
        secret = member_keys.finish(home, now, secret, asked)
        assert 1 <= len(member_keys.archived(home, now)) <= ARCHIVED_MAX
    assert [path.name for path in tmp_path.glob("member-keys*")] == ["member-keys.json"], "none was put aside"


def test_an_archive_whose_secret_is_another_keys_is_put_aside(tmp_path: Path) -> None:
    home = _home(tmp_path)
    secret = member_keys.begin(home, 1, lambda size: b"\x05" * size, "id", 7)
    asked = member_keys.asked_for(home)
    assert asked is not None
    member_keys.finish(home, 1, b"\x06" * 32, asked)
    text = (home.path / ARCHIVE_NAME).read_text()
    (home.path / ARCHIVE_NAME).write_text(text.replace(keys.nsec(b"\x06" * 32), keys.nsec(secret)))
    assert member_keys.archived(home, 9) == ()
    assert (home.path / f"{ARCHIVE_NAME}.malformed-9").exists()


def test_keys_that_others_can_read_are_not_used(tmp_path: Path) -> None:
    home = _home(tmp_path)
    for name in (ARCHIVE_NAME, NEXT_NAME):
        (home.path / name).write_text("{}")
        (home.path / name).chmod(0o644)
    with pytest.raises(Exposed):
        member_keys.archived(home, 1)
    with pytest.raises(Exposed):
        member_keys.asked_for(home)
    (home.path / NEXT_NAME).chmod(0o600)
    with pytest.raises(Damaged):
        member_keys.asked_for(home)


def _home(place: Path) -> Home:
    home = Home(place / "home")
    home.path.mkdir(mode=0o700)
    return home


def test_a_relay_that_does_not_decide_about_a_key_it_forgot_is_asked_again_later(homes: tuple[Home, Home]) -> None:
    """Whoever is a stranger to a relay ends for good; so nobody may be one because an answer was lost."""
    answers: dict[str, httpx.Response | httpx.ConnectError] = {
        "nobody answers": httpx.ConnectError("gone"),
        "it has no time": httpx.Response(503, json=problem(Refusal.UNAVAILABLE, "later")),
        "it is too fast": httpx.Response(429, json=problem(Refusal.RATE_LIMITED, "later")),
    }

    async def ask(device: Device, answer: httpx.Response | httpx.ConnectError) -> bool:
        def give(request: httpx.Request) -> httpx.Response:
            if isinstance(answer, Exception):
                raise answer
            return answer

        async with RelayClient("http://relay.example", device.secret, transport=httpx.MockTransport(give)) as client:
            return await own_key.introduce_again(device, client)

    with at_work(homes[1]) as device:
        asyncio.run(_rotate(device))
        for answer in answers.values():
            with pytest.raises(Unreachable):
                asyncio.run(ask(device, answer))
        assert not asyncio.run(ask(device, httpx.Response(403, json=problem(Refusal.NOT_PERMITTED, "never"))))
        assert asyncio.run(ask(device, httpx.Response(201, json=yes("rotation", 7))))
        # A relay that has the rotation and does not know us by it has put us out.
        assert not asyncio.run(ask(device, httpx.Response(200, json=yes("rotation", 7, duplicate=True))))


def test_a_relay_that_went_back_to_before_the_rotation_is_told_of_the_key_again(tmp_path: Path) -> None:
    ann, bob, data = Home(tmp_path / "ann"), Home(tmp_path / "bob"), tmp_path / "relay"

    def relay_command(*arguments: object) -> None:
        words = [sys.executable, "-m", "holdfast.cli", "relay", *map(str, arguments)]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    async def meet() -> None:
        await gather_in_mesh(first.url, [ann, bob])
        relay_command("backup", tmp_path / "copy", "--data", data)
        with at_work(bob) as device:
            for _ in range(2):
                rotated = await _rotate(device)
        first.stop(signal.SIGKILL)
        shutil.rmtree(data)
        relay_command("restore", tmp_path / "copy", "--data", data)
        with running(data, options=("--port", str(first.address[1]))):
            async with at_home(ann) as a, at_home(bob) as b:
                await until(lambda: a.is_connected, lambda: b.is_connected)
                assert b.device.pubkey == rotated.pubkey
                await until(lambda: a.daemon.directory.sealing_key_of(rotated.member) == rotated.pubkey)
                await a.send("bob", "to the key that was forgotten")
                await until(lambda: b.bodies() == ["to the key that was forgotten"])

    with running(data, options=ports.options()) as first:
        asyncio.run(meet())
