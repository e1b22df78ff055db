"""Links, sessions and forms, with a clock that a test can set."""

import hashlib
import itertools

import pytest

from holdfast.console import signing_in
from holdfast.console.signing_in import Role, Session, SigningIn, check_form
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import SECOND

START = 1_800_000_000 * SECOND


class Desk:
    """A console's door, and its clock."""

    def __init__(self) -> None:
        self.now = START
        numbers = itertools.count()
        self.door = SigningIn(lambda: self.now, lambda size: hashlib.shake_256(b"%d" % next(numbers)).digest(size))

    def entered(self, role: Role = Role.OPERATOR) -> str:
        """The cookies of somebody who opened a link."""
        return f"{self.door.cookie_name}={self.door.enter(self.door.link(role, 'ann'))}"


@pytest.fixture
def desk() -> Desk:
    return Desk()


def refused(desk: Desk, secret: str) -> None:
    with pytest.raises(Refused) as caught:
        desk.door.enter(secret)
    assert caught.value.refusal is Refusal.AUTH_REQUIRED


def test_a_link_signs_somebody_in_once(desk: Desk) -> None:
    secret = desk.door.link(Role.READER, "ann")
    session = desk.door.session(f"other=1; {desk.door.cookie_name}={desk.door.enter(secret)}")
    assert session is not None
    assert (session.role, session.who, session.may_act) == (Role.READER, "ann", False)
    refused(desk, secret)


def test_a_link_that_is_old_or_never_was_is_refused(desk: Desk) -> None:
    secret = desk.door.link(Role.OPERATOR, "ann")
    desk.now += signing_in.LINK_LIFE_S * SECOND + 1
    refused(desk, secret)
    refused(desk, "")
    refused(desk, "Ω")


def test_the_oldest_link_gives_way_when_there_are_too_many(desk: Desk) -> None:
    first, *others = (desk.door.link(Role.OPERATOR, "ann") for _ in range(signing_in.LINKS_MAX + 1))
    refused(desk, first)
    for secret in others:
        desk.door.enter(secret)


def test_a_session_ends_by_idleness_by_age_and_by_leaving(desk: Desk) -> None:
    cookies = desk.entered()
    desk.now += signing_in.SESSION_IDLE_S * SECOND
    assert desk.door.session(cookies) is not None
    desk.now += signing_in.SESSION_IDLE_S * SECOND + 1
    assert desk.door.session(cookies) is None
    cookies = desk.entered()
    for _ in range(signing_in.SESSION_LIFE_S // signing_in.SESSION_IDLE_S):
        desk.now += signing_in.SESSION_IDLE_S * SECOND
        assert desk.door.session(cookies) is not None
    desk.now += 1
    assert desk.door.session(cookies) is None
    cookies = desk.entered()
    session = desk.door.session(cookies)
    assert session is not None
    desk.door.leave(session)
    assert desk.door.session(cookies) is None


def test_looking_at_whether_a_session_lasts_does_not_make_it_last(desk: Desk) -> None:
    session = desk.door.session(desk.entered())
    assert session is not None
    assert desk.door.is_in(session)
    desk.now += signing_in.SESSION_IDLE_S * SECOND
    assert desk.door.is_in(session)
    desk.now += 1
    assert not desk.door.is_in(session)


def test_only_its_own_cookie_names_a_session(desk: Desk) -> None:
    cookies, other = desk.entered(), Desk()
    other.now += 1
    secret = cookies.partition("=")[2]
    assert desk.door.session(f"x{desk.door.cookie_name}={secret}") is None
    assert desk.door.session(f"{desk.door.cookie_name}={secret}x") is None
    assert desk.door.session(f"{desk.door.cookie_name}=") is None
    assert desk.door.session("") is None
    assert desk.door.session(cookies) is not None


def test_a_cookie_stays_in_the_browser_and_on_the_site(desk: Desk) -> None:
    plain = desk.door.set_cookie("secret", "/console", is_secure=False)
    assert plain.endswith("=secret; Path=/console; Max-Age=43200; HttpOnly; SameSite=Strict")
    assert desk.door.set_cookie("secret", "/console", is_secure=True) == f"{plain}; Secure"


@pytest.mark.parametrize(
    ("headers", "shown", "is_taken"),
    [
        ({"host": "127.0.0.1:7"}, "token", True),
        ({"host": "127.0.0.1:7", "origin": "http://127.0.0.1:7", "sec-fetch-site": "same-origin"}, "token", True),
        ({"host": "127.0.0.1:7", "origin": "https://relay.example"}, "token", True),  # a proxy stands between
        ({"host": "127.0.0.1:7", "origin": "http://127.0.0.1:8"}, "token", False),
        ({"host": "127.0.0.1:7", "origin": "null"}, "token", False),
        ({"host": "127.0.0.1:7", "origin": "http://evil.example"}, "token", False),
        ({"host": "127.0.0.1:7", "sec-fetch-site": "same-site"}, "token", False),
        ({"host": "127.0.0.1:7", "sec-fetch-site": "cross-site"}, "token", False),
        ({"host": "127.0.0.1:7"}, "", False),
        ({"host": "127.0.0.1:7"}, "tokem", False),
        ({"host": "127.0.0.1:7"}, "Ω", False),
    ],
)
def test_a_form_is_taken_from_a_page_of_this_session_only(headers: dict[str, str], shown: str, is_taken: bool) -> None:
    session = Session(Role.OPERATOR, "ann", "token", START)
    own = frozenset({headers["host"], "relay.example", ""})  # a console without a proxy has no other name
    if is_taken:
        check_form(session, shown, headers, own)
        return
    with pytest.raises(Refused) as caught:
        check_form(session, shown, headers, own)
    assert caught.value.refusal is Refusal.ORIGIN_NOT_ALLOWED


def test_a_notice_is_told_once() -> None:
    session = Session(Role.OPERATOR, "ann", "token", START)
    session.tell("done")
    assert [notice.text for notice in session.take_notices()] == ["done"]
    assert session.take_notices() == []
