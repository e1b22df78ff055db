"""Turns a copy of a home into a new home: with a new key, in no mesh, and with an empty log.

Everything that was here is put aside. The copy must not send what waits in its log, because the original home does.
"""

from pathlib import Path

import msgspec

from holdfast.device import settings
from holdfast.device.home import Home
from holdfast.protocol import keys
from holdfast.store import files
from holdfast.store.world import Clock, Random

STAYS = frozenset({"lock", settings.FILE_NAME, "relay"})


class Reminted(msgspec.Struct, frozen=True, kw_only=True):
    """The new key of the home, and where its former content is."""

    pubkey: str
    aside: str


def remint(home: Home, clock: Clock, random: Random) -> Reminted:
    """Put everything aside and make a new key; the caller holds the home's lock."""
    aside = home.path / f"before-remint-{clock()}"
    files.make_directory(aside)
    for path in sorted(home.path.iterdir(), key=_key_last):
        if path.name not in STAYS and not path.name.startswith("before-remint-"):
            path.rename(aside / path.name)
    files.sync_directory(aside)
    files.sync_directory(home.path)
    return Reminted(pubkey=keys.public_key(home.secret(random)), aside=str(aside))


def _key_last(path: Path) -> tuple[bool, str]:
    """Sorts the key last: after a crash, a home with a log but no key would count as damaged."""
    return path.name == "member.key", path.name
