"""The token that opens the daemon's loopback port: 32 random bytes in a file that only the home's owner can read.

A new daemon keeps the token that it finds, so that programs which have it go on; removing the file makes the next start
mint another one.
"""

import base64
import hmac
from pathlib import Path

from holdfast.device.home import read_private
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.store import files
from holdfast.store.world import Random

FILE_NAME = "local-token"
TOKEN_BYTES = 32


def take(home: Path, random: Random) -> str:
    """The home's token; made where there is none."""
    path = home / FILE_NAME
    if not path.exists():
        files.write_new(path, base64.urlsafe_b64encode(random(TOKEN_BYTES)).rstrip(b"=") + b"\n")
    return read_private(path).decode("ascii").strip()


def check(shown: str | None, token: str) -> None:
    """Refuse whoever does not show the token."""
    if shown is None:
        raise Refused(Refusal.TOKEN_INVALID, "the loopback port takes an Authorization header with the local token")
    if not hmac.compare_digest(shown.encode("utf-8", "replace"), token.encode()):
        raise Refused(Refusal.TOKEN_INVALID, f"the token is not the one in {FILE_NAME}")
