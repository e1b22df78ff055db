"""Making a copy of a home a home of its own: with another key, in no mesh, and with nothing that the first will send.

What was here is put aside, whole. The copy must not offer what waits in its log: the first home does that.
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
    """The key that the home has now, and where everything is that it had."""

    pubkey: str
    aside: str


def remint(home: Home, clock: Clock, random: Random) -> Reminted:
    """Put everything aside and make a new key; the caller is alone in the home."""
    aside = home.path / f"before-remint-{clock()}"
    files.make_directory(aside)
    for path in sorted(home.path.iterdir(), key=_key_last):
        if path.name not in STAYS and not path.name.startswith("before-remint-"):
            path.rename(aside / path.name)
    files.sync_directory(aside)
    files.sync_directory(home.path)
    return Reminted(pubkey=keys.public_key(home.secret(random)), aside=str(aside))


def _key_last(path: Path) -> tuple[bool, str]:
    """The key goes last: a home without one that still has a log would be a damaged one, not a half-moved one."""
    return path.name == "member.key", path.name
