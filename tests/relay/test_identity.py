"""The relay's keys: made once, whole, its owner's alone, and refused when anything about them is odd."""

import os
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.protocol import keys
from holdfast.relay import identity
from holdfast.relay.identity import Identity, IsBackup, KeyExposed, KeyUnknown, KeyUnreadable, RestoreUnfinished
from holdfast.store import faults
from tests.people import Person, secret_of


def _load(data: Path, *operators: str) -> Identity:
    return Identity.load(data, os.urandom, operators)


def test_the_first_load_makes_two_keys_and_every_later_one_finds_them(tmp_path: Path) -> None:
    first = _load(tmp_path)
    assert _load(tmp_path) == first == Identity.read(tmp_path)
    assert first.pubkey == keys.public_key(first.secret)
    assert keys.read_nsec((tmp_path / "relay.key").read_text().strip()) == first.secret
    operator = keys.read_nsec((tmp_path / "operator.key").read_text().strip())
    assert first.operators == (keys.public_key(operator),)
    assert operator != first.secret


def test_key_files_are_their_owners_alone_and_nothing_else_is_left(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        _load(tmp_path)
    finally:
        os.umask(previous)
    assert {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {
        "relay.key": 0o600,
        "operator.key": 0o600,
    }


def test_operators_of_the_settings_are_taken_as_hex_and_as_npub_and_each_once(tmp_path: Path) -> None:
    alice, bob = Person("alice").key, Person("bob").key
    own = _load(tmp_path).operators
    assert _load(tmp_path, alice, keys.npub(bob), keys.npub(alice)).operators == (*own, alice, bob)


@pytest.mark.parametrize("text", ["", "alice", "ff" * 32, "00" * 32, Person("alice").key.upper(), "npub1qqqq"])
def test_an_operator_that_is_no_key_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(KeyUnknown) as caught:
        _load(tmp_path, text)
    assert caught.value.where == text


def test_an_identity_does_not_show_its_secret(tmp_path: Path) -> None:
    found = _load(tmp_path)
    for shown in (repr(found), str(found), f"{found}"):
        assert found.secret.hex() not in shown
        assert repr(found.secret) not in shown
        assert found.pubkey in shown


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666, 0o601])
def test_a_key_that_others_may_open_is_refused(tmp_path: Path, mode: int) -> None:
    _load(tmp_path)
    (tmp_path / "operator.key").chmod(mode)
    with pytest.raises(KeyExposed, match=rf"operator\.key.*{mode:04o}"):
        _load(tmp_path)


CONTENTS = {
    "empty": b"",
    "not text": b"\xff\xfe\x00",
    "hex": secret_of("alice").hex().encode(),
    "an npub": keys.npub(Person("alice").key).encode(),
    "a mistyped character": keys.nsec(secret_of("alice")).replace("q", "p", 1).encode(),
    "two lines": (keys.nsec(secret_of("alice")) + "\n\n").encode(),
    "a space before": b" " + keys.nsec(secret_of("alice")).encode(),
    "far too much": b"nsec1" * 100_000,
}


@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_that_holds_no_key_is_refused_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    path = tmp_path / "relay.key"
    path.write_bytes(CONTENTS[name])
    path.chmod(0o600)
    with pytest.raises(KeyUnreadable, match=r"relay\.key"):
        _load(tmp_path)
    assert path.read_bytes() == CONTENTS[name]


def test_a_key_may_end_without_a_line_end(tmp_path: Path) -> None:
    path = tmp_path / "relay.key"
    path.write_text(keys.nsec(secret_of("alice")))
    path.chmod(0o600)
    assert _load(tmp_path).secret == secret_of("alice")


def test_a_directory_in_the_place_of_a_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "relay.key").mkdir(mode=0o700)
    with pytest.raises(KeyUnreadable, match="plain file"):
        _load(tmp_path)


def test_a_pipe_in_the_place_of_a_key_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "relay.key", 0o600)
    with pytest.raises(KeyUnreadable, match="plain file"):
        _load(tmp_path)


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "relay.key"
    identity.write_key(path, secret_of("alice"))
    with pytest.raises(faults.FileThere):
        identity.write_key(path, secret_of("bob"))
    assert identity.read_key(path) == secret_of("alice")
    assert [file.name for file in tmp_path.iterdir()] == ["relay.key"]


def test_reading_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(faults.FileMissing):
        Identity.read(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_missing_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(faults.DirectoryMissing):
        _load(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []


def test_processes_that_start_together_agree_on_the_keys(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from holdfast.relay.identity import Identity; sys.stdin.read(1);"
    )
    program += "print(Identity.load(Path(sys.argv[1]), os.urandom))"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    children = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], **pipes) for _ in range(4)]  # type: ignore[call-overload]
    said = set()
    for child in children:
        child.stdin.write(b"x")
        child.stdin.flush()
    for child in children:
        said.add(child.communicate()[0])
    assert len(said) == 1
    assert said == {f"{_load(tmp_path)}\n".encode()}


def test_a_key_that_somebody_else_made_meanwhile_is_the_one_that_counts(tmp_path: Path) -> None:
    def random(count: int) -> bytes:
        """Drawn after the file was looked for and before it is made."""
        with suppress(faults.FileThere):
            identity.write_key(tmp_path / "relay.key", secret_of("faster"))
        return os.urandom(count)

    assert Identity.load(tmp_path, random).secret == secret_of("faster")


def test_a_backup_is_no_place_for_a_relay(tmp_path: Path) -> None:
    _load(tmp_path)
    (tmp_path / "backup.json").write_text("{}")
    with pytest.raises(IsBackup):
        _load(tmp_path)


def test_nor_is_a_restore_that_was_interrupted_until_it_has_its_database(tmp_path: Path) -> None:
    (tmp_path / "restore.partial").mkdir()
    with pytest.raises(RestoreUnfinished):
        _load(tmp_path)
    (tmp_path / "relay.db").touch()
    _load(tmp_path)
