"""Who is signed in: a link that opens once makes a session, a cookie names it, and a form proves that it was asked for here.

All of it is in memory: a restart signs everybody out. Secrets are kept as hashes, so that looking one up tells nothing about
it by the time that takes.
"""

import base64
import hashlib
import hmac
from collections.abc import Container, Mapping
from enum import StrEnum

import msgspec

from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import SECOND
from holdfast.store.world import Clock, Random

LINK_LIFE_S = 120  # in which a link has to be opened
SESSION_LIFE_S = 43_200  # after which one signs in anew
SESSION_IDLE_S = 7_200  # without any request
LINKS_MAX = 64  # that wait to be opened; the oldest gives way
SESSIONS_MAX = 256  # likewise
SECRET_BYTES = 32
INSTANCE_BYTES = 6

SIGNED_OUT = "Nobody is signed in here. Run `holdfast console` and open the link that it gives; it works once."


class Role(StrEnum):
    """What somebody may do here."""

    OPERATOR = "operator"  # look, and act
    READER = "reader"  # look


class Session:
    """Somebody who is signed in."""

    def __init__(self, role: Role, who: str, csrf: str, began_at: int) -> None:
        self.role = role
        self.who = who  # the key that signed for the link; its owner, where none was needed
        self.csrf = csrf
        self.began_at = began_at
        self.seen_at = began_at
        self._notices: list[Notice] = []

    @property
    def may_act(self) -> bool:
        return self.role is Role.OPERATOR

    def tell(self, text: str, *, is_bad: bool = False) -> None:
        """Say something on the next page."""
        self._notices.append(Notice(text, is_bad))

    def take_notices(self) -> "list[Notice]":
        taken, self._notices = self._notices, []
        return taken


class Notice(msgspec.Struct, frozen=True):
    """A message for the next page: the result of a form."""

    text: str
    is_bad: bool


class _Link(msgspec.Struct, frozen=True):
    role: Role
    who: str
    made_at: int


class SigningIn:
    """The links and sessions of one console."""

    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock = clock
        self._random = random
        self._links: dict[bytes, _Link] = {}
        self._sessions: dict[bytes, Session] = {}
        # Cookies know hosts and no ports: several consoles of one machine must not take each other's.
        self.cookie_name = f"holdfast_console_{random(INSTANCE_BYTES).hex()}"

    def link(self, role: Role, who: str) -> str:
        """The secret part of a link that signs somebody in, once and soon."""
        secret = self._secret()
        self._links[_hash(secret)] = _Link(role, who, self._clock())
        _keep_newest(self._links, LINKS_MAX)
        return secret

    def enter(self, secret: str) -> str:
        """Open a link: the secret of a new session. A link that was opened, is old or never was is refused alike."""
        link = self._links.pop(_hash(secret), None)
        now = self._clock()
        if link is None or not 0 <= now - link.made_at <= LINK_LIFE_S * SECOND:
            raise Refused(Refusal.AUTH_REQUIRED, SIGNED_OUT)
        own = self._secret()
        self._sessions[_hash(own)] = Session(link.role, link.who, self._secret(), now)
        _keep_newest(self._sessions, SESSIONS_MAX)
        return own

    def session(self, cookies: str) -> Session | None:
        """The session that a request's cookies name, if there is one."""
        secret = _cookie(cookies, self.cookie_name)
        if secret is None:
            return None
        found = self._sessions.get(_hash(secret))
        if found is None:
            return None
        if not self.is_in(found):
            self.leave(found)
            return None
        found.seen_at = self._clock()
        return found

    def is_in(self, session: Session) -> bool:
        """Whether a session has not ended. Asking does not prolong it."""
        now = self._clock()
        is_over = now - session.began_at > SESSION_LIFE_S * SECOND or now - session.seen_at > SESSION_IDLE_S * SECOND
        return not is_over and any(known is session for known in self._sessions.values())

    def leave(self, session: Session) -> None:
        """Sign somebody out."""
        self._sessions = {key: known for key, known in self._sessions.items() if known is not session}

    def set_cookie(self, secret: str, path: str, *, is_secure: bool) -> str:
        """The header that names a session."""
        secure = "; Secure" if is_secure else ""
        return f"{self.cookie_name}={secret}; Path={path}; Max-Age={SESSION_LIFE_S}; HttpOnly; SameSite=Strict{secure}"

    def clear_cookie(self, path: str) -> str:
        return f"{self.cookie_name}=; Path={path}; Max-Age=0; HttpOnly; SameSite=Strict"

    def _secret(self) -> str:
        return base64.urlsafe_b64encode(self._random(SECRET_BYTES)).rstrip(b"=").decode()


def check_form(session: Session, shown: str, headers: Mapping[str, str], own: Container[str]) -> None:
    """Refuse a form that comes from another site or port, or has a wrong secret. `own` are our host names."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
    called = None if origin is None else origin.partition("://")[2]
    is_foreign = called is not None and (not called or called not in own)  # `null` is whoever hides what it is
    if is_foreign or site not in ("same-origin", "none"):
        raise Refused(Refusal.ORIGIN_NOT_ALLOWED, "the form comes from another site")
    if not hmac.compare_digest(shown.encode("utf-8", "replace"), session.csrf.encode()):
        raise Refused(Refusal.ORIGIN_NOT_ALLOWED, "the form is not one of this session; load the page again")


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()


def _cookie(header: str, name: str) -> str | None:
    for part in header.split(";"):
        found, equals, value = part.strip().partition("=")
        if found == name and equals:
            return value
    return None


def _keep_newest(kept: "dict[bytes, _Link] | dict[bytes, Session]", most: int) -> None:
    while len(kept) > most:
        del kept[next(iter(kept))]
