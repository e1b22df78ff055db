"""On which machine a home lives, and what happens when it is found on another."""

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from holdfast.device import host, settings
from holdfast.device.home import Home
from holdfast.device.host import Machine, Verdict, judge, read_machine
from holdfast.device.remint import remint
from holdfast.device.settings import ClonePolicy
from holdfast.protocol import keys
from holdfast.protocol.refusal import Refusal, Refused
from tests.device.house import furnish


def _machine(root: Path, machine_id: str | None = None, cards: dict[str, str] | None = None) -> Machine:
    if machine_id is not None:
        (root / "etc").mkdir(parents=True, exist_ok=True)
        (root / "etc" / "machine-id").write_text(machine_id + "\n")
    for name, address in (cards or {}).items():
        (root / "sys" / "class" / "net" / name).mkdir(parents=True, exist_ok=True)
        (root / "sys" / "class" / "net" / name / "address").write_text(address + "\n")
    return read_machine(root, lambda command: "")


def test_a_machine_is_known_by_its_id_and_the_file_does_not_tell_it(tmp_path: Path) -> None:
    found = _machine(tmp_path / "a", "b08dfa6083e7567a1921a715000001fb")
    assert found == _machine(tmp_path / "b", "b08dfa6083e7567a1921a715000001fb")
    assert found != _machine(tmp_path / "c", "b08dfa6083e7567a1921a715000001fc")
    assert found.card is None
    assert "b08dfa" not in repr(found)


@pytest.mark.parametrize("text", ["", "uninitialized", "\xff"])
def test_an_id_that_is_none_is_not_taken_for_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "machine-id").write_bytes(text.encode("latin-1"))
    assert read_machine(tmp_path, lambda command: "") == Machine()


def test_where_there_is_no_file_the_system_is_asked(tmp_path: Path) -> None:
    said = {"ioreg": '    "IOPlatformUUID" = "5C1E9B2A-0000-1111-2222-333344445555"\n'}
    found = read_machine(tmp_path, lambda command: said.get(command[0], ""))
    assert found.host_id is not None
    assert found == read_machine(tmp_path, lambda command: said.get(command[0], "").replace("5C1E", "5c1e"))
    other = read_machine(tmp_path, lambda command: "5c1e9b2a-0000-1111-2222-333344445555" * (command[0] == "sysctl"))
    assert other == found


def test_the_first_real_card_counts_cables_before_radio(tmp_path: Path) -> None:
    real = "3c:22:fb:00:00:01"
    unreal = {
        "lo": "00:00:00:00:00:00",
        "docker0": "3c:22:fb:00:00:08",
        "veth12": "3c:22:fb:00:00:09",
        "eth0": "02:42:ac:11:00:02",  # somebody made it up
        "eth1": "00:00:00:00:00:00",
        "enx": "not an address",
    }
    assert _machine(tmp_path / "none", None, unreal) == Machine()
    with_radio = _machine(tmp_path / "radio", None, {**unreal, "wlp1": real})
    assert with_radio.card is not None
    with_cable = _machine(tmp_path / "cable", None, {**unreal, "wlp1": "3c:22:fb:00:00:02", "enp3s0": real})
    assert with_cable == with_radio


@pytest.mark.parametrize(
    ("found", "now", "verdict"),
    [
        (None, Machine(host_id="a"), Verdict.NEW),
        (Machine(host_id="a", card="x"), Machine(host_id="a", card="y"), Verdict.SAME),
        (Machine(host_id="a", card="x"), Machine(host_id="b", card="x"), Verdict.OTHER),
        (Machine(host_id="a", card="x"), Machine(card="x"), Verdict.SAME),
        (Machine(card="x"), Machine(host_id="a", card="y"), Verdict.OTHER),
        (Machine(host_id="a"), Machine(card="x"), Verdict.UNKNOWN),
        (Machine(), Machine(host_id="a"), Verdict.UNKNOWN),
        (Machine(host_id="a"), Machine(), Verdict.UNKNOWN),
    ],
)
def test_the_id_decides_and_the_card_where_there_is_none(found: Machine | None, now: Machine, verdict: Verdict) -> None:
    assert judge(found, now) is verdict


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = Home(tmp_path / "home")
    furnish(found)
    return found


def test_a_home_on_another_machine_is_refused_or_told_of_or_allowed(home: Home) -> None:
    here, there = Machine(host_id="here"), Machine(host_id="there")
    host.check(home, here, ClonePolicy.REFUSE)
    assert host.noted(home) == here
    assert (home.path / "host.json").stat().st_mode & 0o777 == 0o600
    with pytest.raises(Refused) as refused:
        host.check(home, there, ClonePolicy.REFUSE)
    assert refused.value.refusal is Refusal.HOST_CHANGED
    assert host.noted(home) == here
    with capture_logs() as logged:
        host.check(home, there, ClonePolicy.WARN)
    assert [entry["event"] for entry in logged] == ["clone_suspected"]
    assert host.noted(home) == here, "it goes on warning"
    host.check(home, there, ClonePolicy.ALLOW)
    host.check(home, there, ClonePolicy.REFUSE)
    assert host.noted(home) == there


def test_a_new_card_in_the_same_machine_is_noted_without_a_word(home: Home) -> None:
    host.check(home, Machine(host_id="a", card="x"), ClonePolicy.REFUSE)
    host.check(home, Machine(host_id="a", card="y"), ClonePolicy.REFUSE)
    assert host.noted(home) == Machine(host_id="a", card="y")


@pytest.mark.parametrize("content", ["{", '{"version": 9, "host_id": "a"}', '{"host_id": 7}'])
def test_a_note_that_cannot_be_read_stops_nobody_and_is_left_as_it_is(home: Home, content: str) -> None:
    (home.path / "host.json").write_text(content)
    (home.path / "host.json").chmod(0o600)
    host.check(home, Machine(host_id="b"), ClonePolicy.REFUSE)
    assert (home.path / "host.json").read_text() == content


def test_a_reminted_home_has_another_key_no_mesh_and_nothing_to_send(home: Home) -> None:
    before = {path.name: path.read_bytes() for path in home.path.iterdir()}
    (home.path / settings.FILE_NAME).write_text("")
    with home.entered():
        done = remint(home, lambda: 7, lambda size: b"\x09" * size)
    assert done.pubkey == keys.public_key(b"\x09" * 32)
    assert home.membership() is None
    assert not home.database.exists()
    aside = home.path / "before-remint-7"
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == {
        name: content for name, content in before.items() if name != "lock"
    }
    assert {path.name for path in home.path.iterdir()} == {"lock", "daemon.toml", "member.key", "before-remint-7"}
    assert json.loads((aside / "home.json").read_text())["member_name"] == "me"


def test_a_file_that_others_could_open_is_told_by_name(home: Home) -> None:
    home.check_modes()
    (home.path / settings.FILE_NAME).write_text("")
    (home.path / settings.FILE_NAME).chmod(0o644)
    home.check_modes()  # nothing in it is secret
    home.database.chmod(0o640)
    with pytest.raises(Exception, match=r"device\.db: others than its owner .* \(mode 0640\)"):
        home.check_modes()
