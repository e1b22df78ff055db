"""What a command says that cannot do as it was told, and the exit code that goes with it: of a daemon, a home, a relay."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.failures import refusal
from holdfast.protocol.keys import nsec
from holdfast.protocol.refusal import Refusal
from tests.cli.person import Person
from tests.device.house import House, new_house

PAST = "2020-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A daemon with nobody to talk to."""
    with new_house(tmp_path_factory.mktemp("house") / "home") as found:
        yield found


@pytest.fixture
def me(house: House) -> Person:
    return Person(house.device.home.path)


WRONG: dict[str, tuple[list[str], int, str]] = {
    "an object id that is none": (["send", "bob", "x", "--object-id", "zz"], 2, "object_id has 2 characters"),
    "an id with a space": (["send", "bob", "x", "--id", 'a b"'], 2, "client_message_id"),
    "an end that has passed": (["send", "bob", "x", "--expires", PAST], 2, "2020-01-01T00:00:00.000Z has passed.\n"),
    "a time that is too far ahead": (["send", "bob", "x", "--at", "+999d"], 2, "Z is more than 366 days ahead.\n"),
    "a body that is too large": (["send", "bob", "x" * 100_000], 2, "at most 40000 allowed. Send less at once: "),
    "a status that there is not": (
        ["outbox", "list", "--status", "foo"],
        2,
        "write all, or some of scheduled, pending, inflight, done, dead, aborted with commas between them.\n",
    ),
    "a status beside all": (["outbox", "list", "--status", "all,dead"], 2, "write all, or some of"),
    "a relay's address that is none": (["feed", "relay", "nourl"], 2, "nourl"),
    "a time that is none": (["inbox", "--since", "yesterday"], 2, "write 2026-11-15T09:30:00Z, or -10m.\n"),
    "a time to come": (["inbox", "--since", "+10m"], 2, "or -10m.\n"),
    "nobody's messages": (["inbox", "--from", "nobody"], 3, "no member is called 'nobody'. The mesh has no such"),
    "a topic that there is not": (["inbox", "--topic", "nosuch"], 3, "'nosuch'. The mesh has no such member or topic."),
    "an id that nothing has": (["trace", "nosuch"], 3, "nothing was sent or received here under 'nosuch'.\n"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_a_daemon_refuses_has_the_exit_code_of_its_kind_and_one_remedy_at_most(me: Person, name: str) -> None:
    words, code, message = WRONG[name]
    said = me.fails(code, *words)
    assert message in said
    assert ".." not in said.replace("…", "")
    assert "Correct what the detail names" not in said


TOLD: dict[str, str] = {
    "no member is called 'x'": "no member is called 'x'. The mesh has no such member or topic. Check the name, or create the topic.",
    "2 members are called 'x'; name one by its key": "2 members are called 'x'; name one by its key.",
    "There is another x. Did you mean that?": "There is another x. Did you mean that?",
    "": "destination_unknown. The mesh has no such member or topic. Check the name, or create the topic.",
}


@pytest.mark.parametrize("detail", TOLD)
def test_what_is_said_of_a_refusal_in_general_is_said_where_the_detail_has_no_remedy(detail: str) -> None:
    assert str(refusal(Refusal.DESTINATION_UNKNOWN, detail)) == TOLD[detail]


@pytest.mark.parametrize("ago", ["-10m", "10m"])
def test_messages_are_asked_for_since_a_while_ago(house: House, me: Person, ago: str) -> None:
    house.store(house.arrival(house.bob.message(house.me, ago.encode()), body=ago.encode()))
    assert me.json("inbox", "--since", ago)["messages"][-1]["body"] == ago
    assert me.json("inbox", "--since", "0s", "--topic", "@news")["messages"] == []


def test_settings_that_are_not_good_say_what_is_meant_once(house: House, me: Person) -> None:
    path = me.home / "daemon.toml"
    try:
        for text, end in (("log_levl = 1", "Did you mean log_level?\n"), ("log_level =", "Correct it there.\n")):
            path.write_text(text)
            assert me.fails(2, "daemon", "run").endswith(end)
    finally:
        path.unlink()


def test_the_trace_of_what_the_relay_has_not_says_that_it_waits_and_why(house: House, me: Person) -> None:
    me.run("send", "bob", "x", "--id", "waiting")
    said = me.says("trace", "waiting")
    assert "waits: the relay http://127.0.0.1:9 is not in reach (" in said
    assert "at bob" not in said


def test_a_relay_that_is_away_is_named_once_and_with_the_reason(house: House, me: Person) -> None:
    said = me.fails(5, "mesh", "invite")
    assert said.count("127.0.0.1:9") == 1, said
    assert said.count("the relay") == 1, said
    assert "no connection (" in said


def test_an_id_that_a_requeue_retired_says_under_which_one_the_message_goes_on(house: House, me: Person) -> None:
    me.run("send", "bob", "x", "--id", "old")
    me.run("outbox", "requeue", "old", "--new-client-id", "new", "--force")
    said = me.fails(4, "send", "bob", "x", "--id", "old")
    assert said.endswith("client_message_id 'old' was retired by a requeue: the message goes on as new.\n")
    assert "belongs to an earlier request. " in me.fails(4, "send", "bob", "another", "--id", "old")
    again = me.fails(4, "outbox", "requeue", "old", "--new-client-id", "other")
    assert "is aborted. It was requeued before" in again


def test_one_and_none_are_said_as_such(house: House, me: Person) -> None:
    me.run("feed", "init")
    me.run("feed", "put", "list", "milk")
    assert "\n1 document, 0 in conflict" in me.says("feed", "status")
    assert "\nevents: none\n" in me.says("hook", "status")


IN_NO_HOME: tuple[list[str], ...] = (
    ["send", "bob", "x"],
    ["inbox"],
    ["outbox", "list"],
    ["feed", "status"],
    ["daemon", "status"],
    ["daemon", "down"],
    ["daemon", "recover"],
    ["daemon", "rotate-token"],
    ["daemon", "reload"],
    ["console"],
    ["agents", "list"],
    ["agents", "adapters"],
    ["agents", "watch"],
    ["agents", "watch", "--topic", "x"],
    ["hook", "status"],
)


@pytest.mark.parametrize("words", IN_NO_HOME, ids=" ".join)
def test_where_there_is_no_home_every_command_says_so(tmp_path: Path, words: list[str]) -> None:
    nobody = Person(tmp_path / "none")
    assert f"there is no home at {nobody.home}." in nobody.fails(3, *words)
    assert not nobody.home.exists()


def test_agents_are_watched_in_the_home_that_is_named(me: Person, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert f"there is no home at {other}." in me.fails(3, "agents", "watch", "--topic", "x", "--home", other)


WITHOUT_DATA: tuple[list[str], ...] = (
    ["relay", "stats"],
    ["relay", "queues"],
    ["relay", "token"],
    ["relay", "backup", "TARGET"],
    ["relay", "moderate", "x"],
    ["console"],
)


@pytest.mark.parametrize("words", WITHOUT_DATA, ids=" ".join)
def test_where_there_is_no_relay_every_command_of_its_operator_says_so(tmp_path: Path, words: list[str]) -> None:
    nobody, data = Person(tmp_path / "none"), tmp_path / "nothing"
    given = [str(tmp_path / "target") if word == "TARGET" else word for word in words]
    assert f"there is no relay's data at {data}." in nobody.fails(3, *given, "--data", data)
    assert json.loads(nobody.fails(3, *given, "--data", data, "--json"))["error"] == "no_relay_data"


def test_a_console_that_cannot_be_meant_is_refused_in_one_line(tmp_path: Path) -> None:
    nobody, key = Person(tmp_path / "none"), tmp_path / "key"
    key.write_text(nsec(bytes(31) + b"\x01"))
    key.chmod(0o600)
    said = nobody.fails(2, "console", "--relay", "garbage", "--key", key)
    assert said == "holdfast: 'garbage' is not a relay's address; it looks like http://127.0.0.1:7447.\n"
    assert "--key goes with --relay or --data" in nobody.fails(2, "console", "--key", key)


def test_a_database_server_that_is_away_is_unavailable(tmp_path: Path) -> None:
    nobody = Person(tmp_path / "none")
    store = "postgresql://nobody@127.0.0.1:1/none"
    assert "cannot be reached" in nobody.fails(5, "check", store)


def test_whoever_names_a_directory_to_check_is_told_of_the_databases_in_it(me: Person) -> None:
    said = me.fails(2, "check", me.home)
    assert said == f"holdfast: {me.home} is a directory. Name a database in it: device.db.\n"
