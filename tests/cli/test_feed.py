"""`holdfast feed` from the outside: real commands, real daemons, a real relay."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from holdfast.device.feed_client import FeedClient
from tests import ports
from tests.cli.person import PATIENCE_S, Person, founder, member_of
from tests.proxy import proxy_to
from tests.relay.running import running
from tests.vanishing import vanishing

T = TypeVar("T")


def until(person: Person, look: Callable[[FeedClient], T]) -> T:
    """What their daemon says of documents as soon as there is something in it; without the start of a process each time."""
    give_up_at = time.monotonic() + PATIENCE_S
    with FeedClient(home=person.home) as client:
        while not (answer := look(client)):
            assert time.monotonic() < give_up_at
            time.sleep(0.05)
    return answer


def share(ann: Person, ben: Person) -> None:
    """Two homes with one author, by commands."""
    made = ann.json("feed", "init")
    ann.run("feed", "share", "ben")
    (offered,) = until(ben, lambda client: client.feed().shared)
    assert (offered.author, offered.name) == (made["author"], "ann")
    assert ben.json("feed", "init", "--from", "ann")["author"] == made["author"]


@contextmanager
def following(person: Person) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        person.command("feed", "follow", "--json", "--after", "0"),
        env=person.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()


def test_two_homes_edit_one_persons_notes(ann: Person, ben: Person) -> None:
    with ann.daemon(), ben.daemon():
        assert "feed init" in ann.fails(3, "feed", "list")
        for person in (ann, ben):
            person.until_connected(2)
        share(ann, ben)
        made = ann.json("feed", "put", "shopping list", "milk")
        assert (made["name"], made["status"], made["body"]) == ("shopping list", "ok", "milk")
        until(ben, lambda client: client.documents().documents)
        assert ben.says("feed", "get", "shopping list") == "milk\n"
        with FeedClient(home=ben.home) as client:
            changed = client.put("shopping list", "bread", seen=[made["versions"][0]["id"]])
        until(ann, lambda client: client.document("shopping list").body == "bread")
        versions = ann.json("feed", "history", "shopping list")
        assert [version["body"] for version in versions] == ["bread", "milk"]
        assert versions[0]["id"] == changed.versions[0].id
        stale = ann.fails(4, "feed", "put", "shopping list", "jam", "--seen", made["versions"][0]["id"], "--json")
        assert json.loads(stale)["error"] == "document_changed"
        with following(ben) as process:
            assert process.stdout is not None
            lines = [json.loads(process.stdout.readline()) for _ in range(2)]
            ann.run("feed", "del", "shopping list")
            lines.append(json.loads(process.stdout.readline()))
        assert [line["outcome"] for line in lines] == ["applied", "edited", "applied"]
        assert lines[-1]["document"]["status"] == "deleted"
        assert "was deleted" in ben.fails(3, "feed", "get", "shopping list")
        assert [one["status"] for one in ben.json("feed", "list", "--deleted")["documents"]] == ["deleted"]
        until(
            ben, lambda client: not client.feed().relays[0].waiting
        )  # Ann may have it before its writer has the answer
        status = ben.json("feed", "status")
        assert (status["documents"], status["deleted"], status["conflicts"]) == (0, 1, 0)
        assert [(one["is_home"], one["live"], one["waiting"]) for one in status["relays"]] == [(True, True, 0)]


def test_a_document_leaves_a_terminal_that_knows_few_letters_as_it_was(ann: Person) -> None:
    text = "früh ☕\n"
    with ann.daemon():
        ann.run("feed", "init")
        ann.run("feed", "put", "note", text)
        environment = {**ann.environment, "PYTHONIOENCODING": "latin-1"}
        plain = subprocess.run(ann.command("feed", "get", "note"), env=environment, capture_output=True, check=True)
        assert plain.stdout == text.encode()  # as `feed put NAME -` reads it
        told = subprocess.run(
            ann.command("feed", "get", "note", "--json"), env=environment, capture_output=True, check=True
        )
        assert json.loads(told.stdout)["body"] == text


def test_a_share_that_a_daemon_took_before_it_vanished_can_be_repeated_as_the_command_says(tmp_path: Path) -> None:
    ann = Person(tmp_path / "ann")
    ann.home.mkdir()
    with vanishing(ann.home / "daemon.sock") as taken:
        said = json.loads(ann.fails(5, "feed", "share", "ben", "--id", "mine", "--json"))
    assert json.loads(taken[0].partition(b"\r\n\r\n")[2]) == {"member": "ben", "client_message_id": "mine"}
    assert said["error"] == "daemon_lost"
    assert "repeat the command with `--id mine`." in said["message"]


def test_what_was_written_without_a_relay_survives_kill_9_and_is_no_loss_to_anybody(
    tmp_path: Path, resident: Callable[[str], Person]
) -> None:
    far = running(tmp_path / "relay", 'host = "127.0.0.2"\n', options=ports.options())
    with far as relay, proxy_to(relay.address, "127.0.0.1") as road:
        ann = founder(resident("ann"), road.url)
        ben = member_of(resident("ben"), ann)
        with ann.daemon():
            with ben.daemon() as process:
                for person in (ann, ben):
                    person.until_connected(2)
                with FeedClient(home=ann.home) as at_anns, FeedClient(home=ben.home) as at_bens:
                    at_anns.init()
                    at_anns.share("ben")
                    until(ben, lambda client: client.feed().shared)
                    at_bens.init("ann")
                    at_anns.put("plan", "walk")
                    until(ben, lambda client: client.documents().documents)
                    road.cut()
                    at_anns.put("plan", "swim")
                    at_bens.put("plan", "sail")
                    at_bens.put("dream", "fly")
                process.kill()
                process.wait(PATIENCE_S)
            with ben.daemon():
                assert until(ben, lambda client: client.document("plan").body) == "sail"
                road.restore()
                _resolve(ann, ben)


def _resolve(ann: Person, ben: Person) -> None:
    """Both see the conflict; one of them ends it."""
    for person in (ann, ben):
        until(person, lambda client: client.feed().conflicts)
    until(ann, lambda client: client.documents().documents[0].name == "dream")  # which came after the conflict
    assert "2 versions" in ann.fails(4, "feed", "get", "plan")
    assert "resolve" in ann.fails(4, "feed", "put", "plan", "fly")
    (conflict,) = ann.json("feed", "conflicts")
    assert sorted(version["body"] for version in conflict["versions"]) == ["sail", "swim"]
    shown = ben.says("feed", "conflicts")
    assert "sail" in shown
    assert "swim" in shown
    sail = next(version["id"] for version in conflict["versions"] if version["body"] == "sail")
    resolved = ann.json("feed", "resolve", "plan", "--keep", sail[:12])
    assert (resolved["status"], resolved["body"]) == ("ok", "sail")
    until(ben, lambda client: client.document("plan").body == "sail")
