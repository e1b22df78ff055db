"""Secrets are planted, used rightly and wrongly, and then looked for in everything that was written and printed."""

import base64
import html
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from holdfast.device.invitation import read
from holdfast.protocol import keys
from tests.abuse.scene import Caller, Scene, answered, scene
from tests.cli.person import PATIENCE_S, Person, founder, invitation_of
from tests.console.town import Visitor, link, until
from tests.hook import receivers

BODY = "PLANTED-BODY-6f1d"
PROMPT = "PLANTED-PROMPT-77aa"
META = "PLANTED-META-90ce"
PASSPHRASE = "PLANTED passphrase 51b2"
PAGES_MAX = 150  # of one console
HOOK_SECRET = "whsec_" + base64.b64encode(b"PLANTED-webhook-secret-03!").decode()


@dataclass
class Traces:
    """What was written and printed, by where, and the secrets with the places in which they may lie."""

    seen: dict[str, bytes] = field(default_factory=dict)
    secrets: dict[str, tuple[bytes, set[str]]] = field(default_factory=dict)

    def plant(self, name: str, secret: str | bytes, *places: str) -> None:
        raw = secret.encode() if isinstance(secret, str) else secret
        self.secrets[name] = (raw, set(places))

    def plant_key(self, name: str, secret: bytes, *places: str) -> None:
        """A key in all spellings that somebody could print."""
        self.plant(f"{name}, as text", keys.nsec(secret), *places)
        self.plant(f"{name}, in hex", secret.hex())
        self.plant(f"{name}, in bytes", secret)
        self.plant(f"{name}, in base64", base64.b64encode(secret).rstrip(b"="))

    def files(self, *directories: Path) -> None:
        for directory in directories:
            for path in sorted(directory.rglob("*")):
                if path.is_file():
                    self.seen[f"{directory.name}/{path.name}"] = path.read_bytes()

    def found(self, name: str) -> list[str]:
        raw, places = self.secrets[name]
        return [where for where, content in self.seen.items() if raw in content and where not in places]


def _run(traces: Traces, who: Person, *words: str, said: str = "", **environment: str) -> None:
    """A command, whether it succeeds or fails; what it prints is kept, and what stands in the process list."""
    command = who.command(*words)
    done = subprocess.run(
        command,
        input=said,
        capture_output=True,
        text=True,
        env={**who.environment, **environment},
        timeout=PATIENCE_S,
    )
    traces.seen[" ".join(words)] = f"{command} {done.stdout} {done.stderr}".encode()


@pytest.fixture(scope="module")
def traces() -> Iterator[Traces]:
    with scene() as place:
        yield _lived(place)


def _lived(place: Scene) -> Traces:
    traces, ann = Traces(), place.home
    _plant(place, traces)
    _agents(ann)
    _wrongly(place, traces, ann)
    with ann.client() as client:
        client.send("home", BODY, client_message_id="planted", meta={"note": META})
        ann.until(lambda daemon: daemon.inbox().messages)
        for _ in range(5):
            client.fail(client.inbox().messages[0].id, "the handler failed")
    for event in ("SessionStart", "UserPromptSubmit", "Stop"):
        receivers.run(ann.home, "claude", {"session_id": "s", "hook_event_name": event, "cwd": "/", "prompt": PROMPT})
    until(lambda: receivers.rows(ann.home, "turns", "agent_session", "turns") == [1])
    backup = place.directory / "backup.sealed"
    _run(traces, ann, "daemon", "backup", str(backup), HOLDFAST_PASSPHRASE=PASSPHRASE)
    traces.seen["backup"] = backup.read_bytes()
    _run(traces, ann, "hook", "doctor")
    _run(traces, ann, "check", str(place.relay.data / "relay.db"))
    _told(place, traces)
    _shown(place, traces)
    traces.files(place.relay.data, place.home.home)
    for log in (place.relay.log_file, ann.home.with_suffix(".log")):
        traces.seen[log.name] = log.read_bytes()
    return traces


def _second_admin(place: Scene) -> Person:
    """Somebody else with a mesh, whose home no daemon has."""
    other = Person(place.directory / "other")
    return other if other.home.exists() else founder(other, place.relay.url)


def _plant(place: Scene, traces: Traces) -> None:
    home, data = place.home.home, place.relay.data
    traces.plant("local token", place.token, f"{home.name}/local-token")
    member = keys.read_nsec((home / "member.key").read_text().strip())
    traces.plant_key("member key", member, f"{home.name}/member.key")
    for name in ("relay", "operator"):
        secret = keys.read_nsec((data / f"{name}.key").read_text().strip())
        traces.plant_key(f"{name} key", secret, f"{data.name}/{name}.key")
    traces.plant("export token", place.tokens[Caller.CONSUMER])
    traces.plant("passphrase", PASSPHRASE)
    traces.plant("webhook's secret", HOOK_SECRET, f"{home.name}/agents.json")
    database = {f"{home.name}/device.db", f"{home.name}/device.db-wal"}
    traces.plant("body", BODY, *database)
    traces.plant("meta", META, *database)
    traces.plant("prompt", PROMPT, *(f"{home.name}/hooks.{end}" for end in ("db", "db-journal", "spool")))


def _agents(ann: Person) -> None:
    settings = {
        "webhooks": [{"name": "w", "url": "https://127.0.0.1:9/", "secret": HOOK_SECRET, "allow_private": True}]
    }
    path = ann.home / "agents.json"
    path.write_text(json.dumps(settings))
    path.chmod(0o600)


def _wrongly(place: Scene, traces: Traces, ann: Person) -> None:
    """What people do by mistake: a secret in the wrong place, a body in a bad request, an invitation that is no good."""
    token, export = place.token, place.tokens[Caller.CONSUMER]
    said = {
        "token in a URL": answered(place.port, "GET", f"/v1/health?token={token}"),
        "token that is nearly right": answered(
            place.port, "GET", "/v1/health", headers={"authorization": f"Bearer {token}x"}
        ),
        "export token in a URL": answered(place.relay.url, "GET", f"/v1/export/history?token={export}"),
        "export token as another's": answered(
            place.relay.url, "PUT", "/v1/consumers/x", b"{}", {"authorization": f"Bearer {export}"}
        ),
        "bad send": answered(place.socket, "POST", "/v1/send", json.dumps({"to": "home", "message": [BODY]}).encode()),
        "send to nobody": answered(place.socket, "POST", "/v1/send", json.dumps({"to": "x", "message": BODY}).encode()),
        "too large": answered(
            place.socket, "POST", "/v1/send", json.dumps({"to": "home", "message": BODY * 5_000}).encode()
        ),
        "secret key as an event": answered(
            place.relay.url, "POST", "/v1/messages", (ann.home / "member.key").read_bytes()
        ),
    }
    traces.seen |= {f"answer to {name}": answer.body for name, answer in said.items()}
    text = invitation_of(_second_admin(place))
    traces.plant("invitation", text)
    traces.plant_key("invitation's key", read(text).secret)
    mistyped = text[:-6] + ("A" if text[-6] != "A" else "B") + text[-5:]
    traces.plant("invitation, but for a letter", mistyped)
    nobody = Person(place.directory / "nobody")
    _run(traces, nobody, "mesh", "join", "-", said=mistyped)


def _told(place: Scene, traces: Traces) -> None:
    """What is told to those who watch, and what the lake is made of."""
    bearer = {"authorization": f"Bearer {place.tokens[Caller.CONSUMER]}"}
    for path in ("/metrics", "/openapi.json", "/"):
        traces.seen[f"relay {path}"] = answered(place.relay.url, "GET", path).body
    for table in ("history", "dedupe", "message", "delivery", "mention", "snapshot"):
        traces.seen[f"relay's {table}"] = answered(place.relay.url, "GET", f"/v1/export/{table}", headers=bearer).body
    for path in (
        "/v1/metrics",
        "/v1/health",
        "/v1/version",
        "/v1/reports",
        "/v1/peers",
        "/v1/outbox",
        "/v1/trace/planted",
    ):
        traces.seen[f"daemon {path}"] = answered(place.socket, "GET", path).body
    for table in ("history", "operation", "inbox", "hook_outbox"):
        traces.seen[f"daemon's {table}"] = answered(place.socket, "GET", f"/v1/export/{table}").body
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            traces.seen[str(process)] = process.read_bytes()
        except OSError:
            continue  # it has ended


def _shown(place: Scene, traces: Traces) -> None:
    """Every page of both consoles. What a home may read, its owner is shown."""
    operator = Visitor(place.relay.url).enter(link("--data", place.relay.data))
    owner_link = link(home=place.home.home)
    owner = Visitor(owner_link.partition("/console")[0]).enter(owner_link)
    for whose, visitor in (("relay", operator), ("home", owner)):
        for path, page in _pages(visitor):
            where = f"{whose}'s console {path}"
            traces.seen[where] = page
            if whose == "home":
                for name in ("body", "meta", "prompt"):
                    traces.secrets[name][1].add(where)


def _pages(visitor: Visitor) -> Iterator[tuple[str, bytes]]:
    """All that can be reached by following links."""
    known, waiting = {"/"}, ["/"]
    while waiting and len(known) < PAGES_MAX:
        path = waiting.pop(0)
        answer = visitor.ask("GET", path)
        yield path, answer.body
        links = re.findall(r'(?:href|hx-get)="/console(/[^"#]*)"', answer.body.decode("utf-8", "replace"))
        new = [one for one in map(html.unescape, links) if not one.startswith("/static") and one not in known]
        known.update(new)
        waiting += dict.fromkeys(new)


def test_what_was_planted_was_used(traces: Traces) -> None:
    """Whoever looks for something must be able to find it."""
    for name, where in (
        ("body", "home/device.db-wal"),
        ("prompt", "home/hooks.db"),
        ("local token", "home/local-token"),
    ):
        raw, _ = traces.secrets[name]
        assert raw in traces.seen[where], name
    assert len(traces.seen["relay's message"]) > 1_000
    assert b"planted" in traces.seen["daemon /v1/trace/planted"]
    assert b"token" in traces.seen["answer to token in a URL"]
    consoles = [name for name, page in traces.seen.items() if "'s console" in name and b"<html" in page]
    assert len([name for name in consoles if name.startswith("home")]) > 5
    assert len([name for name in consoles if name.startswith("relay")]) > 5
    assert any(BODY.encode() in traces.seen[name] for name in consoles)


SECRETS = [
    "local token",
    *(
        f"{whose} key, {how}"
        for whose in ("member", "relay", "operator", "invitation's")
        for how in ("as text", "in hex", "in bytes", "in base64")
    ),
    "export token",
    "invitation",
    "invitation, but for a letter",
    "passphrase",
    "webhook's secret",
    "body",
    "meta",
    "prompt",
]


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_lies_in_its_own_place_and_nowhere_else(traces: Traces, name: str) -> None:
    assert traces.found(name) == []


def test_everything_planted_is_looked_for(traces: Traces) -> None:
    assert set(traces.secrets) == set(SECRETS)
