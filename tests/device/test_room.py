"""When there is too little room: it is said, sends are refused, nothing that was accepted is touched, and it passes."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from holdfast.cli.hook_process import posting
from holdfast.device import daemon
from holdfast.device.home import Home
from holdfast.device.settings import DiskSettings, OutboxSettings, Settings
from holdfast.protocol.agent_event import AgentEvent, AgentKind
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.store.settings import SettingsInvalid
from tests.device.house import House, at_home, furnish, new_house
from tests.relay.running import Answered

RESERVE = 100_000_000


class Disk:
    """A disk whose free space a test decides."""

    def __init__(self) -> None:
        self.free = 10**12

    def __call__(self, path: Path) -> int:
        return self.free


EDITS = {
    "put": {"name": "note", "body": "two"},
    "delete": {"name": "note"},
    "resolve": {"name": "note", "body": "two"},
    "share": {"member": "bob"},
}


def _send(house: House, name: str) -> str:
    return str(house.ask("POST", "/v1/send", {"to": "bob", "message": "hello", "client_message_id": name}))


def _tight(path: Path, disk: Disk, **more: Any) -> Any:
    settings = Settings(disk=DiskSettings(reserved_bytes=RESERVE), **more)
    return new_house(path, settings=settings, free_bytes=disk)


def test_it_is_said_then_sends_are_refused_then_nothing_new_is_begun_and_all_of_it_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "ROOM_LOOK_S", 0.05)
    disk = Disk()
    with _tight(tmp_path / "home", disk) as house, house.client() as client:
        assert _send(house, "one").startswith("202")
        assert str(house.ask("POST", "/v1/feed/init", {})).startswith("200")
        assert str(house.ask("POST", "/v1/feed/put", {"name": "note", "body": "one"})).startswith("200")
        events = client.events()
        kinds: list[str] = []

        def until(kind: str) -> None:
            while kind not in kinds:
                kinds.append(next(events).kind)

        until("disconnected")
        disk.free = RESERVE // 5
        until("outbox_pressure_high")
        assert house.ask("GET", "/v1/health").document["pressure"] == "high"
        assert _send(house, "two").startswith("202"), "80 %: it is said, and no more"
        disk.free = RESERVE // 20
        until("outbox_pressure_full")
        assert _send(house, "three") == "507 insufficient_storage"
        assert _send(house, "two").startswith("202"), "a repetition is answered from its row"
        for verb, asked in EDITS.items():
            assert str(house.ask("POST", f"/v1/feed/{verb}", asked)) == "507 insufficient_storage", verb
        assert house.ask("GET", "/v1/feed/documents/note").document["versions"][0]["body"] == "one"
        disk.free = 0
        until("outbox_pressure_degraded")
        assert str(house.ask("GET", "/v1/events")) == "507 insufficient_storage"
        health = house.ask("GET", "/v1/health").document
        assert (health["pressure"], health["pressure_of"], health["pressure_percent"]) == (
            "degraded",
            "disk.reserved_bytes",
            100,
        )
        assert b"holdfast_room_used_percent 100.0" in house.ask("GET", "/v1/metrics").body
        house.store(house.arrival(house.bob.message(house.me)))  # what comes from others is taken
        disk.free = 10**12
        until("outbox_pressure_normal")
        assert _send(house, "three").startswith("202")
        assert house.rows("SELECT count(*) FROM operation_log WHERE destination_kind = 'dm'") == [(3,)]


def test_what_agents_tell_a_topic_waits_for_room_like_every_send(tmp_path: Path) -> None:
    disk = Disk()
    with _tight(tmp_path / "home", disk) as house:
        post = posting(house.service.daemon)

        async def told(text: str) -> None:
            await post(
                "@news", AgentEvent(id=text, kind=AgentKind.PROMPT, agent="claude", session_id="s", at=7, text=text)
            )

        def tell(text: str) -> None:
            asyncio.run_coroutine_threadsafe(told(text), house.loop).result(30)

        tell("one")
        disk.free = RESERVE // 20
        with pytest.raises(Refused) as refused:
            tell("two")
        assert refused.value.refusal is Refusal.INSUFFICIENT_STORAGE
        tell("one")
        disk.free = 10**12
        tell("two")
        assert house.rows("SELECT count(*) FROM operation_log WHERE destination_kind = 'topic'") == [(2,)]


@pytest.mark.parametrize(
    ("settings", "of"),
    [
        (Settings(outbox=OutboxSettings(rows_max=20)), "outbox.rows_max"),
        (Settings(disk=DiskSettings(database_bytes_max=1_048_576)), "disk.database_bytes_max"),
    ],
    ids=["rows", "bytes"],
)
def test_the_outbox_and_the_database_have_their_caps(tmp_path: Path, settings: Settings, of: str) -> None:
    with new_house(tmp_path / "home", settings=settings, free_bytes=Disk()) as house, capture_logs() as logged:
        answers: list[Answered] = []
        number = 0
        while not answers or answers[-1].status == 202:
            request = {"to": "bob", "message": "x" * 30_000, "client_message_id": str(number)}
            answers.append(house.ask("POST", "/v1/send", request))
            number += 1
            assert number < 100
        assert str(answers[-1]) == "507 insufficient_storage"
        assert of in answers[-1].document["detail"]
        ((waiting,),) = house.rows("SELECT count(*) FROM operation_log WHERE status = 'pending'")
        assert waiting == number - 1 > 10
        assert any(entry["event"] == "outbox_pressure_full" and entry["of"] == of for entry in logged)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes; only whom the system lets mount one can try."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no right to mount a file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_on_a_disk_that_really_fills_up_sends_end_in_time_and_every_one_accepted_is_there(small_disk: Path) -> None:
    home = Home(small_disk / "home")
    furnish(home)
    accepted, number = 0, 0
    with at_home(home, settings=Settings(disk=DiskSettings(reserved_bytes=2_000_000))) as house:
        while number < 300:
            answer = house.ask(
                "POST", "/v1/send", {"to": "bob", "message": "x" * 35_000, "client_message_id": f"{number}"}
            )
            if answer.status != 202:
                break
            accepted, number = accepted + 1, number + 1
        assert str(answer) == "507 insufficient_storage"
        ballast = small_disk / "ballast"
        with pytest.raises(OSError, match="No space left"):
            ballast.write_bytes(bytes(10_000_000))
        assert house.ask("GET", "/v1/health").document["pressure"] == "degraded"
        ballast.unlink()
    with at_home(home) as house:
        assert house.rows("SELECT count(*) FROM operation_log WHERE status = 'pending'") == [(accepted,)]
        assert accepted > 20


# Settings


def test_settings_are_read_anew_and_bad_ones_change_nothing(tmp_path: Path) -> None:
    found: list[Settings | Exception] = []
    heard: list[Settings] = []

    def reread() -> Settings:
        if isinstance(found[-1], Exception):
            raise found[-1]
        return found[-1]

    with new_house(tmp_path / "home", reread=reread, reloaded=heard.append, free_bytes=Disk()) as house:
        found.append(Settings(log_level="debug", outbox=OutboxSettings(rows_max=10)))
        assert house.ask("POST", "/v1/reload").document == {"changed": ["log_level", "outbox.rows_max"]}
        assert heard == found
        for number in range(10):
            _send(house, str(number))
        assert _send(house, "more") == "507 insufficient_storage"
        found.append(SettingsInvalid("daemon.toml: rows: there is no such setting."))
        assert str(house.ask("POST", "/v1/reload")) == "400 malformed"
        assert _send(house, "more") == "507 insufficient_storage"
        found.append(Settings())
        assert house.ask("POST", "/v1/reload").document == {"changed": ["log_level", "outbox.rows_max"]}
        assert _send(house, "more").startswith("202")
        assert msgspec.structs.asdict(heard[-1]) == msgspec.structs.asdict(Settings())
