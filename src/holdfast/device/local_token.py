"""The token that opens the daemon's loopback port: 32 random bytes in a file that only the home's owner can read.

A daemon that starts keeps the token that it finds, so that programs which have it go on. Rotating writes a new one to the
file; a running daemon accepts the old one for a moment longer, for programs that have not read the file again yet.
"""

import base64
import hmac
import re
from pathlib import Path

from holdfast.device.home import Damaged, read_private
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import SECOND
from holdfast.store import files
from holdfast.store.world import Clock, Random

FILE_NAME = "local-token"
TOKEN_BYTES = 32
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")  # 32 bytes in base64url
GRACE_S = 60  # for which the old token is still accepted


class LocalToken:
    """The token of a running daemon's port, and the one before, while that is still accepted."""

    def __init__(self, home: Path, clock: Clock, random: Random) -> None:
        self._home = home
        self._clock = clock
        self._random = random
        self._token = take(home, random)
        self._before: str | None = None
        self._before_until = 0  # microseconds

    def check(self, shown: str | None) -> None:
        """Refuse a token that is not accepted."""
        if shown is None:
            raise Refused(Refusal.TOKEN_INVALID, "the loopback port takes an Authorization header with the local token")
        taken = [self._token] if self._before is None or self._is_over else [self._token, self._before]
        # Both are compared every time, so that the time taken tells nothing.
        matches = [hmac.compare_digest(shown.encode("utf-8", "replace"), token.encode()) for token in taken]
        if not any(matches):
            raise Refused(Refusal.TOKEN_INVALID, f"the token is not the one in {FILE_NAME}")

    def rotate(self) -> int:
        """Write a new token to the file; returns until when the old one is accepted (microseconds)."""
        token = renew(self._home, self._random)
        self._before, self._token = self._token, token
        self._before_until = self._clock() + GRACE_S * SECOND
        return self._before_until

    @property
    def _is_over(self) -> bool:
        # More than the grace time left means that the clock was set back, which must not prolong it.
        return not 0 <= self._before_until - self._clock() <= GRACE_S * SECOND


def take(home: Path, random: Random) -> str:
    """The home's token, made if there is none."""
    path = home / FILE_NAME
    if not path.exists():
        files.write_new(path, _mint(random) + b"\n")
    text = read_private(path).decode("latin-1").removesuffix("\n")
    if not _TOKEN.fullmatch(text):
        raise Damaged(str(path), "it is not a token; `holdfast daemon rotate-token` puts another one there")
    return text


def renew(home: Path, random: Random) -> str:
    """Write a new token in the place of the home's present one, if any; returns it."""
    token = _mint(random)
    files.replace(home / FILE_NAME, token + b"\n")
    return token.decode()


def _mint(random: Random) -> bytes:
    return base64.urlsafe_b64encode(random(TOKEN_BYTES)).rstrip(b"=")
