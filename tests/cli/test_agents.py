"""`holdfast agents`: a session of every agent, from its hook command through a daemon and a relay to another machine's terminal.

One scene, played once: Ann's agents work, Ben watches a topic; a thousand tools are used in between.
"""

import base64
import itertools
import json
import sqlite3
import ssl
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast.cli import agents
from holdfast.device import arrivals
from holdfast.device.arrivals import Stored
from holdfast.hook import agent_sessions, database, doctor
from holdfast.hook.agent_sessions import AgentSession
from holdfast.hook.layout import DATABASE_NAME
from holdfast.hook.receiver import Call, receive
from holdfast.hook.webhook import signature
from holdfast.protocol.agent_event import AgentEvent, AgentKind
from holdfast.protocol.pacing import Pacing
from holdfast.protocol.payload import Payload
from holdfast.protocol.schedule import HOUR
from holdfast.store.world import wall_clock
from tests import people
from tests.cli.person import Person, founder, member_of
from tests.device.house import new_house
from tests.hook import receivers
from tests.hook.recorded import CODEX_SESSION, SESSIONS
from tests.relay.running import RunningRelay

TOPIC = "agents"
TOOLS = 1_000
SPEAKS_EVERY = 10
SCENE_S = 200.0  # for what must happen: a program is started for everything that an agent says
FOLLOWERS = 3  # a topic, a log and a program
BUSY = "the-busy-one"
PROGRAM = """#!/bin/sh
cat >> "$(dirname "$0")/../seen.jsonl"
"""

Event = dict[str, Any]


def claude_line(text: str) -> str:
    parts = [{"type": "text", "text": text}, {"type": "tool_use", "name": "Bash", "input": {}}]
    return json.dumps({"type": "assistant", "message": {"role": "assistant", "content": parts}}) + "\n"


def codex_line(text: str) -> str:
    payload = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    return json.dumps({"timestamp": "2026-11-15T10:00:00Z", "type": "response_item", "payload": payload}) + "\n"


class Town:
    """Ann, whose agents work here, and Ben, who watches."""

    def __init__(self, directory: Path, relay: RunningRelay) -> None:
        self.ann = founder(Person(directory / "ann"), relay.url)
        self.ben = member_of(Person(directory / "ben"), self.ann)
        self.user = directory / "user"
        self.directory = directory
        self.burst_s = 0.0  # from its first tool until it was all seen elsewhere
        self.watched: list[Event] = []
        self.here: list[Event] = []

    def fire(self, agent: str, payload: dict[str, Any]) -> None:
        assert receivers.run(self.ann.home, agent, payload, "--strict").stderr == b""

    def transcript(self, agent: str) -> Path:
        places = {
            "claude": ".claude/projects/kitchen/5f3c0e9a.jsonl",
            "codex": f".codex/sessions/2026/11/15/rollout-2026-11-15T10-00-00-{CODEX_SESSION}.jsonl",
            "gemini": ".gemini/tmp/1f/chats/session.json",
        }
        path = self.user / places[agent]
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def play(self, agent: str) -> None:
        """A recorded session; while it works, the agent writes down what it says."""
        path = self.transcript(agent)
        for recorded in SESSIONS[agent]:
            payload = dict(recorded.payload)
            if payload["transcript_path"] is not None:
                payload["transcript_path"] = str(path)
            if recorded.event_type == "agent_stop":
                self.write(agent, path)
            self.fire(agent, payload)

    def write(self, agent: str, path: Path) -> None:
        if agent == "claude":
            path.write_text(json.dumps({"type": "user", "message": {"content": "hm"}}) + "\n" + claude_line("I look."))
        elif agent == "codex":
            path.write_text(json.dumps({"type": "session_meta"}) + "\n" + codex_line("I list."))
        else:
            messages = [{"type": "user", "content": "What is here?"}, {"type": "gemini", "content": "I see."}]
            path.write_text(json.dumps({"sessionId": "x", "messages": messages}))

    def burst(self) -> None:
        """A thousand tools, and now and then the agent says something."""
        path = self.user / "busy.jsonl"
        common = {"session_id": BUSY, "transcript_path": str(path), "cwd": "/"}
        self.tell(common | {"hook_event_name": "SessionStart", "source": "startup"})
        self.tell(common | {"hook_event_name": "UserPromptSubmit", "prompt": "work"})
        with path.open("a") as file:
            for number in range(TOOLS):
                self.tell(common | {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_use_id": f"t{number}"})
                if number % SPEAKS_EVERY == 0:
                    file.write(claude_line(f"step {number}"))
                    file.flush()
        for number in range(3):
            self.tell(common | {"hook_event_name": "Notification", "message": f"notice {number}"})
        self.tell(common | {"hook_event_name": "Stop", "last_assistant_message": "All done."})

    def tell(self, payload: dict[str, Any]) -> None:
        """The receiver itself, without the start of a process for each of a thousand."""
        receive(Call(["--agent", "claude", "--home", str(self.ann.home), json.dumps(payload)]))

    def of(self, session: str, events: list[Event] | None = None) -> list[tuple[str, str]]:
        found = self.watched if events is None else events
        return [(event["kind"], event.get("text", "")) for event in found if event["session_id"] == session]


def lines(path: Path) -> list[Event]:
    """What a file has whole lines of; somebody may be writing the next one."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory, town_relay: RunningRelay) -> Iterator[Town]:
    scene = Town(tmp_path_factory.mktemp("agents"), town_relay)
    ann, ben = scene.ann, scene.ben
    (ann.home / "agents.json").write_text(json.dumps({"topics": [f"@{TOPIC}"], "log": True, "transcript_poll_s": 0.2}))
    (ann.home / "agent-handlers").mkdir(0o700)
    (ann.home / "agent-handlers" / "collect").write_text(PROGRAM)
    (ann.home / "agent-handlers" / "collect").chmod(0o700)
    ann.run("topic", "create", TOPIC)
    with pytest.MonkeyPatch.context() as world:
        world.setenv("HOME", str(scene.user))
        world.delenv("CODEX_HOME", raising=False)
        with ann.daemon(), ben.daemon():
            _until(lambda: len(_followers(ann.home)) == FOLLOWERS)  # whoever is new follows from when they are there
            ben.until_connected()
            ben.run("topic", "subscribe", TOPIC)
            ben.until(lambda client: all(topic.key == "ready" for topic in client.topics().topics))
            seen = scene.directory / "watched.jsonl"
            with seen.open("wb") as output:
                watching = subprocess.Popen(
                    ben.command("agents", "watch", "--topic", TOPIC, "--json", "--since", "2026-01-01"),
                    env=ben.environment,
                    stdout=output,
                )
            try:
                for agent in SESSIONS:
                    scene.play(agent)
                began = time.monotonic()
                scene.burst()
                _until(lambda: _is_all_done(seen))
                scene.burst_s = time.monotonic() - began
                for place in ("seen.jsonl", "agents.jsonl"):  # each follows at its own pace
                    _until(lambda place=place: _is_all_done(ann.home / place))
                scene.watched = lines(seen)
                scene.here = lines(ann.home / "agents.jsonl")
                yield scene
            finally:
                watching.terminate()
                watching.wait()


def _is_all_done(path: Path) -> bool:
    return any(event.get("text") == "All done." for event in lines(path))


def _until(condition: Any) -> None:
    give_up_at = time.monotonic() + SCENE_S
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.1)


FINALS = {
    "claude": [
        ("session_started", "startup"),
        ("prompt", "Make the tests pass, alle, bitte 🙂"),
        ("notification", "Bash"),
        ("error", "a rule says no"),
        ("notification", "Claude is waiting for your input"),
        ("turn_completed", "Done."),
        ("error", "429"),
    ],
    "codex": [
        ("session_started", "startup"),
        ("prompt", "List the files"),
        ("notification", "Bash"),
        ("turn_completed", "Two files."),
    ],
    "gemini": [
        ("session_started", "startup"),
        ("prompt", "What is here?"),
        ("error", "denied"),
        ("notification", "May I?"),
        ("turn_completed", "Two files."),
    ],
}
SAID = {"claude": "I look.", "codex": "I list.", "gemini": "I see."}


@pytest.mark.parametrize("agent", SESSIONS)
def test_a_session_is_seen_on_another_machine_as_it_happened(agent: str, town: Town) -> None:
    session = SESSIONS[agent][0].payload["session_id"]
    assert [event for event in town.of(session) if event[0] != "output"] == FINALS[agent]
    assert {event["sender"] for event in town.watched} == {"ann"}
    everything = town.of(session, town.here)
    assert [event for event in everything if event[0] != "output"] == FINALS[agent]
    # What it said in the turn is told before the turn is complete.
    completed = ("turn_completed", dict(FINALS[agent])["turn_completed"])
    assert everything.index(("output", SAID[agent])) < everything.index(completed)


def test_a_thousand_tools_yield_few_outputs_and_all_that_is_final(town: Town) -> None:
    seen = town.of(BUSY)
    outputs = [event for event in seen if event[0] == "output"]
    assert len(outputs) <= 2 + town.burst_s / Pacing().session_tick_s
    assert [event for event in seen if event[0] != "output"] == [
        ("session_started", "startup"),
        ("prompt", "work"),
        ("notification", "notice 0"),
        ("notification", "notice 1"),
        ("notification", "notice 2"),
        ("turn_completed", "All done."),
    ]
    # Where nothing is held back, each word is there once, in order.
    said = [text for kind, text in town.of(BUSY, town.here) if kind == "output"]
    assert said == [f"step {number}" for number in range(0, TOOLS, SPEAKS_EVERY)]


def test_every_event_is_seen_once_under_its_id(town: Town) -> None:
    for events in (town.watched, town.here):
        ids = [event["id"] for event in events]
        assert len(ids) == len(set(ids))
    assert {event["id"] for event in town.watched} <= {event["id"] for event in town.here}


def test_a_program_of_ones_own_gets_everything_and_its_runs_are_written_down(town: Town) -> None:
    audit = lines(town.ann.home / "agent-handlers.jsonl")
    assert [run for run in audit if (run["program"], run["code"]) != ("collect", 0)] == []  # else it is run once more
    seen = lines(town.ann.home / "seen.jsonl")
    assert [event["id"] for event in seen] == [event["id"] for event in town.here][: len(seen)]
    assert [run["id"] for run in audit][: len(seen)] == [event["id"] for event in seen][: len(audit)]


def test_sessions_are_listed_and_shown(town: Town) -> None:
    listed = {one["session_id"]: one for one in town.ann.json("agents", "list")}
    assert {name: one["state"] for name, one in listed.items()} == {
        SESSIONS["claude"][0].payload["session_id"]: "idle",
        SESSIONS["codex"][0].payload["session_id"]: "idle",
        SESSIONS["gemini"][0].payload["session_id"]: "idle",
        BUSY: "idle",
    }
    busy = town.ann.json("agents", "show", BUSY[:7])
    assert (busy["prompt"], busy["message"], busy["notification"]) == ("work", "All done.", "notice 2")
    assert (busy["turns"], busy["tool"]) == (1, "Bash")
    assert busy["events"][-1]["kind"] == "turn_completed"
    assert "All done." in town.ann.says("agents", "list")
    assert "turn_completed" in town.ann.says("agents", "show", BUSY)
    assert "no session" in town.ann.fails(3, "agents", "show", "nobody")
    adapters = {one["name"]: one for one in town.ann.json("agents", "adapters")}
    assert set(adapters) == {"topic:@agents", "log", "program:collect"}
    assert adapters["topic:@agents"]["given_up"] == 0


def test_nothing_that_somebody_else_tells_moves_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    wild = "\x1b[2J\r"
    event = AgentEvent(id=wild, kind=AgentKind.PROMPT, agent=wild, session_id=wild, at=10**30, text=wild, cwd=wild)
    agents._print_event(event, as_json=False, sender=wild)
    assert capsys.readouterr().out.removesuffix("\n").isprintable()


def test_whoever_watches_goes_on_when_the_database_was_locked_for_long(tmp_path: Path) -> None:
    person = Person(tmp_path / "home")

    def tell(name: str, text: str) -> None:
        event = AgentEvent(id=name, kind=AgentKind.PROMPT, agent="claude", session_id="s", at=1, text=text)
        with engine.write() as transaction:
            agent_sessions.tell(transaction, event, 1)

    names = itertools.count()

    def has_told_something() -> bool:
        """It tells what comes from now on, and nobody else knows when that is."""
        tell(f"{next(names)}", "at first")
        return bool(lines(tmp_path / "seen")) or watching.poll() is not None

    engine = database.opened(_made(person.home) / DATABASE_NAME, wall_clock)
    with (tmp_path / "seen").open("wb") as output, (tmp_path / "errors").open("wb") as errors:
        watching = subprocess.Popen(
            person.command("agents", "watch", "--json"), env=person.environment, stdout=output, stderr=errors
        )
    try:
        _until(has_told_something)
        other = sqlite3.connect(person.home / DATABASE_NAME, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        time.sleep(3 * database.BUSY_TIMEOUT_S)  # longer than anybody waits
        other.execute("COMMIT")
        other.close()
        tell("last", "still here")
        _until(lambda: lines(tmp_path / "seen")[-1]["id"] == "last" or watching.poll() is not None)
    finally:
        watching.terminate()
        watching.wait()
        engine.close()
    *before, last = (one["text"] for one in lines(tmp_path / "seen"))
    assert (set(before), last) == ({"at first"}, "still here")
    assert (tmp_path / "errors").read_text() == ""


def test_what_is_told_in_a_topic_is_seen_as_often_as_it_came_and_when_it_can_be_read(tmp_path: Path) -> None:
    """Whoever takes the id of another's report hides nothing by that."""
    with new_house(tmp_path / "home") as house:
        ben = Person(tmp_path / "home")

        def body(text: str, name: str) -> bytes:
            report = {"id": name, "kind": "prompt", "agent": "claude", "session_id": "s", "at": 1, "text": text}
            return json.dumps(report).encode()

        def arrive(sender: people.Person, text: str, name: str = "one", *, is_readable: bool = True) -> Stored:
            content = body(text, name)
            event = sender.post("news", content)
            return house.store(house.arrival(event, body=content if is_readable else None))[0]

        sealed = arrive(house.bob, "sealed", is_readable=False)
        arrive(house.bob, "first")
        command = ben.command("agents", "watch", "--topic", "news", "--since", "-1h", "--json")
        watching = subprocess.Popen(command, env=ben.environment, stdout=subprocess.PIPE, text=True)
        assert watching.stdout is not None
        try:
            seen = [json.loads(watching.stdout.readline())["text"]]
            arrive(house.carol, "under the same id")
            opened = [(str(sealed.id), Payload(body=body("sealed", "two")))]
            house.do(lambda tx: arrivals.reopen(tx, house.facts, house.now, opened))
            for last in (
                "last",
                "very last",
            ):  # the first may be read with the one before it, and overtake what is opened
                arrive(house.bob, last, last)
                while seen[-1] != last:
                    seen.append(json.loads(watching.stdout.readline())["text"])
        finally:
            watching.kill()
            watching.wait()
            watching.stdout.close()
    assert sorted(seen) == sorted(["first", "under the same id", "sealed", "last", "very last"])


def test_a_list_that_leaves_something_out_says_so_and_looks_for_one_agent_among_all(tmp_path: Path) -> None:
    person = Person(_made(tmp_path / "home"))
    engine = database.opened(person.home / DATABASE_NAME, wall_clock)
    now = wall_clock()
    with engine.write() as transaction:
        for number in range(agents.SESSIONS_MAX + 1):
            agent = "claude" if number else "gemini"
            session = AgentSession(agent=agent, session_id=str(number), last_event_at=now - HOUR + number)
            agent_sessions.keep(transaction, session)
    engine.close()
    done = person.run("agents", "list", "--json")
    assert [one["session_id"] for one in json.loads(done.stdout)][:: agents.SESSIONS_MAX - 1] == ["500", "1"]
    assert "only the latest 500 are shown" in json.loads(done.stderr)["note"]
    done = person.run("agents", "list", "--json", "--agent", "gemini")
    assert ([one["session_id"] for one in json.loads(done.stdout)], done.stderr) == (["0"], "")


@pytest.mark.parametrize("days", ["inf", "nan", "1e300", "-1"])
def test_days_that_no_calendar_has_are_refused(tmp_path: Path, days: str) -> None:
    assert "Invalid value for '--days'" in Person(_made(tmp_path / "home")).fails(2, "agents", "list", "--days", days)


def _made(directory: Path) -> Path:
    directory.mkdir(0o700)
    return directory


KILLS = 3
TURNS = 20  # between two of them


def test_a_daemon_that_is_killed_again_and_again_loses_nothing_that_is_final(ann: Person) -> None:
    (ann.home / "agents.json").write_text(json.dumps({"topics": [f"@{TOPIC}"], "log": True}))
    log = ann.home / "agents.jsonl"
    ann.run("topic", "create", TOPIC)
    expected = []
    for kill in range(KILLS + 1):
        with ann.daemon() as process:
            if kill == 0:  # whoever is new follows from when they are there
                _until(lambda: len(_followers(ann.home)) == 2)
            for number in range(TURNS):
                payload = {"session_id": "s", "hook_event_name": "Stop", "last_assistant_message": f"{kill}.{number}"}
                receive(Call(["--agent", "claude", "--home", str(ann.home), json.dumps(payload | {"cwd": "/"})]))
                expected.append(f"{kill}.{number}")
            if kill < KILLS:
                some = kill * TURNS + 3
                _until(lambda some=some: len({one["text"] for one in lines(log)}) > some)
                process.kill()
                process.wait()
            else:
                _until(lambda: len({one["text"] for one in lines(log)}) == len(expected))
                sent = ann.until(lambda client: _posted(client, len(expected)))
    assert list(dict.fromkeys(one["text"] for one in lines(log))) == expected
    assert sent == list(dict.fromkeys(one["id"] for one in lines(log)))  # each once


def _followers(home: Path) -> list[Event]:
    found: list[Event] = doctor.look(home, agent_sessions.followers) if doctor.is_used(home) else []
    return found


def _posted(client: Any, number: int) -> list[str]:
    """What is in the outbox, in the order in which it is sent; nothing while it is not all."""
    names = [row.client_message_id.split("-") for row in client.outbox(limit=500).items]
    ids = [name[1] for name in names if name[0] == "agent"]
    return ids if len(ids) == number else []


SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Office(ThreadingHTTPServer):
    """A site with a certificate of its own, which is out of order at first."""

    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), Desk)
        self.trusted = directory / "certificate.pem"
        self.asked: list[tuple[dict[str, str], bytes, int]] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(_certificate(self.trusted))
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Somebody who does not trust the certificate hangs up."""


class Desk(BaseHTTPRequestHandler):
    server: Office

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        status = 204 if self.server.asked else 503
        self.server.asked.append(({name.lower(): value for name, value in self.headers.items()}, body, status))
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


def _certificate(path: Path) -> Path:
    """A certificate for localhost that vouches for itself, with its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return path


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    with Office(tmp_path) as made:
        monkeypatch.setenv("SSL_CERT_FILE", str(made.trusted))
        serving = Thread(target=made.serve_forever)
        serving.start()
        yield made
        made.shutdown()
        serving.join()


def test_a_webhook_is_told_by_the_daemon_over_tls_and_nobody_else_is(ann: Person, office: Office) -> None:
    """Out of order at first; and neither a name that the certificate does not have nor a private address is told."""
    port = office.server_address[1]
    common = {"secret": SECRET, "allow_private": True}
    webhooks = [
        common | {"name": "office", "url": f"https://localhost:{port}/x"},
        common | {"name": "stranger", "url": f"https://127.0.0.1:{port}/stranger"},
        common | {"name": "private", "url": f"https://localhost:{port}/private", "allow_private": False},
    ]
    (ann.home / "agents.json").write_text(json.dumps({"webhooks": webhooks}))
    (ann.home / "agents.json").chmod(0o600)
    words = ["one", "two"]
    with ann.daemon():
        ann.until(lambda _: len(_followers(ann.home)) == 3)
        for word in words:
            payload = {"session_id": "s", "hook_event_name": "Stop", "last_assistant_message": word, "cwd": "/"}
            receive(Call(["--agent", "claude", "--home", str(ann.home), json.dumps(payload)]))
        _until(lambda: len(office.asked) == 3)
        ann.until(lambda _: all(one["delivered"] == 2 or one["last_error"] for one in _followers(ann.home)))
    told = [(json.loads(body)["data"]["text"], status) for _, body, status in office.asked]
    assert told == [("one", 503), ("one", 204), ("two", 204)]
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    for headers, body, _ in office.asked:
        event_id, at = headers["webhook-id"], int(headers["webhook-timestamp"])
        assert event_id == json.loads(body)["data"]["id"]
        assert headers["webhook-signature"] == signature(key, event_id, at, body)
    errors = {one["name"]: one["last_error"] for one in _followers(ann.home)}
    assert "503" in errors["webhook:office"]
    assert "certificate" in errors["webhook:stranger"].lower()
    assert "allow_private is not set" in errors["webhook:private"]
    (ann.home / "agents.json").write_text(json.dumps({"webhooks": webhooks[:2]}))
    named = {one["name"]: one["is_named"] for one in ann.json("agents", "adapters")}
    assert named == {"webhook:office": True, "webhook:stranger": True, "webhook:private": False}
    assert ann.says("agents", "adapters").count("webhook:private (no longer named)") == 1
    assert SECRET.removeprefix("whsec_") not in ann.home.with_suffix(".log").read_text()
