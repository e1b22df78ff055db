"""A home: made whole, kept from others, refused when it is not what we wrote."""

import json
import os
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from holdfast import Fault
from holdfast.device.device import at_work
from holdfast.device.home import VARIABLE, Damaged, Exposed, Home, InUse, Membership
from holdfast.protocol import keys
from holdfast.store import faults

MEMBERSHIP = Membership(
    relay="http://127.0.0.1:7447",
    relay_pubkey="ab" * 32,
    mesh="01JCQ4E0000000000000000000",
    mesh_name="Küche",
    member="01JCQ4E0000000000000000001",
    member_name="anna@küche",
    client_message_id="01JCQ4E0000000000000000002",
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _use(home: Home) -> bytes:
    with at_work(home, create=True) as device:
        return device.secret


def test_a_new_home_and_all_in_it_are_its_owners_alone(home: Home) -> None:
    before = os.umask(0)
    try:
        with at_work(home, create=True) as device:
            device.home.keep(MEMBERSHIP)
    finally:
        os.umask(before)
    assert _mode(home.path) == 0o700
    assert {file.name: _mode(file) for file in home.path.iterdir()} == dict.fromkeys(
        ("device.db", "home.json", "lock", "member.key"), 0o600
    )


def test_the_key_is_made_at_first_use_and_stays(home: Home) -> None:
    secret = _use(home)
    assert (home.path / "member.key").read_text() == keys.nsec(secret) + "\n"
    assert _use(home) == secret
    assert _use(Home(home.path.parent / "another")) != secret


def test_nothing_is_made_where_no_home_was_asked_for(home: Home) -> None:
    with pytest.raises(faults.DirectoryMissing), at_work(home):
        pass
    assert not home.path.exists()
    with pytest.raises(faults.DirectoryMissing), at_work(Home(home.path / "deeper"), create=True):
        pass
    assert not home.path.exists()


def test_the_environment_names_the_home(tmp_path: Path) -> None:
    assert Home.find({VARIABLE: str(tmp_path)}).path == tmp_path
    assert Home.find({VARIABLE: "there"}).path == Path.cwd() / "there"
    assert Home.find({}).path == Home.find({VARIABLE: ""}).path == Path.home() / ".holdfast"


def test_a_membership_is_kept_and_replaced_whole(home: Home) -> None:
    with at_work(home, create=True) as device:
        assert device.home.membership() is None
        device.home.keep(MEMBERSHIP)
    with at_work(home) as device:
        assert device.home.membership() == MEMBERSHIP
        device.home.keep(msgspec.structs.replace(MEMBERSHIP, member_name="Anna"))
    assert home.membership() == msgspec.structs.replace(MEMBERSHIP, member_name="Anna")
    with at_work(home) as device:
        device.home.forget()
        assert device.home.membership() is None


def test_an_empty_directory_that_somebody_made_becomes_a_home_of_its_owners_alone(home: Home) -> None:
    home.path.mkdir()
    home.path.chmod(0o755)
    _use(home)
    assert _mode(home.path) == 0o700


def test_a_directory_that_others_can_open_and_that_holds_something_is_left_alone(home: Home) -> None:
    home.path.mkdir()
    home.path.chmod(0o755)
    (home.path / "letter").write_text("private")
    with pytest.raises(Exposed, match="chmod 700"):
        _use(home)
    assert _mode(home.path) == 0o755
    assert [file.name for file in home.path.iterdir()] == ["letter"]


def _rewrite(name: str, **changes: object) -> Callable[[Home], object]:
    def change(home: Home) -> None:
        path = home.path / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def _replace_key_by(make: Callable[[Path], object]) -> Callable[[Home], object]:
    def change(home: Home) -> None:
        (home.path / "member.key").unlink()
        make(home.path / "member.key")

    return change


def _replace_home_by_a_file(home: Home) -> None:
    home.path.rename(home.path.with_name("moved"))
    home.path.touch(0o600)


BROKEN: dict[str, tuple[Callable[[Home], object], type[Fault], str]] = {
    "others can open the home": (lambda home: home.path.chmod(0o750), Exposed, "0750"),
    "others can open the key": (lambda home: (home.path / "member.key").chmod(0o640), Exposed, "0640"),
    "others can change home.json": (lambda home: (home.path / "home.json").chmod(0o602), Exposed, "0602"),
    "the key is empty": (lambda home: (home.path / "member.key").write_text(""), Damaged, "must start with nsec1"),
    "the key is an npub": (
        lambda home: (home.path / "member.key").write_text(keys.npub(keys.public_key(b"\x01" * 32))),
        Damaged,
        "must start with nsec1",
    ),
    "the key is no text": (lambda home: (home.path / "member.key").write_bytes(b"\xff\xfe"), Damaged, "not text"),
    "a character of the key has changed": (
        lambda home: (home.path / "member.key").write_text(keys.nsec(b"\x01" * 32).replace("q", "p", 1)),
        Damaged,
        "checksum",
    ),
    "the key is gone": (lambda home: (home.path / "member.key").unlink(), Damaged, "there is no key"),
    "the key is a directory": (_replace_key_by(Path.mkdir), Damaged, "not a plain file"),
    "the key is a pipe": (_replace_key_by(os.mkfifo), Damaged, "not a plain file"),
    "the log is gone": (lambda home: home.database.unlink(), Damaged, "the operation log is gone"),
    "home.json is no JSON": (lambda home: (home.path / "home.json").write_text("{"), Damaged, "home.json"),
    "home.json is no text": (lambda home: (home.path / "home.json").write_bytes(b"\xff"), Damaged, "home.json"),
    "home.json lacks the relay": (
        lambda home: (home.path / "home.json").write_text('{"version": 1}'),
        Damaged,
        "relay",
    ),
    "home.json has a word that we do not know": (_rewrite("home.json", colour="red"), Damaged, "colour"),
    "home.json has a member id that is none": (_rewrite("home.json", member="../x"), Damaged, "member"),
    "home.json is of a newer version": (_rewrite("home.json", version=2), Damaged, "version 2"),
    "the home is a file": (_replace_home_by_a_file, faults.FileThere, "a home is a directory"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_home_is_refused_with_its_reason_and_left_as_it_is(home: Home, name: str) -> None:
    with at_work(home, create=True) as device:
        device.home.keep(MEMBERSHIP)
    make, fault, message = BROKEN[name]
    make(home)
    before = _contents(home)
    with pytest.raises(fault) as raised, at_work(home, create=True):
        pass
    assert str(home.path) in str(raised.value)
    assert message in str(raised.value)
    assert raised.value.remedy in str(raised.value)
    assert _contents(home) == before


def _contents(home: Home) -> dict[str, bytes]:
    if not home.path.is_dir():
        return {}
    return {file.name: file.read_bytes() for file in home.path.iterdir() if file.is_file()}


def test_what_a_death_left_behind_is_neither_key_nor_membership(home: Home) -> None:
    home.path.mkdir(0o700)
    (home.path / ".member.key.0123456789abcdef").write_text("nsec1half")
    (home.path / ".home.json.0123456789abcdef").write_text('{"relay": "http')
    with at_work(home, create=True) as device:
        assert device.home.membership() is None
        device.home.keep(MEMBERSHIP)
    names = sorted(file.name for file in home.path.iterdir() if not file.name.startswith("."))
    assert names == ["device.db", "home.json", "lock", "member.key"]


def test_a_home_is_one_processes_at_a_time(home: Home) -> None:
    _use(home)
    program = textwrap.dedent("""
        import sys
        from holdfast.device.device import at_work
        from holdfast.device.home import Home, InUse
        try:
            with at_work(Home(sys.argv[1]), wait_s=float(sys.argv[2])):
                print("entered")
        except InUse as fault:
            print(fault)
    """)
    command = [sys.executable, "-c", program, str(home.path)]
    with at_work(home):
        waiting = subprocess.Popen([*command, "60"], stdout=subprocess.PIPE, text=True)
        refused = subprocess.run([*command, "0"], capture_output=True, text=True, check=True).stdout
        assert "another command or a daemon works in this home" in refused
        with pytest.raises(InUse), at_work(home, wait_s=0):
            pass
        assert waiting.poll() is None
    assert waiting.communicate()[0] == "entered\n"
