"""Every page with something on it: what it shows, what it never shows, and lists that say in their address what they list."""

import re
from html import unescape
from urllib.parse import quote

import pytest

from holdfast.console.diff import LINES_MAX, side_by_side
from holdfast.device import author as authors
from holdfast.device.database import open_to_read
from holdfast.relay.database import open_to_read as open_relay
from holdfast.relay.identity import read_key
from tests.console.town import DEAD, HOSTILE_ID, HOSTILE_NAME, HOSTILE_TEXT, QUEUED, Town, Visitor

RELAY_PAGES = [
    "/",
    "/messages",
    "/messages?state=waiting",
    "/messages?kind=receipt",
    "/queues",
    "/meshes",
    "/feed",
    "/history",
    "/audit",
]
DAEMON_PAGES = [
    *("/", "/outbox", "/outbox?show=waiting", "/outbox?show=dead", "/outbox?show=done", "/outbox?show=aborted"),
    *("/outbox?show=everything", "/inbox", "/inbox?show=unapplied", "/inbox?show=parked", "/trace", "/documents"),
    *("/documents?conflicts=true", "/agents", "/health", f"/trace?id={quote(HOSTILE_ID)}", "/trace?id=ben-0"),
]


def shown(visitor: Visitor, path: str) -> str:
    answer = visitor.ask("GET", path)
    assert answer.status == 200, (path, answer.status, answer.body)
    return answer.body.decode()


def hrefs(page: str, prefix: str) -> list[str]:
    """The addresses on a page that begin like this, without the console's own part, each once."""
    found = re.findall(r'href="/console(' + re.escape(prefix) + r'[^"#]*)"', page)
    return list(dict.fromkeys(unescape(one) for one in found))


def pages_of(seeded: Town, operator: Visitor, owner: Visitor) -> list[tuple[Visitor, str]]:
    """Every page that can be reached: the lists, and one of everything that they lead to."""
    relay = [*RELAY_PAGES]
    relay += hrefs(shown(operator, "/messages"), "/messages/")[:1]
    relay += hrefs(shown(operator, "/meshes"), "/meshes/")
    relay += hrefs(shown(operator, relay[-1]), f"{relay[-1]}/members/")
    relay += hrefs(shown(operator, "/feed"), "/feed/")
    daemon = [*DAEMON_PAGES]
    for path in ("/outbox?show=dead", "/inbox", "/documents", "/agents"):
        daemon += hrefs(shown(owner, path), f"{path.partition('?')[0]}/")[:4]
    return [(operator, path) for path in relay] + [(owner, path) for path in daemon]


def test_every_page_is_there_and_may_run_no_script_but_ours(seeded: Town, operator: Visitor, owner: Visitor) -> None:
    reached = pages_of(seeded, operator, owner)
    assert len(reached) > 35
    for visitor, path in reached:
        answer = visitor.ask("GET", path)
        assert answer.status == 200, (path, answer.body)
        policy = answer.headers["content-security-policy"]
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        page = answer.body.decode()
        assert not re.search(r"<script(?![^>]* src=)", page), path
        assert not re.search(r"<[^>]+ (style|on\w+)=", page), path


def test_what_people_wrote_is_text_and_never_markup(seeded: Town, operator: Visitor, owner: Visitor) -> None:
    told = ""
    for visitor, path in pages_of(seeded, operator, owner):
        page = shown(visitor, path)
        for hostile in (HOSTILE_NAME, HOSTILE_ID, HOSTILE_TEXT, "<script>alert"):
            assert hostile not in page, (path, hostile)
        told += unescape(page)
    for hostile in (HOSTILE_NAME, HOSTILE_ID, HOSTILE_TEXT):
        assert hostile in told  # it was there to be shown


def test_no_page_has_a_key_and_none_of_the_relays_a_body(seeded: Town, operator: Visitor, owner: Visitor) -> None:
    engine = open_to_read(seeded.ann.home / "device.db")
    try:
        with engine.read() as transaction:
            author = authors.need(transaction)
    finally:
        engine.close()
    data = seeded.relay.data
    secrets = [
        read_key(data / "relay.key"),
        read_key(data / "operator.key"),
        read_key(seeded.ann.home / "member.key"),
        author.secret,
    ]
    opened = open_relay(data / "relay.db")
    try:
        with opened.read() as transaction:
            sealed = [
                raw.partition(b'"content":"')[2][:60].decode()
                for (raw,) in transaction.rows("SELECT event FROM message WHERE kind = 4201")
            ]
            sealed += [
                raw.partition(b'"content":"')[2][:60].decode()
                for (raw,) in transaction.rows("SELECT event FROM snapshot")
            ]
    finally:
        opened.close()
    assert len(sealed) > QUEUED
    for visitor, path in pages_of(seeded, operator, owner):
        page = shown(visitor, path)
        assert "nsec1" not in page, path
        assert not any(secret.hex() in page for secret in secrets), path
        if visitor is operator:
            assert "while you were away" not in page
            assert not any(part in page for part in sealed), path


def test_messages_are_paged_both_ways_and_each_is_listed_once(operator: Visitor) -> None:
    found = {}
    for order in ("newest", "oldest"):
        path, ids = f"/messages?order={order}", []
        while path:
            page = shown(operator, path)
            ids += [one.rpartition("/")[2] for one in hrefs(page, "/messages/")]
            path = way(page, "next")
        found[order] = ids
    assert len(set(found["newest"])) == len(found["newest"]) > QUEUED
    assert found["newest"] == found["oldest"][::-1]


def test_a_page_leads_to_the_one_before(operator: Visitor) -> None:
    """And those on the way back are the ones on the way there, with their own ways on."""
    there, path = [], "/messages?kind=message&order=oldest"
    while path:
        there.append(path)
        path = way(shown(operator, path), "next")
    assert len(there) > 1
    back, path = [], there[-1]
    while path:
        back.append(path)
        path = way(shown(operator, path), "prev")
    assert back == there[::-1]
    assert operator.ask("GET", there[-1] + "&trail=!").status == 400  # a trail is read, not believed


def way(page: str, rel: str) -> str:
    """Where a page leads to; nowhere is empty."""
    return next(iter(re.findall(rf'href="/console([^"]+)" rel="{rel}"', unescape(page))), "")


def test_a_page_that_refreshes_itself_stays_where_it_is(seeded: Town, operator: Visitor) -> None:
    page = shown(operator, "/queues?sort=length&at=50")
    assert 'hx-get="/console/queues?sort=length&amp;at=50"' in page


def test_a_list_keeps_its_filters_from_page_to_page(seeded: Town, operator: Visitor) -> None:
    mesh = hrefs(shown(operator, "/meshes"), "/meshes/")[0].rpartition("/")[2]
    page = shown(operator, f"/messages?mesh={mesh}&order=oldest")
    following = way(page, "next")
    assert f"mesh={mesh}" in following
    assert "order=oldest" in following
    assert "at=" in following
    assert "at=" not in re.findall(r'href="([^"]+)">Accepted', page)[0]  # another order begins at its beginning


def test_messages_are_found_by_every_id_that_they_have(seeded: Town, operator: Visitor) -> None:
    answer = operator.ask("GET", f"/messages?q={quote(HOSTILE_ID)}")
    assert answer.status == 303
    path = answer.headers["location"].removeprefix("/console")
    page = shown(operator, path)
    message_id = path.rpartition("/")[2]
    event_id = re.findall(r"<code>([0-9a-f]{64})</code>", page)[0]
    for name in (message_id, event_id):
        assert operator.ask("GET", f"/messages?q={name}").headers["location"].endswith(message_id)
    assert "It may have been pruned" in shown(operator, "/messages?q=nothing")
    for word in ("accepted", "delivered", "signed by the recipient", "sealed:", "entry "):
        assert word in page


@pytest.mark.parametrize(("name", "value"), [("sender", "ann"), ("recipient", "ben"), ("topic", "news")])
def test_a_member_is_looked_for_in_a_mesh(seeded: Town, operator: Visitor, name: str, value: str) -> None:
    assert operator.ask("GET", f"/messages?{name}={value}").status == 400
    mesh = hrefs(shown(operator, "/meshes"), "/meshes/")[0].rpartition("/")[2]
    members = hrefs(shown(operator, f"/meshes/{mesh}"), f"/meshes/{mesh}/members/")
    ids = [one.rpartition("/")[2] for one in members]
    sought = [value] if name == "topic" else ids
    counts = [len(hrefs(shown(operator, f"/messages?mesh={mesh}&{name}={one}"), "/messages/")) for one in sought]
    assert max(counts) == (0 if name == "topic" else 50)  # a page of Ann's, or of what waits for Ben
    waiting = shown(operator, f"/messages?mesh={mesh}&recipient={ids[0]}&state=waiting&order=oldest")
    assert "delivered" not in re.sub(r"<form.*?</form>", "", waiting, flags=re.DOTALL)


@pytest.mark.parametrize(
    "path",
    ["/messages?colour=red", "/messages?order=up", "/messages?at=x", "/queues?sort=x", "/feed?conflicts=perhaps"],
)
def test_an_address_that_says_something_unknown_is_refused(operator: Visitor, path: str) -> None:
    answer = operator.ask("GET", path)
    assert answer.status == 400
    assert "the address of this page" in unescape(answer.body.decode())


@pytest.mark.parametrize("path", ["/messages", "/queues", "/history"])
def test_a_position_beyond_what_a_store_can_count_is_refused(operator: Visitor, path: str) -> None:
    for at in (2**63, -1, 10**30):
        assert operator.ask("GET", f"{path}?at={at}").status == 400
    assert operator.ask("GET", f"{path}?at={2**63 - 1}").status == 200


@pytest.mark.parametrize("path", ["/outbox", "/inbox", "/agents"])
def test_so_it_is_at_a_daemon(owner: Visitor, path: str) -> None:
    assert [owner.ask("GET", f"{path}?at={at}").status for at in (2**63, 2**63 - 1)] == [400, 200]


def test_lines_that_are_too_many_to_be_compared_are_still_shown() -> None:
    many = [str(number) for number in range(LINES_MAX)]
    lines = side_by_side("\n".join([*many, "old", "gone"]), "\n".join(["new", *many]))
    assert [line.left for line in lines if line.left is not None] == [*many, "old", "gone"]
    assert [line.right for line in lines if line.right is not None] == ["new", *many]


def test_the_overview_tells_the_ladder_and_every_refusal(operator: Visitor) -> None:
    page = shown(operator, "/")
    for word in ("accepted", "queued", "delivered", "receipted", "malformed", "destination_unknown"):
        assert word in page
    rates = operator.ask("GET", "/rates").document
    assert len(rates["at"]) == 60
    assert sum(rates["lines"]["accepted"]) > QUEUED
    assert sum(rates["lines"]["delivered"]) >= 5


def test_the_queue_of_whoever_is_away_is_told(operator: Visitor) -> None:
    page = unescape(shown(operator, "/queues"))
    assert f">{HOSTILE_NAME}</a>" in page
    assert f"<td>{QUEUED}</td>" in page


def test_without_a_lake_the_audit_says_how_to_get_one(operator: Visitor) -> None:
    page = unescape(shown(operator, "/audit"))
    assert "holdfast relay run --lake DIR" in page
    assert operator.ask("GET", "/audit/latency").status == 503


def test_the_outbox_is_listed_by_state_and_by_destination(owner: Visitor) -> None:
    dead = shown(owner, "/outbox?show=dead&order=oldest")
    assert re.findall(r">(dead-\d)<", dead) == [f"dead-{number}" for number in range(DEAD)]
    assert len(hrefs(dead, "/outbox/")) == DEAD, "what was refused of a mesh can be sent again by nobody"
    assert f">given up {DEAD}</a>" in dead
    assert f" all {DEAD} that were given up" in dead
    assert len(hrefs(shown(owner, "/outbox?show=done"), "/outbox/")) == 50
    assert re.findall(r">(dead-\d)<", shown(owner, f"/outbox?to={quote(HOSTILE_NAME)}")) == []
    assert owner.ask("GET", "/outbox?to=nobody").status == 404


def test_the_inbox_is_listed_by_state_and_by_sender(owner: Visitor) -> None:
    assert len(hrefs(shown(owner, "/inbox"), "/inbox/")) == 4
    assert len(hrefs(shown(owner, "/inbox?show=parked"), "/inbox/")) == 1
    assert len(hrefs(shown(owner, "/inbox?show=unapplied"), "/inbox/")) == 2
    assert len(hrefs(shown(owner, f"/inbox?from={quote(HOSTILE_NAME)}"), "/inbox/")) == 4
    assert owner.ask("GET", "/inbox?show=parked&from=ann").status == 400
    message = shown(owner, hrefs(shown(owner, "/inbox?show=parked"), "/inbox/")[0])
    assert "The handler failed 5 times" in message


def test_a_trace_tells_both_ends(owner: Visitor) -> None:
    sent = unescape(shown(owner, f"/trace?id={quote(HOSTILE_ID)}"))
    assert all(word in sent for word in ("accepted", "attempt 1", "relayed", f"At {HOSTILE_NAME}", "receipt"))
    assert "stored" in shown(owner, "/trace?id=ben-0")
    assert "nothing was sent or received here" in shown(owner, "/trace?id=unknown")


def test_the_sessions_of_agents_are_listed_without_what_was_said(owner: Visitor) -> None:
    page = shown(owner, "/agents")
    (session,) = hrefs(page, "/agents/")
    events = shown(owner, session)
    assert all(name in events for name in ("SessionStart", "UserPromptSubmit", "Stop"))
    assert "hello" not in page + events


def test_health_tells_what_to_do(owner: Visitor) -> None:
    page = unescape(shown(owner, "/health"))
    assert f"{DEAD} messages were given up." in page
    assert "parked: the handler failed five times" in page
    assert "1 document is in conflict" in page
    assert "is in reach" in page


def test_files_are_kept_by_the_browser_and_only_ours_are_given(operator: Visitor) -> None:
    page = shown(operator, "/")
    css = re.findall(r'href="/console(/static/[^"]+/console.css)"', page)[0]
    answer = operator.ask("GET", css)
    assert answer.headers["content-type"].startswith("text/css")
    assert "immutable" in answer.headers["cache-control"]
    version = css.split("/")[2]
    for name in (
        "relay.sql",
        "../rendering.py",
        "%2e%2e%2frendering.py",
        "vendor/htmx.LICENSE",
        "vendor/../console.css",
    ):
        assert operator.ask("GET", f"/static/{version}/{name}").status == 404
    assert operator.ask("GET", css.replace(version, "0" * 12)).status == 404
