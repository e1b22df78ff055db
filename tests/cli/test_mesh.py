"""Homes, a relay and what administers a mesh: real processes, a real road between them, and deaths on it."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import msgspec
import pytest
from ulid import ULID

from holdfast.cli.output import ExitCode, Failure
from holdfast.cli.session import failures
from holdfast.device.device import at_work
from holdfast.device.home import Home
from holdfast.device.invitation import Invitation, read, write
from holdfast.protocol import keys, sealing
from holdfast.protocol.action import Role
from holdfast.protocol.refusal import Refused
from holdfast.relay.database import open_to_read
from tests import ports
from tests.cli.person import PATIENCE_S, Person, founder, invitation_of, member_of
from tests.proxy import Proxy, proxy_to
from tests.relay.running import RunningRelay, running

TYPO = write(Invitation(relay="http://127.0.0.1:1", mesh="01M", mesh_name="x", secret=bytes(32))).replace("A", "B", 1)


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRelay]:
    """One relay for all: every test has a mesh of its own. It listens beside 127.0.0.1, where a proxy finds room."""
    place = tmp_path_factory.mktemp("mesh") / "relay"
    with running(place, 'host = "127.0.0.2"', options=ports.options()) as started:
        yield started


@pytest.fixture
def proxy(relay: RunningRelay) -> Iterator[Proxy]:
    with proxy_to(relay.address, "127.0.0.1") as opened:
        yield opened


@pytest.fixture
def person(resident: Callable[[str], Person]) -> Callable[[str], Person]:
    return resident


@pytest.fixture
def alice(person: Callable[[str], Person], relay: RunningRelay) -> Person:
    """The admin of a mesh."""
    return founder(person("alice"), relay.url)


@pytest.fixture
def bob(person: Callable[[str], Person], alice: Person) -> Person:
    """A member of Alice's mesh."""
    return member_of(person("bob"), alice)


@pytest.fixture
def carol(person: Callable[[str], Person], alice: Person) -> Person:
    return member_of(person("carol"), alice)


def test_a_mesh_is_made_and_others_are_let_in(person: Callable[[str], Person], relay: RunningRelay) -> None:
    alice, bob = person("alice"), person("bob")
    made = alice.json("mesh", "create", "Küche", "--relay", relay.url + "/", "--as", "Alice")
    assert (made["name"], made["relay"], made["member_name"]) == ("Küche", relay.url, "Alice")
    assert str(ULID.from_str(made["mesh"])) == made["mesh"]
    assert str(ULID.from_str(made["member"])) == made["member"]
    text = alice.says("mesh", "invite", "--role", "admin").strip()
    invitation = read(text)
    assert (invitation.relay, invitation.mesh, invitation.mesh_name) == (relay.url, made["mesh"], "Küche")
    joined = subprocess.run(
        bob.command("mesh", "join", "-", "--as", "Bob", "--json"),
        input=text + "\n",
        capture_output=True,
        text=True,
        env=bob.environment,
    )
    assert json.loads(joined.stdout)["mesh"] == made["mesh"]
    members = alice.json("member", "list")
    assert [set(member) for member in members] == [{"member", "pubkey", "npub", "name", "role"}] * 2
    assert members[0]["npub"] in alice.says("member", "list")
    assert [(member["name"], member["role"]) for member in members] == [("Alice", "admin"), ("Bob", "admin")]
    shown = bob.json("mesh", "show")
    assert (shown["member"], shown["pubkey"]) == (members[1]["member"], members[1]["pubkey"])
    assert keys.read_npub(shown["npub"]) == shown["pubkey"]
    assert "Bob (you)" in bob.says("member", "list")


def test_a_mesh_at_a_relay_that_others_reach_is_made_with_its_operators_key(
    person: Callable[[str], Person], tmp_path: Path
) -> None:
    alice, bob = person("alice"), person("bob")
    with running(tmp_path / "relay", 'host = "0.0.0.0"') as relay:
        url = relay.url.replace("0.0.0.0", "127.0.0.1")
        create = ("mesh", "create", "Kitchen", "--relay", url, "--as", "alice")
        assert "add --operator-key DATA/operator.key" in alice.fails(1, *create)
        assert "not an operator's of this relay" in alice.fails(1, *create, "--operator-key", alice.home / "member.key")
        assert "no such file" in alice.fails(3, *create, "--operator-key", tmp_path / "nothing")
        alice.run(*create, "--operator-key", relay.data / "operator.key")
        bob.run("mesh", "join", invitation_of(alice), "--as", "bob")
        members = {member["name"]: member for member in bob.json("member", "list")}
    assert [(name, member["role"]) for name, member in members.items()] == [("alice", "admin"), ("bob", "member")]
    assert members["alice"]["pubkey"] != keys.public_key(relay.operator())
    kept = b"".join(path.read_bytes() for path in alice.home.rglob("*") if path.is_file())
    assert (relay.data / "operator.key").read_bytes().strip() not in kept
    assert relay.operator() not in kept


def test_two_homes_of_one_user_find_names_of_their_own(person: Callable[[str], Person], alice: Person) -> None:
    for name in ("laptop", "desktop"):
        person(name).run("mesh", "join", invitation_of(alice))
    _, first, second = alice.json("member", "list")
    assert second["name"] == f"{first['name']}-{second['pubkey'][:6]}"


def test_an_invitation_lets_one_in_once(person: Callable[[str], Person], alice: Person) -> None:
    text = alice.json("mesh", "invite")["invite"]
    person("bob").run("mesh", "join", text, "--as", "bob")
    assert "used" in person("mallory").fails(4, "mesh", "join", text, "--as", "mallory")
    assert [member["name"] for member in alice.json("member", "list")] == ["alice", "bob"]
    person("mallory").run("mesh", "join", invitation_of(alice), "--as", "mallory")  # whose home came to no harm


def test_an_invitation_that_only_this_machine_can_use_says_so(alice: Person, relay: RunningRelay) -> None:
    assert f"It is for this machine: nobody else reaches {relay.url}\n" in alice.run("mesh", "invite").stderr


def test_an_invitation_that_expired_or_never_was_lets_nobody_in(person: Callable[[str], Person], alice: Person) -> None:
    text = _invitation_that_expires(alice)
    assert "expired" in person("bob").fails(4, "mesh", "join", text)
    made_up = write(msgspec.structs.replace(read(text), secret=b"?" * 32))
    assert "no such invitation" in person("bob").fails(4, "mesh", "join", made_up)


def _invitation_that_expires(admin: Person) -> str:
    """One that is no longer good; it was when the relay heard of it, which takes as long as the machine likes."""
    for lasts_s in (0.3, 3.0, 30.0):
        with suppress(Refused):
            text = invitation_of(admin, hours=lasts_s / 3600)
            time.sleep(lasts_s)
            return text
    raise AssertionError("the relay heard of no invitation in time")


def test_an_invitation_that_was_withdrawn_lets_nobody_in(person: Callable[[str], Person], alice: Person) -> None:
    text = invitation_of(alice)
    alice.run("mesh", "withdraw", text)
    assert "withdrawn" in person("bob").fails(4, "mesh", "join", text)


def test_a_revoked_member_is_refused_and_sees_nothing(alice: Person, bob: Person) -> None:
    alice.run("member", "revoke", "bob")
    for command in (["member", "list"], ["topic", "create", "mine"], ["mesh", "invite"]):
        assert "no longer, a member" in bob.fails(1, *command)
    assert [member["name"] for member in alice.json("member", "list")] == ["alice"]
    statuses = [(member["name"], member["status"]) for member in alice.json("member", "list", "--all")]
    assert statuses == [("alice", "active"), ("bob", "revoked")]
    assert alice.json("member", "revoke", "bob")["status"] == "revoked"  # which it is


def test_a_member_may_leave_but_not_put_out_others(alice: Person, bob: Person) -> None:
    assert "admin" in bob.fails(1, "member", "revoke", "alice")
    assert "has left" in bob.says("member", "revoke", "bob")
    assert [member["name"] for member in alice.json("member", "list")] == ["alice"]


def test_a_member_is_found_by_any_of_its_names_and_never_by_two_peoples(
    alice: Person, bob: Person, carol: Person
) -> None:
    _, found, other = alice.json("member", "list")
    for who in (found["member"], found["pubkey"], found["pubkey"].upper(), keys.npub(found["pubkey"]), "bob"):
        alice.run("member", "rename", "bob", "--of", who)
    carol.run("member", "rename", found["member"])
    assert "2 members go by" in alice.fails(2, "member", "revoke", found["member"])
    alice.run("member", "revoke", other["member"])
    assert [member["name"] for member in bob.json("member", "list")] == ["alice", "bob"]
    assert "no member nobody" in alice.fails(3, "member", "revoke", "nobody")


def test_a_member_renames_itself_and_an_admin_anybody(alice: Person, bob: Person) -> None:
    bob.run("member", "rename", "Robert")
    assert json.loads((bob.home / "home.json").read_text())["member_name"] == "Robert"
    assert "in use" in bob.fails(4, "member", "rename", "alice")
    bob.fails(1, "member", "rename", "x", "--of", "alice")
    alice.run("member", "rename", "Bob", "--of", "Robert")
    assert [member["name"] for member in bob.json("member", "list")] == ["alice", "Bob"]


def test_an_admin_makes_another_and_only_then_may_go(alice: Person, bob: Person) -> None:
    assert "holdfast member set-role WHO admin" in alice.fails(4, "member", "revoke", "alice")
    assert "holdfast member set-role WHO admin" in alice.fails(4, "member", "set-role", "alice", "member")
    assert "admin" in bob.fails(1, "member", "set-role", "bob", "admin")
    bobs = {member["name"]: member["member"] for member in bob.json("member", "list")}["bob"]
    assert alice.json("member", "set-role", "bob", "admin") == {"member": bobs, "name": "bob", "role": "admin"}
    assert "bob has the role admin now" in alice.says("member", "set-role", bobs, "admin")  # which it has
    assert "alice has the role member now" in bob.says("member", "set-role", "alice", "member")
    assert "admin" in alice.fails(1, "mesh", "invite")
    assert [member["role"] for member in bob.json("member", "list")] == ["member", "admin"]
    assert "has left" in alice.says("member", "revoke", "alice")
    assert json.loads(bob.fails(3, "member", "set-role", "alice", "admin", "--json"))["error"] == "subject_unknown"


def test_a_subscriber_waits_for_the_key_until_a_keeper_passes_by(alice: Person, bob: Person) -> None:
    assert alice.json("topic", "create", "news/local") == {"topic": "news/local", "key_epoch": 1}
    assert bob.json("topic", "subscribe", "news/local")["key"] == "waiting for key"
    assert "waiting for key" in bob.says("topic", "list")
    assert bob.key_of("news/local", 1) == []
    done = alice.run("mesh", "show")  # has nothing to do with topics, and passes by
    assert "granted the key of topic news/local to bob" in done.stderr
    (topic,) = bob.json("topic", "list")
    assert (topic["key"], topic["subscribed"], topic["key_epoch"]) == ("ready", True, 1)
    assert bob.key_of("news/local", 1) == alice.key_of("news/local", 1) != []
    assert bob.json("topic", "subscribe", "news/local")["key"] == "ready"  # again: nothing changes
    assert alice.json("topic", "grant") == []


def test_whoever_left_cannot_open_what_is_sealed_afterwards_and_whoever_stayed_can(
    alice: Person, bob: Person, carol: Person
) -> None:
    alice.run("topic", "create", "news")
    for subscriber in (bob, carol):
        subscriber.run("topic", "subscribe", "news")
    (granted,) = alice.json("topic", "grant", "news")
    assert (granted["did"], len(granted["members"])) == ("grant", 2)
    for subscriber in (bob, carol):
        subscriber.run("topic", "list")
    carol.run("topic", "unsubscribe", "news")
    (rotated,) = alice.json("topic", "grant")
    assert (rotated["did"], rotated["key_epoch"], len(rotated["members"])) == ("rotate", 2, 1)
    assert _readers(alice, 2, bob, carol) == [True, False]
    carol.run("topic", "subscribe", "news")  # it comes back, is granted the key of now, and then is put out
    alice.run("topic", "grant")
    assert _readers(alice, 2, bob, carol) == [True, True]
    assert "new key (epoch 3)" in alice.run("member", "revoke", "carol").stderr
    assert _readers(alice, 3, bob) == [True]
    assert "member" in carol.fails(1, "topic", "list")
    assert not any(_opens(key, _sealed(alice, 3)) for epoch in (1, 2, 3) for key in carol.key_of("news", epoch))


def _sealed(person: Person, epoch: int) -> str:
    return sealing.seal(person.key_of("news", epoch)[0], b"for those who stayed", os.urandom(32))


def _readers(writer: Person, epoch: int, *readers: Person) -> list[bool]:
    """Who can open what the writer seals in an epoch, after having fetched whatever is to be had."""
    sealed = _sealed(writer, epoch)
    for reader in readers:
        reader.run("topic", "list")
    return [
        any(_opens(key, sealed) for e in range(1, epoch + 1) for key in reader.key_of("news", e)) for reader in readers
    ]


def _opens(key: bytes, sealed: str) -> bool:
    try:
        return sealing.open_sealed(key, sealed) == b"for those who stayed"
    except Refused:
        return False


def test_an_admin_without_the_key_makes_a_new_one_for_those_who_wait(
    person: Callable[[str], Person], alice: Person, bob: Person
) -> None:
    carol = member_of(person("carol"), alice, Role.ADMIN)
    bob.run("topic", "create", "news")
    bob.run("topic", "subscribe", "news")
    carol.run("topic", "subscribe", "news")
    assert carol.json("topic", "list")[0]["key_epoch"] == 2
    assert _readers(carol, 2, bob) == [True]


def test_the_same_topic_twice_is_a_conflict(alice: Person, bob: Person) -> None:
    alice.run("topic", "create", "news")
    assert "in use" in alice.fails(4, "topic", "create", "news")
    assert json.loads(bob.fails(4, "topic", "create", "news", "--json"))["error"] == "name_taken"
    assert "granted by its creator and by admins" in bob.fails(1, "topic", "grant", "news")


def test_a_member_blocks_and_hears_again_whom_it_likes(alice: Person, bob: Person, relay: RunningRelay) -> None:
    bobs = {row["name"]: row["member"] for row in alice.json("member", "list")}["bob"]
    assert "bob is blocked" in alice.says("member", "block", "bob")
    assert alice.json("member", "block", bobs) == {"member": bobs, "name": "bob", "blocked": True}  # which it is
    assert alice.json("member", "unblock", "bob") == {"member": bobs, "name": "bob", "blocked": False}
    assert "bob is heard again" in alice.says("member", "unblock", "bob")
    assert "nobody can block themselves" in bob.fails(2, "member", "block", "bob")
    assert "no member zoe" in bob.fails(3, "member", "block", "zoe")
    assert "no member zoe" in bob.fails(3, "member", "unblock", "zoe")
    alice.run("member", "revoke", "bob")
    assert json.loads(alice.fails(3, "member", "block", "bob", "--json"))["error"] == "subject_unknown"


DEATHS: dict[str, tuple[str, list[str]]] = {
    "create_mesh": ("alice", ["mesh", "create", "Kitchen", "--relay", "RELAY", "--as", "alice"]),
    "join": ("bob", ["mesh", "join", "INVITE", "--as", "bob"]),
    "create_topic": ("alice", ["topic", "create", "news"]),
    "grant_topic_key": ("alice", ["topic", "create", "news"]),
    "advance_topic_key": ("alice", ["topic", "create", "news"]),
    "subscribe": ("bob", ["topic", "subscribe", "news"]),
    "revoke_member": ("alice", ["member", "revoke", "bob"]),
}


@pytest.mark.parametrize("action", DEATHS)
def test_a_death_between_commit_and_answer_is_healed_by_the_same_command_and_nothing_is_done_twice(
    person: Callable[[str], Person], relay: RunningRelay, proxy: Proxy, action: str
) -> None:
    name, arguments = DEATHS[action]
    places = {"RELAY": proxy.url, "INVITE": ""}
    alice, bob = person("alice"), person("bob")
    if action != "create_mesh":
        places["INVITE"] = invitation_of(founder(alice, proxy.url))
    if action in ("subscribe", "revoke_member"):
        member_of(bob, alice)
        alice.run("topic", "create", "news")
    command = [places.get(word, word) for word in arguments]
    before = _done(relay, action)
    proxy.swallow(action.encode())
    dying = person(name).start(*command)
    assert proxy.swallowed.wait(PATIENCE_S)
    dying.send_signal(signal.SIGKILL)
    assert dying.wait() == -signal.SIGKILL
    assert _done(relay, action) == before + 1  # it is done, and nobody knows
    person(name).run(*command)
    # A key that may be known to somebody is never staged again: a new one is.
    assert _done(relay, action) == before + (2 if action == "grant_topic_key" else 1)
    with at_work(Home(person(name).home)) as device:
        statuses = device.look(lambda tx: tx.rows("SELECT DISTINCT status FROM operation_log"))
    assert statuses == [("done",)]
    if "topic" in command:
        assert alice.json("topic", "list")[0]["key_epoch"] == 1
    assert alice.json("mesh", "show")["name"] == "Kitchen"


def _done(relay: RunningRelay, action: str) -> int:
    """How often the relay has done something, as its history tells."""
    engine = open_to_read(relay.data / "relay.db")
    try:
        with engine.read() as transaction:
            statement = "SELECT count(*) FROM history WHERE kind = 'admin' AND instr(CAST(detail AS TEXT), :action)"
            return int(transaction.rows(statement, {"action": f'"action":"{action}"'})[0][0])
    finally:
        engine.close()


def test_any_other_command_heals_a_death_too_and_says_so(
    person: Callable[[str], Person], relay: RunningRelay, proxy: Proxy
) -> None:
    alice = person("alice")
    proxy.swallow(b"create_mesh")
    dying = alice.start("mesh", "create", "Kitchen", "--relay", proxy.url)
    assert proxy.swallowed.wait(PATIENCE_S)
    dying.kill()
    dying.wait()
    done = alice.run("member", "list")
    assert "an earlier create_mesh that had got no answer is done" in done.stderr
    assert "admin" in done.stdout


def test_who_leaves_while_a_keeper_is_dead_is_known_to_hold_the_key_that_was_just_made(
    person: Callable[[str], Person], proxy: Proxy
) -> None:
    alice = founder(person("alice"), proxy.url)
    bob, carol = (member_of(person(name), alice) for name in ("bob", "carol"))
    alice.run("topic", "create", "news")
    for subscriber in (bob, carol):
        subscriber.run("topic", "subscribe", "news")
    alice.run("topic", "grant")
    bob.run("topic", "unsubscribe", "news")
    proxy.swallow(b"advance_topic_key")
    dying = alice.start("topic", "grant")
    assert proxy.swallowed.wait(PATIENCE_S)
    dying.kill()
    dying.wait()
    carol.run("topic", "unsubscribe", "news")
    (rotated,) = alice.json("topic", "grant")
    assert (rotated["did"], rotated["key_epoch"], rotated["members"]) == ("rotate", 3, [])


def test_what_was_asked_for_while_the_relay_was_away_is_kept_and_done_later(
    person: Callable[[str], Person], proxy: Proxy
) -> None:
    alice = founder(person("alice"), proxy.url)
    proxy.swallow(b"create_topic")
    asked = alice.start("topic", "create", "news")
    assert proxy.swallowed.wait(PATIENCE_S)
    proxy.cut()  # with the answer on the road
    assert asked.wait(PATIENCE_S) == 5
    failure = json.loads(alice.fails(5, "topic", "list", "--json"))
    assert failure["error"] == "connection_lost"
    assert "does not answer" in failure["message"]
    assert "still waiting" in failure["message"]
    proxy.restore()
    done = alice.run("topic", "list")
    assert "an earlier create_topic that had got no answer is done" in done.stderr
    assert "topic news has a new key (epoch 1)" in done.stderr


def test_the_key_that_the_relay_showed_at_first_is_believed_and_no_other_from_then_on(
    alice: Person, relay: RunningRelay
) -> None:
    home = Home(alice.home)
    with home.entered():
        membership = home.membership()
        assert membership is not None
        assert membership.relay_pubkey == relay.ask("GET", "/").document["pubkey"]
        home.keep(msgspec.structs.replace(membership, relay_pubkey="ab" * 32))  # as if another relay were there now
    failure = json.loads(alice.fails(4, "topic", "create", "news", "--json"))
    assert failure["error"] == "other_relay"
    assert f"it shows the key {membership.relay_pubkey}" in failure["message"]
    with home.entered():
        home.keep(membership)
    assert alice.json("topic", "list") == []


def test_two_commands_at_once_in_one_home_take_turns(alice: Person) -> None:
    started = [alice.start("topic", "create", name) for name in ("a", "b", "c")]
    assert [process.wait(PATIENCE_S) for process in started] == [0, 0, 0]
    assert [topic["key_epoch"] for topic in alice.json("topic", "list")] == [1, 1, 1]


def test_a_home_that_was_refused_is_free_for_another_mesh(
    person: Callable[[str], Person], alice: Person, relay: RunningRelay
) -> None:
    bob = person("bob")
    assert "in use" in bob.fails(4, "mesh", "join", invitation_of(alice), "--as", "alice")
    bob.fails(3, "mesh", "show")
    assert not (bob.home / "home.json").exists()
    bob.run("mesh", "create", "My own", "--relay", relay.url)
    assert bob.json("mesh", "show")["name"] == "My own"


class _SomethingElse(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>a page</html>")

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - its name there
        pass


@pytest.fixture(scope="module")
def page() -> Iterator[str]:
    """A server that is no relay."""
    server = HTTPServer(("127.0.0.1", 0), _SomethingElse)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


FAILURES: dict[str, tuple[list[str], int, str]] = {
    "no mesh yet": (["NEW", "mesh", "show"], 3, "there is no home at"),
    "no mesh yet, JSON": (["NEW", "member", "list", "--json"], 3, "no_mesh"),
    "a second mesh": (["ALICE", "mesh", "create", "Another", "--relay", "RELAY"], 4, "a home has one mesh"),
    "a relay that is not there": (["NEW", "mesh", "create", "x", "--relay", "http://127.0.0.1:1"], 5, "refused"),
    "a relay without TLS": (["NEW", "mesh", "create", "x", "--relay", "TLS"], 5, "no connection (TLS: "),
    "a name that is not known": (["NEW", "mesh", "create", "x", "--relay", "http://relay.invalid"], 5, "not answer"),
    "a server that is no relay": (["NEW", "mesh", "create", "x", "--relay", "PAGE"], 5, "not a Holdfast relay's"),
    "no address": (["NEW", "mesh", "create", "x", "--relay", "relay"], 2, "not a relay's address"),
    "no relay named": (["NEW", "mesh", "create", "x"], 2, "Missing option"),
    "a mesh without a name": (["NEW", "mesh", "create", " ", "--relay", "RELAY"], 2, "a mesh's name has 1 to 64"),
    "a member without a name": (
        ["NEW", "mesh", "create", "x", "--relay", "RELAY", "--as", "a\nb"],
        2,
        "a member's name has 1 to 64",
    ),
    "no invitation": (["NEW", "mesh", "join", "please"], 2, "an invitation starts with"),
    "an invitation of nothing": (["NEW", "mesh", "join", "-"], 2, "there is nothing in it"),
    "an invitation with a typing error": (
        ["NEW", "mesh", "join", "TYPO"],
        2,
        "this invitation cannot be read: its checksum",
    ),
    "an invitation for no time": (["ALICE", "mesh", "invite", "--hours", "0"], 2, "greater than or equal to 1"),
    "an unknown role": (["ALICE", "mesh", "invite", "--role", "king"], 2, "king"),
    "no such member": (["ALICE", "member", "revoke", "zoe"], 3, "there is no member zoe"),
    "no such topic": (["ALICE", "topic", "subscribe", "nothing"], 3, "there is no topic nothing"),
    "no such topic to grant": (["ALICE", "topic", "grant", "nothing"], 3, "there is no topic nothing"),
    "no topic's name": (["ALICE", "topic", "create", "two words"], 2, "may only have letters"),
}


@pytest.fixture(scope="module")
def settled(relay: RunningRelay, tmp_path_factory: pytest.TempPathFactory) -> Person:
    """Somebody with a mesh to whom nothing happens."""
    return founder(Person(tmp_path_factory.mktemp("settled") / "alice"), relay.url)


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_one_clear_message_and_its_exit_code(
    person: Callable[[str], Person], settled: Person, relay: RunningRelay, page: str, name: str
) -> None:
    (who, *arguments), code, message = FAILURES[name]
    places = {"RELAY": relay.url, "PAGE": page, "TYPO": TYPO, "TLS": relay.url.replace("http:", "https:")}
    said = (settled if who == "ALICE" else person("new")).fails(code, *(places.get(word, word) for word in arguments))
    assert message in re.sub(r"[\s│╭╮╰╯─]+", " ", said)
    assert not (person("new").home / "home.json").exists()


def test_a_home_that_cannot_be_used_is_said_so(alice: Person) -> None:
    alice.home.chmod(0o755)
    assert "chmod 700" in alice.fails(1, "mesh", "show")
    alice.home.chmod(0o700)
    (alice.home / "member.key").write_text("nonsense")
    assert "nsec" in alice.fails(4, "mesh", "show")


def test_a_home_that_another_command_works_in_is_unavailable(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with (
        pytest.raises(Failure, match="works in this home") as raised,
        failures(home),
        home.entered(create=True),
        home.entered(wait_s=0),
    ):
        pass
    assert raised.value.code == ExitCode.UNAVAILABLE
