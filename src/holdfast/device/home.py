"""A home: the directory that makes one device, with one key, in one mesh.

    member.key   the member's secret key, as nsec
    home.json    which mesh this home is in, at which relay with which key, as which member
    device.db    the operation log and the keys of topics
    lock         held by the one process that works here

Only its owner may read it. Every file is written whole and synced, or not at all.
"""

import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from holdfast.protocol import keys
from holdfast.protocol.action import Identifier, Key, Name
from holdfast.protocol.refusal import Refused
from holdfast.store import faults, files
from holdfast.store.files import sync_directory
from holdfast.store.world import Random

VARIABLE = "HOLDFAST_HOME"
DEFAULT = "~/.holdfast"
LOCK_WAIT_S = 10.0  # for another command in the same home to finish
LOCK_POLL_S = 0.05
FILE_BYTES_MAX = 16_384  # of the key and of home.json; both are far smaller

_VERSION = 1
_DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600
_DATABASES = ("device.db", "device.db-wal", "device.db-shm", "hooks.db")
_SECRET_FILES = ("member.key", "member.key.next", "member-keys.json", "local-token", "hooks.spool", *_DATABASES)
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Exposed(faults.Fault):
    what = "others than its owner can open this"
    remedy = "If nobody has read or changed it, take their access away (chmod 700 a directory, 600 a file)."


class Damaged(faults.Fault):
    what = "this is not what Holdfast wrote"
    remedy = "Put the file back from a backup; while it is missing or changed this home cannot be used."


class InUse(faults.Fault):
    what = "another command or a daemon works in this home"
    remedy = "Stop a daemon with `holdfast daemon down`; wait for another command to end. Then try again."
    temporary = True


class Membership(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The mesh that a home is in.

    `client_message_id` names the send that founded or joined the mesh; if the relay refused that, the home is in no mesh.
    `relay_pubkey` is the key that the relay showed then; one with another key is another relay.
    """

    version: int = _VERSION
    relay: str
    relay_pubkey: Key
    mesh: Identifier
    mesh_name: Name
    member: Identifier
    member_name: Name
    client_message_id: str


class _Kept(Membership, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of home.json, with a digest that shows a changed byte in a name, an id or an address."""

    digest: str | None = None  # of the other fields; None in files of older versions


def _digest(membership: Membership) -> str:
    written = [getattr(membership, name) for name in Membership.__struct_fields__]
    return hashlib.sha256(msgspec.json.encode(written)).hexdigest()


class Home:
    """One home directory. Nothing is read or written before `entered`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @classmethod
    def find(cls, environment: Mapping[str, str] = os.environ) -> "Home":
        """The home that the environment names, or the user's own."""
        return cls(Path(environment.get(VARIABLE) or DEFAULT).expanduser().absolute())

    @property
    def database(self) -> Path:
        return self.path / "device.db"

    @contextmanager
    def entered(self, *, create: bool = False, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
        """Hold this home's lock, waiting for others who have it. `create` makes a home where there is none."""
        self._look(create)
        descriptor = self._lock(wait_s)
        try:
            yield
        finally:
            os.close(descriptor)

    def check_modes(self) -> None:
        """Refuse a home with a secret file that others may read, even if the directory keeps them out for now."""
        for exposed in _exposed(self.path / name for name in _SECRET_FILES):
            raise exposed

    def exposed(self) -> list[Exposed]:
        """The directory and the secret files in it that others may read."""
        return list(_exposed([self.path, *(self.path / name for name in _SECRET_FILES)]))

    def exists(self) -> bool:
        """Whether this is the home of a device."""
        return (self.path / "member.key").exists() or (self.path / "home.json").exists()

    def secret(self, random: Random) -> bytes:
        """The member's secret key, made at the first call in a new home; refuses if a used home has lost it."""
        path = self.path / "member.key"
        if not path.exists():
            if self._has_lived():
                raise Damaged(str(path), "there is no key, though this home has been used")
            files.write_new(path, keys.nsec(random(keys.SECRET_BYTES)).encode() + b"\n")
        text = read_private(path)
        try:
            return keys.read_nsec(text.decode("ascii").removesuffix("\n"))
        except (UnicodeDecodeError, Refused) as error:
            reason = error.detail if isinstance(error, Refused) else "it is not text"
            raise Damaged(str(path), reason) from error

    def membership(self) -> Membership | None:
        """The mesh that home.json names, if any."""
        path = self.path / "home.json"
        if not path.exists():
            return None
        try:
            found = msgspec.json.decode(read_private(path), type=_Kept)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Damaged(str(path), str(error)) from error
        if found.version != _VERSION:
            raise Damaged(str(path), f"version {found.version} is not known here; a newer Holdfast may have written it")
        if found.digest not in (None, _digest(found)):
            raise Damaged(str(path), "it was changed since; if by you, take the digest out of it")
        if not self.database.exists():
            raise Damaged(str(self.database), "the operation log is gone, though home.json names a mesh")
        return Membership(**{name: getattr(found, name) for name in Membership.__struct_fields__})

    def keep(self, membership: Membership) -> None:
        """Write the mesh to home.json, in the place of the one before."""
        kept = _Kept(**msgspec.structs.asdict(membership), digest=_digest(membership))
        pretty = msgspec.json.format(msgspec.json.encode(kept), indent=2)
        files.replace(self.path / "home.json", pretty + b"\n")

    def forget(self) -> None:
        """Remove home.json, so that the home is in no mesh; key and log stay."""
        (self.path / "home.json").unlink(missing_ok=True)
        sync_directory(self.path)

    def _has_lived(self) -> bool:
        return self.database.exists() or (self.path / "home.json").exists()

    def _look(self, create: bool) -> None:
        if create:
            self._make()
        try:
            mode = self.path.stat().st_mode
        except FileNotFoundError:
            raise faults.DirectoryMissing(str(self.path)) from None
        except OSError as error:
            raise files.meaning(error, self.path) from error
        if not stat.S_ISDIR(mode):
            raise faults.FileThere(str(self.path), "a home is a directory")
        if mode & _OTHERS and create and not any(self.path.iterdir()):
            self.path.chmod(_DIRECTORY_MODE)  # an empty directory that the user made
        elif mode & _OTHERS:
            raise Exposed(str(self.path), f"mode {stat.S_IMODE(mode):04o}")

    def _make(self) -> None:
        try:
            with suppress(FileExistsError):
                self.path.mkdir(_DIRECTORY_MODE)
                sync_directory(self.path.parent)
        except OSError as error:
            raise files.meaning(error, self.path) from error

    def _lock(self, wait_s: float) -> int:
        try:
            descriptor = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, _FILE_MODE)
        except OSError as error:
            raise files.meaning(error, self.path / "lock") from error
        give_up_at = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= give_up_at:
                    os.close(descriptor)
                    raise InUse(str(self.path)) from None
                time.sleep(LOCK_POLL_S)
            else:
                return descriptor


def _exposed(paths: Iterable[Path]) -> Iterator[Exposed]:
    for path in paths:
        mode = path.lstat().st_mode if path.exists() else 0
        if mode & _OTHERS:
            yield Exposed(str(path), f"mode {stat.S_IMODE(mode):04o}")


def read_private(path: Path) -> bytes:
    """The content of a small file; refuses one that others may read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a named pipe must not block
    except OSError as error:
        raise files.meaning(error, path) from error
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise Damaged(str(path), "it is not a plain file")
        if mode & _OTHERS:
            raise Exposed(str(path), f"mode {stat.S_IMODE(mode):04o}")
        return os.read(descriptor, FILE_BYTES_MAX)
    finally:
        os.close(descriptor)
