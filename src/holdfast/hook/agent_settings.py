"""Where what agents tell is delivered to: `agents.json` in the home. Without it, nowhere."""

import base64
import binascii
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from holdfast.hook.settings import Unreadable
from holdfast.protocol.agent_event import AgentKind
from holdfast.protocol.pacing import Pacing, PacingMode

FILE_NAME = "agents.json"
SECRET_PREFIX = "whsec_"  # noqa: S105 - what stands before one
SECRET_BYTES = range(24, 65)
OTHERS = 0o077  # what others may do with a file

Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_.-]*\Z", max_length=64)]
Seconds = Annotated[float, Meta(ge=0.01, le=3_600)]


class Webhook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An address that is told, with Standard Webhooks' signature."""

    name: Name
    url: str
    secret: str  # whsec_ and 24 to 64 bytes in base64
    kinds: tuple[AgentKind, ...] = ()  # all, if none is named
    allow_private: bool = False  # addresses that are not reached from everywhere: one's own network, this machine
    timeout_s: Seconds = 15.0
    pacing: Pacing = Pacing()

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.username is not None
            or not self.url.isprintable()
        ):
            raise ValueError("the address of a webhook has http or https, a host, and nobody's name")
        if parts.port == 0:  # one that is no number, or too large a one, is refused by asking for it
            raise ValueError("a webhook's port is not 0")
        if parts.scheme == "http" and not self.allow_private:
            raise ValueError("http is not encrypted; only with allow_private, for an address of one's own")
        if len(self.key) not in SECRET_BYTES:
            raise ValueError("a webhook's secret is whsec_ and 24 to 64 bytes in base64")

    @property
    def key(self) -> bytes:
        try:
            return base64.b64decode(self.secret.removeprefix(SECRET_PREFIX), validate=True)
        except binascii.Error as error:
            raise ValueError("a webhook's secret is not base64") from error


class Programs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the programs in the folder are run."""

    timeout_s: Seconds = 30.0
    output_bytes_max: Annotated[int, Meta(ge=0, le=16_777_216)] = 65_536  # of what one writes; more is cut off
    at_once_max: Annotated[int, Meta(ge=1, le=64)] = 8
    attempts_max: Annotated[int, Meta(ge=1, le=100)] = 5  # of one event with one program


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All adapters of a home."""

    topics: tuple[Annotated[str, Meta(pattern=r"\A@.+\Z", max_length=256)], ...] = ()  # of the mesh
    topic_pacing: Pacing = Pacing()
    webhooks: tuple[Webhook, ...] = ()
    log: bool = False  # one line each in agents.jsonl
    log_pacing: Pacing = Pacing(mode=PacingMode.OFF)
    programs: Programs = Programs()
    transcript_poll_s: Seconds = 1.0
    # A transcript without an event for so long is not read any more.
    transcript_idle_s: Annotated[float, Meta(ge=1, le=604_800)] = 3_600.0

    def __post_init__(self) -> None:
        names = [webhook.name for webhook in self.webhooks]
        if len(set(names)) < len(names):
            raise ValueError("two webhooks have one name")


def load(home: Path) -> AgentSettings:
    """The adapters of a home."""
    path = home / FILE_NAME
    try:
        found = msgspec.json.decode(path.read_bytes(), type=AgentSettings)
        is_open = bool(path.stat().st_mode & OTHERS)
    except FileNotFoundError:
        return AgentSettings()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreadable(str(path), str(error)) from error
    if found.webhooks and is_open:
        raise Unreadable(str(path), "others can read the secrets of its webhooks: chmod 600")
    return found
