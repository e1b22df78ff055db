"""A home in a sealed file: whole or not at all, nothing without the passphrase, and a restored home that harms nobody."""

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.device import backup, database, requeue, sealed_file
from holdfast.device.backup import Contents, HomeThere, Manifest, Restored
from holdfast.device.device import at_work
from holdfast.device.home import Home, InUse
from holdfast.device.sealed_file import MAGIC, PIECE_BYTES, NotSealed, SealBroken, WrongPassphrase
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import HOUR
from holdfast.store import faults
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.world import wall_clock
from tests.device.company import Friend, at_home, gather_in_mesh, until
from tests.relay.running import RunningRelay, running

PASSPHRASE = "a horse, a cork, a nail"
OTHERS = Contents(plain=("notes.txt",), databases=("other.db",))


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRelay]:
    with running(tmp_path_factory.mktemp("backup") / "relay") as started:
        yield started


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are made with less work than for real."""
    monkeypatch.setattr(sealed_file, "Header", _Cheap)


class _Cheap(sealed_file.Header, frozen=True, kw_only=True, forbid_unknown_fields=True):
    iterations: int = 1
    memory_kib: int = 8_192


def _sealed(path: Path, parts: list[bytes], passphrase: str = PASSPHRASE) -> bytes:
    with path.open("wb") as file:
        sealed_file.write(file, passphrase, os.urandom, parts)
    return path.read_bytes()


def _opened(path: Path, passphrase: str = PASSPHRASE) -> bytes:
    with path.open("rb") as file:
        return b"".join(sealed_file.read(file, passphrase, str(path)))


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
def test_what_is_sealed_comes_out_as_it_was(quick: None, tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    raw = _sealed(tmp_path / "file", [content[:7], content[7:]])
    assert _opened(tmp_path / "file") == content
    assert size < 20 or content[:20] not in raw


def test_the_work_for_a_key_is_what_is_recommended(tmp_path: Path) -> None:
    raw = _sealed(tmp_path / "file", [b"x"])
    assert b'"kdf":"argon2id"' in raw
    assert b'"iterations":3,"lanes":4,"memory_kib":65536' in raw
    assert _sealed(tmp_path / "file", [b"x"]) != raw, "another salt, another key"
    assert _opened(tmp_path / "file") == b"x"


def test_a_composed_letter_is_the_same_however_it_was_typed(quick: None, tmp_path: Path) -> None:
    _sealed(tmp_path / "file", [b"x"], "Gr\u00fc\u00dfe an alle")
    assert _opened(tmp_path / "file", "Gru\u0308\u00dfe an alle") == b"x"


def test_every_changed_byte_and_every_cut_is_noticed(quick: None, tmp_path: Path) -> None:
    """One piece is small enough to try everything; the seams of larger files are tried below."""
    raw = _sealed(tmp_path / "whole", [b"twenty-two bytes of it"])
    broken = tmp_path / "broken"
    places = [*range(0, len(raw), 7), len(raw) - 1]
    for place in places:
        broken.write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
        with pytest.raises((NotSealed, SealBroken, WrongPassphrase)):
            _opened(broken)
        broken.write_bytes(raw[:place])
        with pytest.raises((NotSealed, SealBroken, WrongPassphrase)):
            _opened(broken)
    broken.write_bytes(raw + b"\x00")
    with pytest.raises(SealBroken):
        _opened(broken)


def test_pieces_cannot_be_left_out_exchanged_repeated_or_added(quick: None, tmp_path: Path) -> None:
    raw = _sealed(tmp_path / "whole", [os.urandom(3 * PIECE_BYTES + 5)])
    size = PIECE_BYTES + 16
    start = len(raw) - 3 * size - 21
    head, pieces, tail = raw[:start], [raw[start + n * size : start + (n + 1) * size] for n in range(3)], raw[-21:]
    assert head + b"".join(pieces) + tail == raw
    other = _sealed(tmp_path / "other", [os.urandom(5)])
    for broken in (
        [pieces[0], pieces[1], tail],
        [pieces[1], pieces[0], pieces[2], tail],
        [pieces[0], pieces[0], pieces[1], pieces[2], tail],
        [*pieces],
        [*pieces, pieces[2], tail],
        [*pieces, other[-21:]],
        [*pieces, tail, tail],
    ):
        (tmp_path / "broken").write_bytes(head + b"".join(broken))
        with pytest.raises(SealBroken):
            _opened(tmp_path / "broken")


def test_a_wrong_passphrase_is_told_from_damage_and_a_strange_file_from_both(quick: None, tmp_path: Path) -> None:
    raw = _sealed(tmp_path / "file", [b"x"])
    with pytest.raises(WrongPassphrase):
        _opened(tmp_path / "file", PASSPHRASE + " ")
    (tmp_path / "file").write_bytes(raw[:-1])
    with pytest.raises(SealBroken):
        _opened(tmp_path / "file")
    for strange in (b"", b"hello", b"SQLite format 3\x00" + bytes(100)):
        (tmp_path / "file").write_bytes(strange)
        with pytest.raises(NotSealed):
            _opened(tmp_path / "file")


def test_a_file_cannot_ask_for_more_work_than_a_machine_has(tmp_path: Path) -> None:
    raw = _sealed(tmp_path / "file", [b"x"])
    asked = raw.replace(b'"memory_kib":65536', b'"memory_kib":99999999')
    length = int.from_bytes(raw[len(MAGIC) : len(MAGIC) + 2], "big") + 3
    (tmp_path / "file").write_bytes(MAGIC + length.to_bytes(2, "big") + asked[len(MAGIC) + 2 :])
    with pytest.raises(SealBroken, match="memory_kib"):
        _opened(tmp_path / "file")


# Homes


@pytest.fixture
def homes(relay: RunningRelay, tmp_path: Path) -> tuple[Home, Home]:
    pair = Home(tmp_path / "ann"), Home(tmp_path / "bob")
    asyncio.run(gather_in_mesh(relay.url, pair))
    return pair


def _back_up(home: Home, path: Path) -> Manifest:
    return backup.back_up(home, path, PASSPHRASE, wall_clock, os.urandom, OTHERS)


def _restore(home: Home, path: Path, passphrase: str = PASSPHRASE, *, replace: bool = False) -> Restored:
    return backup.restore(home, path, passphrase, wall_clock, os.urandom, OTHERS, replace=replace)


def test_a_restored_home_sends_what_waited_gets_again_what_it_had_and_is_another_sender(
    quick: None, homes: tuple[Home, Home], tmp_path: Path
) -> None:
    """Between backup and restore the first home goes on: nothing of that is lost, doubled, or set off twice."""
    ann, bob = homes
    file = tmp_path / "ann.backup"

    async def meet() -> None:
        async with at_home(bob) as b:
            async with at_home(ann) as a:
                await until(lambda: a.daemon.sightings > 0 and b.daemon.sightings > 0)
                await a.send("bob", "one")
                await b.send("ann", "two")
                await until(lambda: a.receipted() == 1, lambda: b.receipted() == 1)
            with at_work(ann) as device:
                before = device.epoch
            async with at_home(ann, network=_NoNetwork()) as a:  # it cannot be sent yet
                waiting = await a.send("bob", "three")
                made = _back_up(ann, file)
                assert {one.name for one in made.files} == {"member.key", "home.json", "device.db"}
            async with at_home(ann) as a:
                await until(lambda: b.bodies() == ["one", "three"])
                await b.send("ann", "four")
                await until(lambda: b.receipted() == 2)
                await a.send("bob", "five")
                await until(lambda: a.receipted() == 3)
            shutil.rmtree(ann.path)
            done = _restore(ann, file)
            assert (done.epoch != before.hex(), done.waiting, done.before) == (True, 1, None)
            async with at_home(ann, network=_NoNetwork()) as a:
                put_off = await _requeued(a, waiting)
                assert isinstance(put_off, Refused)
                assert put_off.refusal is Refusal.REQUEUE_UNCONFIRMED, "never offered here, perhaps by the home before"
            async with at_home(ann) as a:
                assert a.device.epoch.hex() == done.epoch
                await until(lambda: a.bodies() == ["two", "four"])
                assert [message.replayed for message in a.messages()] == [False, True]
                await a.send("bob", "six")
                await until(lambda: b.bodies() == ["one", "three", "five", "six"])
                # The home before has sent it, sealed otherwise; it does not go twice. What went with it may come before the no.
                ending = (
                    f"SELECT last_error FROM operation_log WHERE client_message_id = '{waiting}' AND status = 'dead'"
                )
                await until(lambda: len(a.rows(ending)) == 1)
                ((told,),) = a.rows(ending)
                assert told.startswith("idempotency_key_reused")
                refused = await _requeued(a, waiting)
                assert isinstance(refused, Refused)
                assert refused.refusal is Refusal.REQUEUE_OF_DONE, "nor does it by hand"
                named = "SELECT client_message_id FROM operation_log WHERE status = 'dead' AND broker_message_id IS NOT NULL"
                assert a.rows(named) == [(waiting,)]
                assert a.rows("SELECT count(*) FROM history WHERE kind = 'restored'") == [(1,)]

    asyncio.run(meet())


def test_a_restore_counts_what_is_scheduled_among_what_is_to_be_sent(
    quick: None, homes: tuple[Home, Home], tmp_path: Path
) -> None:
    ann, _ = homes

    async def send_later_and_back_up() -> None:
        async with at_home(ann) as a:
            await until(lambda: a.daemon.sightings > 0)
            await a.send("bob", "later", not_before=wall_clock() + HOUR)
            _back_up(ann, tmp_path / "file")

    asyncio.run(send_later_and_back_up())
    assert _restore(ann, tmp_path / "file", replace=True).waiting == 1


async def _requeued(friend: Friend, name: str) -> object:
    """What a requeue comes to, as the daemon does it."""
    daemon, device = friend.daemon, friend.device
    doubt = daemon.look(lambda tx: requeue.doubt(tx, name))
    assert doubt is not None
    word, committed = await daemon.committed(doubt)
    return await daemon.do(
        lambda tx: requeue.requeue(
            tx, daemon.facts, device.clock(), device.random, name, doubt=doubt, word=word, committed=committed
        )
    )


class _NoNetwork:
    """The world is out of reach."""

    async def connect(self, *arguments: object) -> object:
        raise ConnectionRefusedError(111, "Connection refused")

    async def listen(self, *arguments: object) -> object:
        raise AssertionError("nobody listens here")


def test_what_others_keep_in_a_home_goes_along_and_the_token_does_not(
    quick: None, homes: tuple[Home, Home], tmp_path: Path
) -> None:
    ann, _ = homes
    with at_work(ann):
        pass
    for name in ("notes.txt", "local-token", "daemon.log", "hook-installs.json"):
        (ann.path / name).write_text(name)
    (ann.path / "relay").mkdir()
    shutil.copyfile(ann.database, ann.path / "other.db")
    _back_up(ann, tmp_path / "file")
    copy = Home(tmp_path / "copy")
    _restore(copy, tmp_path / "file")
    found = {path.name: path.stat().st_mode & 0o777 for path in copy.path.iterdir()}
    assert found == dict.fromkeys(("member.key", "home.json", "device.db", "notes.txt", "other.db"), 0o600)
    assert copy.path.stat().st_mode & 0o777 == 0o700
    assert (copy.path / "member.key").read_bytes() == (ann.path / "member.key").read_bytes()
    assert b"local-token" not in (tmp_path / "file").read_bytes()


def test_a_backup_is_made_at_one_moment_of_the_keys(
    quick: None, homes: tuple[Home, Home], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, _ = homes
    copied = backup._copy_database

    def changing(source: Path, target: Path, *, is_ours: bool) -> None:
        copied(source, target, is_ours=is_ours)
        if is_ours and len(moments) < 1:
            moments.append(1)
            (ann.path / "member-keys.json").write_text("{}")

    moments: list[int] = []
    monkeypatch.setattr(backup, "_copy_database", changing)
    made = _back_up(ann, tmp_path / "file")
    assert "member-keys.json" in {one.name for one in made.files}
    monkeypatch.setattr(backup, "_copy_database", lambda *a, **k: (ann.path / "member.key").write_bytes(os.urandom(9)))
    with pytest.raises(backup.KeysMoved):
        _back_up(ann, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def _damage(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda raw: raw[: len(raw) // 2], SealBroken),
        (lambda raw: raw[: len(raw) - 1], SealBroken),
        (lambda raw: raw[:-100] + bytes([raw[-100] ^ 4]) + raw[-99:], SealBroken),
        (lambda raw: raw[:8], NotSealed),
        (lambda raw: raw, WrongPassphrase),
    ],
    ids=["half", "one byte short", "a bit flipped", "its name only", "another passphrase"],
)
def test_a_backup_that_does_not_open_changes_nothing(
    quick: None, homes: tuple[Home, Home], tmp_path: Path, change: Callable[[bytes], bytes], fault: type[faults.Fault]
) -> None:
    ann, bob = homes
    _back_up(ann, tmp_path / "file")
    _damage(tmp_path / "file", change)
    passphrase = "not this one" if fault is WrongPassphrase else PASSPHRASE
    before = _tree(tmp_path)
    with pytest.raises(fault):
        _restore(Home(tmp_path / "new"), tmp_path / "file", passphrase)
    with pytest.raises(fault):
        _restore(bob, tmp_path / "file", passphrase, replace=True)
    assert _tree(tmp_path) == before


def _tree(place: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in place.rglob("*")}


def test_a_home_is_never_overwritten_and_one_that_somebody_works_in_is_left_alone(
    quick: None, homes: tuple[Home, Home], tmp_path: Path
) -> None:
    ann, bob = homes
    _back_up(ann, tmp_path / "file")
    with pytest.raises(faults.FileThere):
        _back_up(bob, tmp_path / "file")
    with pytest.raises(HomeThere):
        _restore(bob, tmp_path / "file")
    with at_work(bob), pytest.raises(InUse):
        _restore(bob, tmp_path / "file", replace=True)
    (bob.path / "relay").mkdir()
    (bob.path / "relay" / "relay.db").write_text("its own")
    key = (bob.path / "member.key").read_bytes()
    done = _restore(bob, tmp_path / "file", replace=True)
    assert (bob.path / "member.key").read_bytes() == (ann.path / "member.key").read_bytes() != key
    assert done.before is not None
    assert (Path(done.before) / "member.key").read_bytes() == key
    assert (bob.path / "relay" / "relay.db").read_text() == "its own"


def test_a_directory_that_somebody_made_for_it_becomes_the_home(
    quick: None, homes: tuple[Home, Home], tmp_path: Path
) -> None:
    ann, _ = homes
    _back_up(ann, tmp_path / "file")
    (tmp_path / "empty").mkdir(mode=0o700)
    assert _restore(Home(tmp_path / "empty"), tmp_path / "file").before is None
    assert not list(tmp_path.glob("*before-restore*"))
    (tmp_path / ".empty.restoring-999999999").mkdir()  # of a restore that was killed
    (tmp_path / "ann" / ".backup-999999999").mkdir()
    _restore(Home(tmp_path / "empty"), tmp_path / "file", replace=True)
    _back_up(ann, tmp_path / "again")
    assert not list(tmp_path.rglob("*-999999999"))


def test_a_backup_whose_log_breaks_a_rule_is_not_restored(
    quick: None, homes: tuple[Home, Home], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, _ = homes
    back_up = database.back_up

    def spoiled(engine: object, path: Path) -> None:
        back_up(engine, path)  # type: ignore[arg-type]
        spoil = SqliteEngine(path)
        with spoil.write() as transaction:
            transaction.run("UPDATE operation_log SET digest = zeroblob(32)")
        spoil.close()

    monkeypatch.setattr(database, "back_up", spoiled)
    _back_up(ann, tmp_path / "file")
    with pytest.raises(SealBroken, match="its log"):
        _restore(Home(tmp_path / "new"), tmp_path / "file")
    assert not (tmp_path / "new").exists()


class _Killed(BaseException):
    """The process is gone: nothing after this is done, not even by a handler."""


@pytest.mark.parametrize("step", range(1, 4))
def test_a_restore_that_dies_while_homes_change_places_has_not_happened(
    quick: None, homes: tuple[Home, Home], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """What stays with the machine is nobody's copy: a relay that was on its way over is not swept away with what is left."""
    ann, bob = homes
    _back_up(ann, tmp_path / "file")
    (bob.path / "relay").mkdir()
    (bob.path / "relay" / "relay.db").write_text("its own")
    before = {str(path.relative_to(bob.path)) for path in bob.path.rglob("*")}
    key = (bob.path / "member.key").read_bytes()
    rename, done = Path.rename, []

    def dying(path: Path, target: Path) -> Path:
        if "restor" in f"{path}{target}":
            done.append(path)
            if len(done) == step:
                raise _Killed
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", dying)
        patch.setattr(shutil, "rmtree", lambda *arguments, **options: None)  # the dead do not clean up
        patch.setattr(os, "getpid", lambda: 999_999_999)
        with pytest.raises(_Killed):
            _restore(bob, tmp_path / "file", replace=True)
    with pytest.raises(HomeThere):
        _restore(bob, tmp_path / "file")
    assert (bob.path / "member.key").read_bytes() == key
    assert {str(path.relative_to(bob.path)) for path in bob.path.rglob("*")} == before | {"lock"}
    assert (bob.path / "relay" / "relay.db").read_text() == "its own"
    assert _restore(bob, tmp_path / "file", replace=True).before is not None
    assert (bob.path / "relay" / "relay.db").read_text() == "its own"
    assert not list(tmp_path.glob(".bob.restoring-*"))


def test_a_relay_that_a_dead_restore_took_along_is_kept_though_there_is_another_home_by_now(
    quick: None, homes: tuple[Home, Home], tmp_path: Path
) -> None:
    ann, bob = homes
    _back_up(ann, tmp_path / "file")
    left = tmp_path / ".bob.restoring-1-999999999"
    (left / "relay").mkdir(parents=True)
    (left / "relay" / "relay.db").write_text("its own")
    _restore(bob, tmp_path / "file", replace=True)
    assert (left / "relay" / "relay.db").read_text() == "its own"


def test_a_key_file_that_goes_while_it_is_copied_does_not_end_the_backup(
    quick: None, homes: tuple[Home, Home], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `member.key.next` does when a rotation ends."""
    ann, _ = homes
    gone = ann.path / "member.key.next"
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: path == gone or exists(path))  # it was, a moment ago
    assert "member.key.next" not in {one.name for one in _back_up(ann, tmp_path / "file").files}


def test_a_home_below_a_directory_that_may_not_be_listed_is_restored(
    quick: None, homes: tuple[Home, Home], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, _ = homes
    _back_up(ann, tmp_path / "file")
    place, iterdir = tmp_path / "place", Path.iterdir
    place.mkdir()

    def forbidden(path: Path) -> Iterator[Path]:
        if path == place:
            raise PermissionError(13, "Permission denied")
        return iter(iterdir(path))

    monkeypatch.setattr(Path, "iterdir", forbidden)
    assert _restore(Home(place / "home"), tmp_path / "file").waiting == 0
