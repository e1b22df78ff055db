"""What can be done on the pages: each thing once, told, and by nobody who may not."""

import re
from collections.abc import Mapping
from html import unescape
from urllib.parse import quote, urlencode

import pytest

from tests.console.test_pages import hrefs, shown
from tests.console.town import HOSTILE_ID, HOSTILE_TEXT, QUEUED, Town, Visitor, link, until


@pytest.fixture(scope="module")
def reader(seeded: Town) -> Visitor:
    """Somebody who may look at the relay's console."""
    return Visitor(seeded.relay_url).enter(link("--data", seeded.relay.data, "--read-only"))


@pytest.fixture(scope="module")
def onlooker(seeded: Town) -> Visitor:
    """Somebody who may look at the daemon's console."""
    opened = link("--read-only", home=seeded.ann.home)
    return Visitor(opened.partition("/console")[0]).enter(opened)


def post(visitor: Visitor, path: str, fields: Mapping[str, object] | None = None, **headers: str) -> tuple[int, str]:
    """Send a form as a page of ours does; the status, and what the page after it says of it."""
    given = {"csrf": visitor.csrf(), **(fields or {})}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = visitor.ask("POST", path, urlencode(given, doseq=True).encode(), named)
    if answer.status != 303:
        return answer.status, unescape(answer.body.decode())
    page = unescape(shown(visitor, answer.headers["location"].removeprefix("/console")))
    return answer.status, "\n".join(re.findall(r'<p class="notice[^>]*>(.*?)</p>', page, re.DOTALL))


def waiting_message(operator: Visitor) -> str:
    return hrefs(shown(operator, "/messages?state=waiting&order=oldest"), "/messages/")[0]


def test_a_message_is_taken_down_once_it_is_asked_for_properly(operator: Visitor, reader: Visitor) -> None:
    path = f"{waiting_message(operator)}/moderation"
    page = path.removesuffix("/moderation")
    body = urlencode({"reason": "spam"}).encode()
    assert operator.ask("POST", path, body).status == 403  # no token
    assert operator.ask("POST", path, urlencode({"reason": "spam", "csrf": reader.csrf()}).encode()).status == 403
    assert post(operator, path, {"reason": "spam"}, origin="http://127.0.0.1:1")[0] == 403
    assert post(operator, path, {"reason": "spam"}, sec_fetch_site="same-site")[0] == 403
    assert post(reader, path, {"reason": "spam"})[0] == 403
    assert "A reason has 1 to 500" in post(operator, path, {"reason": " "})[1]
    assert "A reason has 1 to 500" in post(operator, path, {"reason": "x" * 501})[1]
    assert "moderated" not in shown(operator, page)
    status, told = post(operator, path, {"reason": f"spam {HOSTILE_TEXT}"})
    assert (status, "closed for 1 recipient." in told) == (303, True)
    after = unescape(shown(operator, page))
    assert "moderated" in after
    assert "taken down" in after
    assert f"spam {HOSTILE_TEXT}" in after
    assert f"<td>{QUEUED - 1}</td>" in shown(operator, "/queues")
    assert "nobody waited for it any more" in post(operator, path, {"reason": "again"})[1]
    assert post(operator, "/messages/nothing/moderation", {"reason": "x"})[0] == 404


def test_whoever_may_only_look_sees_no_buttons_and_changes_nothing(reader: Visitor, onlooker: Visitor) -> None:
    pages = [(reader, waiting_message(reader)), (onlooker, "/outbox?show=dead"), (onlooker, "/documents")]
    pages += [
        (onlooker, hrefs(shown(onlooker, path), f"{path.partition('?')[0]}/")[0])
        for path in ("/outbox?show=dead", "/inbox?show=parked", "/documents?conflicts=true")
    ]
    for visitor, path in pages:
        page = shown(visitor, path)
        assert "read only" in page
        assert re.findall(r'<form[^>]+method="post"[^>]+action="([^"]+)"', page) == ["/console/leave"], path
    dead = hrefs(shown(onlooker, "/outbox?show=dead"), "/outbox/")[0]
    for path in (
        f"{dead}/requeue",
        f"{dead}/preview",
        "/outbox/redrive",
        "/outbox/redrive/stop",
        "/inbox/x/apply",
        "/documents",
        "/documents/x/resolve",
        "/documents/x/edit",
        "/documents/x/delete",
        "/scheduled/x/cancel",
    ):
        assert post(onlooker, path, {"which": "all"})[0] == 403, path


def test_a_dead_letter_is_changed_looked_at_and_sent_again(owner: Visitor) -> None:
    path = hrefs(shown(owner, "/outbox?show=dead&order=oldest"), "/outbox/")[0]
    changed = "to Carl 0\n</pre><script>alert(4)</script>"
    status, preview = post(owner, f"{path}/preview", {"message": changed.replace("\n", "\r\n")})
    assert status == 200
    assert 'class="gone">second line' in preview
    assert "alert(4)" in preview
    assert hrefs(shown(owner, "/outbox?show=dead&order=oldest"), "/outbox/")[0] == path  # nothing happened yet
    status, told = post(owner, f"{path}/requeue", {"message": changed})
    assert (status, "the old id is retired" in told) == (303, True)
    old = shown(owner, path)
    assert "aborted" in old
    successor = hrefs(old, "/outbox/")[-1]
    new = unescape(shown(owner, successor))
    assert changed in new
    assert "Beside the one before" in new
    assert "Refused (requeue_of_aborted)" in post(owner, f"{path}/requeue", {"message": "something else"})[1]


def test_many_dead_letters_are_sent_again_and_watched(owner: Visitor) -> None:
    ids = [one.rpartition("/")[2] for one in hrefs(shown(owner, "/outbox?show=dead&order=oldest"), "/outbox/")]
    assert "Nothing was chosen" in post(owner, "/outbox/redrive", {"which": "chosen"})[1]
    for rate in ("fast", "nan"):
        assert "The pace is a number" in post(owner, "/outbox/redrive", {"which": "all", "rate": rate})[1]
    chosen = {"which": "chosen", "id": [ids[0], ids[1], "nothing"], "rate": "200"}
    assert "3 messages will be sent again, 200 a second." in post(owner, "/outbox/redrive", chosen)[1]
    until(lambda: "<b>Sent again:</b> 2 of 3; refused: <code>not_found</code> 1" in shown(owner, "/outbox?show=dead"))
    assert "aborted" in shown(owner, f"/outbox/{ids[0]}")
    post(owner, "/outbox/redrive", {"which": "all", "rate": "0.1"})
    assert "already" in post(owner, "/outbox/redrive", {"which": "all"})[1]
    until(lambda: "<b>Sending again:</b> 1 of" in shown(owner, "/outbox?show=dead"))
    assert "Stopped after 1 of" in post(owner, "/outbox/redrive/stop")[1]
    assert "Nothing is under way." in post(owner, "/outbox/redrive/stop")[1]
    assert "aborted" not in re.sub(r"<ul.*?</ul>", "", shown(owner, f"/outbox/{ids[3]}"), flags=re.DOTALL)


def test_a_parked_message_is_dealt_with(owner: Visitor) -> None:
    (path,) = hrefs(shown(owner, "/inbox?show=parked"), "/inbox/")
    assert "Marked as dealt with." in post(owner, f"{path}/apply")[1]
    assert "already" in post(owner, f"{path}/apply")[1]
    assert hrefs(shown(owner, "/inbox?show=parked"), "/inbox/") == []
    assert post(owner, "/inbox/nothing/apply")[0] == 404


def test_a_scheduled_send_is_taken_back(owner: Visitor) -> None:
    (action,) = re.findall(r'action="/console(/scheduled/[^"]+)"', shown(owner, "/outbox"))
    assert action == "/scheduled/later%2F1/cancel"
    assert "Taken back." in post(owner, action)[1]
    assert "/scheduled/" not in shown(owner, "/outbox")


def test_a_conflict_ends_with_the_side_that_is_chosen_and_not_behind_anybodys_back(owner: Visitor) -> None:
    (path,) = hrefs(shown(owner, "/documents?conflicts=true"), "/documents/")
    page = shown(owner, path)
    seen = list(dict.fromkeys(re.findall(r'name="seen" value="([0-9a-f]{64})"', page)))
    assert len(seen) == 2
    assert "Monday: sail" in page
    assert "Monday: swim" in page
    assert "document_changed" in post(owner, f"{path}/resolve", {"choice": seen[0], "seen": seen[:1]})[1]
    assert "Refused" in post(owner, f"{path}/resolve", {"choice": "ff", "seen": seen})[1]
    assert "conflict" in shown(owner, "/documents")
    assert (
        "Resolved: one version stands."
        in post(owner, f"{path}/resolve", {"choice": "text", "body": "Monday: both\r\nTuesday: rest", "seen": seen})[1]
    )
    assert "Monday: both\nTuesday: rest</pre>" in shown(owner, path)
    assert hrefs(shown(owner, "/documents?conflicts=true"), "/documents/") == []


def test_documents_are_made_edited_and_deleted(owner: Visitor) -> None:
    assert "Kept." in post(owner, "/documents", {"name": "todo", "body": "wash", "only_new": "true"})[1]
    assert "document_changed" in post(owner, "/documents", {"name": "todo", "body": "over it", "only_new": "true"})[1]
    assert "malformed" in post(owner, "/documents", {"name": "", "body": "x"})[1]
    path = next(one for one in hrefs(shown(owner, "/documents"), "/documents/") if "wash" in shown(owner, one))
    seen = re.findall(r'name="seen" value="([0-9a-f]{64})"', shown(owner, path))[:1]
    assert "Kept; relays get it" in post(owner, f"{path}/edit", {"body": "wash up", "seen": seen})[1]
    assert "document_changed" in post(owner, f"{path}/delete", {"seen": seen})[1]
    seen = re.findall(r'name="seen" value="([0-9a-f]{64})"', shown(owner, path))[:1]
    assert "Deleted." in post(owner, f"{path}/delete", {"seen": seen})[1]
    assert "It is deleted." in shown(owner, path)


def test_where_a_form_leads_is_ours_whatever_its_address_says(operator: Visitor) -> None:
    name = "x\r\nset-cookie: a=b"
    answer = operator.ask(
        "POST",
        f"/messages/{quote(name, safe='')}/moderation",
        urlencode({"csrf": operator.csrf(), "reason": ""}).encode(),
    )
    assert answer.status == 303
    assert answer.headers["location"].startswith("/console/messages/x%0D%0A")
    assert "set-cookie" not in answer.headers
    for name in ("//evil.example", "https://evil.example", HOSTILE_ID):
        found = operator.ask("GET", f"/messages?q={quote(name, safe='')}")
        assert found.headers.get("location", "/console/").startswith("/console/")


def test_the_heading_of_a_no_says_what_is_wrong(owner: Visitor) -> None:
    answer = owner.ask("POST", "/documents", b"csrf=x")
    assert (answer.status, answer.headers["content-type"]) == (403, "text/html; charset=utf-8")
    assert b"<h1>the form is not one of this session; load the page again</h1>" in answer.body


def test_a_form_that_is_too_large_or_none_is_refused(owner: Visitor) -> None:
    assert owner.ask("POST", "/documents", b"x" * 300_000).status == 413
    assert owner.ask("POST", "/documents", b"\xff").status == 400
    assert owner.ask("POST", "/documents", b"&".join(b"a=1" for _ in range(700))).status == 400
