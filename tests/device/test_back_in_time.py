"""A log and a relay that went back in time while people talk: nothing is lost, nothing is applied twice, and both are told."""

import asyncio
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.device import link, recover
from holdfast.device.home import Home
from tests import ports
from tests.device.company import Friend, at_home, gather_in_mesh, until
from tests.relay.running import RunningRelay, running

TALK = 25  # messages of each side in each part of the story


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "LOOK_S", 0.2)
    monkeypatch.setattr(link, "FATES_S", 0.3)


async def _talk(sender: Friend, to: str, part: str) -> list[str]:
    said = [f"{part} {number}" for number in range(TALK)]
    for body in said:
        await sender.send(to, body)
        await asyncio.sleep(0.004)
    return said


def _relay_command(*arguments: object) -> None:
    words = [sys.executable, "-m", "holdfast.cli", "relay", *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_log_and_a_relay_that_went_back_under_traffic_lose_nothing_and_say_so(tmp_path: Path) -> None:
    """First Ann's database is put back, then the relay's, each time with both sides talking before, meanwhile and after."""
    ann, bob, data = Home(tmp_path / "ann"), Home(tmp_path / "bob"), tmp_path / "relay"

    async def meet() -> None:
        await gather_in_mesh(first.url, [ann, bob])
        from_ann: list[str] = []
        from_bob: list[str] = []
        async with at_home(bob) as b:
            async with at_home(ann) as a:
                await until(lambda: a.daemon.sightings > 0 and b.daemon.sightings > 0)
                from_ann += await _talk(a, "bob", "one")
                await until(lambda: len(b.bodies()) == TALK, lambda: a.statuses() == {"done"})
            shutil.copyfile(ann.database, tmp_path / "earlier.db")
            async with at_home(ann) as a:
                epoch = a.device.epoch
                said = await asyncio.gather(_talk(a, "bob", "two"), _talk(b, "ann", "two"))
                from_ann += said[0]
                from_bob += said[1]
                await until(lambda: len(b.bodies()) == 2 * TALK, lambda: len(a.bodies()) == TALK)
                await until(
                    lambda: a.receipted() == 2 * TALK, lambda: b.receipted() == TALK
                )  # both know: all is acknowledged
            for path in ann.path.glob("device.db*"):
                path.unlink()
            shutil.copyfile(tmp_path / "earlier.db", ann.database)
            ann.database.chmod(0o600)
            talking = asyncio.create_task(_talk(b, "ann", "three"))
            async with at_home(ann) as a:
                from_ann += await _talk(a, "bob", "three")
                from_bob += await talking
                await until(lambda: b.bodies() == from_ann, lambda: a.bodies() == from_bob[TALK:])
                assert a.device.epoch != epoch
                assert a.rows("SELECT count(*) FROM history WHERE kind = 'restored'") == [(1,)]
                (reset,) = b.rows("SELECT count(*) FROM sender_epoch")
                assert reset == (2,), "Bob was told that Ann is another sender now"

                _relay_command("backup", tmp_path / "copy", "--data", data)
                talking_again = asyncio.gather(_talk(a, "bob", "four"), _talk(b, "ann", "four"))
                await until(lambda: len(b.bodies()) > 3 * TALK + 5)
                first.stop(signal.SIGKILL)
                shutil.rmtree(data)
                _relay_command("restore", tmp_path / "copy", "--data", data)
                with running(data, options=("--port", str(first.address[1]))) as second:
                    said = await talking_again
                    from_ann += said[0]
                    from_bob += said[1]
                    await until(lambda: b.bodies() == from_ann, lambda: a.bodies() == from_bob[TALK:])
                    told = second.ask("GET", "/").document["log_id"]
                    in_its_log = f"SELECT count(*) > 0 FROM operation_log WHERE hex(log_id) = upper('{told}')"
                    # What the relay had lost is where its new log has it, as soon as they have met: Bob may have had it all.
                    await until(lambda: a.rows(in_its_log) == [(1,)])
                    await until(lambda: a.statuses() == {"done"}, lambda: b.statuses() == {"done"})

    with running(data, options=ports.options()) as first:
        asyncio.run(meet())


def test_a_home_that_lost_its_inbox_asks_again_when_the_relay_has_another_log(tmp_path: Path) -> None:
    """The relay is put back to before a message, then to after it was acknowledged: only the second one can replay it."""
    ann, bob, data = Home(tmp_path / "ann"), Home(tmp_path / "bob"), tmp_path / "relay"

    def put_back(copy: str) -> None:
        shutil.rmtree(data)
        _relay_command("restore", tmp_path / copy, "--data", data)

    async def part() -> None:
        await gather_in_mesh(first.url, [ann, bob])
        shutil.copytree(bob.path, tmp_path / "earlier")
        _relay_command("backup", tmp_path / "before", "--data", data)
        async with at_home(ann) as a, at_home(bob):
            await a.send("bob", "hello")
            await until(lambda: a.receipted() == 1)
        _relay_command("backup", tmp_path / "after", "--data", data)
        shutil.rmtree(bob.path)
        shutil.copytree(tmp_path / "earlier", bob.path)

    async def bob_has(relay: RunningRelay, *bodies: str, replay: bool = False) -> None:
        log_id = bytes.fromhex(relay.ask("GET", "/").document["log_id"])
        async with at_home(bob, replay=replay) as b:
            await until(lambda: b.device.look(recover.replayed_in) == log_id)
            assert b.bodies() == list(bodies)

    with running(data, options=ports.options()) as first:
        asyncio.run(part())
        first.stop(signal.SIGKILL)
    put_back("before")
    with running(data, options=("--port", str(first.address[1]))) as second:
        asyncio.run(bob_has(second, replay=True))
        second.stop(signal.SIGKILL)
    put_back("after")
    with running(data, options=("--port", str(first.address[1]))) as third:
        asyncio.run(bob_has(third, "hello"))
