"""Every reader of what somebody else wrote: what it is given, and the only ways in which it may say no. As data."""

import hashlib
import io
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import apsw
import msgspec
import pyarrow as pa  # type: ignore[import-untyped]

from holdfast.device import administration as device_administration
from holdfast.device import holder, invitation, ipc_queries, member_keys, sealed_file, send
from holdfast.device import settings as device_settings
from holdfast.device.home import Home
from holdfast.export import exchange, exporter
from holdfast.hook import agent_settings, json_text, plain_json, receiver, spool
from holdfast.pipeline import pages
from holdfast.protocol import event, feed_filter, http_auth, keys, payload, sealing, transcript
from holdfast.protocol.refusal import Refused
from holdfast.relay import offer, session, token
from holdfast.relay import settings as relay_settings
from holdfast.store import faults, notes, wal
from holdfast.store.settings import SettingsInvalid
from holdfast.wire import client, feed_frames, queue_frames, route
from holdfast.wire.request import read_document
from tests.people import Person, conversation_key, secret_of
from tests.relay.feed_client import Author

Run = Callable[[bytes, Path], object]


@dataclass(frozen=True)
class Decoder:
    """What reads, from which good inputs the bad ones are made, and what it may raise."""

    run: Run
    seeds: Sequence[bytes]
    refusals: tuple[type[Exception], ...] = (Refused,)
    share: float = 1.0  # of the executions of every day: those that touch a disk are slower
    found: Sequence[bytes] = ()  # what once came to something else than a value or a no


ann, bob = Person("ann"), Person("bob")
KEY = conversation_key(ann.secret, bob.key)
MESSAGE, POST = ann.message(bob, reply_to="x", mentions=("a", "b")), ann.post("news")
RECEIPT, SNAPSHOT = bob.receipt(ann, MESSAGE.id), Author("author").snapshot(clock={"A": 1, "B": 7}, c="note")
ADMINISTRATION = [
    ann.found_mesh(),
    ann.invite(secret_of("i")),
    ann.rotate(secret_of("n")),
    ann.grant("news", 1, (bob,)),
]
EVENTS = [event.encode(one) for one in (MESSAGE, POST, RECEIPT, SNAPSHOT, *ADMINISTRATION)]
PAYLOAD = payload.encode(payload.Payload(body=b"hello", meta=b'{"a":1}', previous_sequence=7))
AUTH = http_auth.authorization(ann.secret, "http://x/", "GET", b"", 1_800_000_000, bytes(16), bytes(32))
INVITATION = invitation.write(
    invitation.Invitation(relay="http://127.0.0.1:7447", mesh="m", mesh_name="M", secret=secret_of("i"))
)
HOOK = {"session_id": "s", "hook_event_name": "PreToolUse", "cwd": "/", "tool_use_id": "t", "tool_input": {"a": [1]}}
FACTS = {"was_stored": True, "message_id": "m", "sender": "s", "accepted_at": 1}


def _json(*documents: Any) -> list[bytes]:
    return [json.dumps(one, separators=(",", ":")).encode() for one in documents]


def _text(run: Callable[[str], object]) -> Run:
    """A reader of text, which a terminal or a file brings: not all of it need be UTF-8."""
    return lambda raw, _: run(raw.decode("utf-8", "surrogateescape"))


def _file(name: str, run: Callable[[Path], object]) -> Run:
    """A reader of a file in a directory, which only its owner can open."""

    def read(raw: bytes, place: Path) -> object:
        path = place / name
        path.write_bytes(raw)
        path.chmod(0o600)
        return run(path)

    return read


def quick_keys(passphrase: str, header: sealed_file.Header) -> tuple[bytes, bytes]:
    """The keys of a sealed file without the work that makes them dear."""
    derived = hashlib.sha512(passphrase.encode() + msgspec.json.encode(header)).digest()
    return derived[:32], derived[32:]


def _backup(raw: bytes, _: Path) -> object:
    with patch.object(sealed_file, "_keys", quick_keys):
        return b"".join(sealed_file.read(io.BytesIO(raw), "a passphrase", "file"))


def _sealed_backup() -> bytes:
    made = io.BytesIO()
    with patch.object(sealed_file, "_keys", quick_keys):
        sealed_file.write(made, "a passphrase", bytes, [b"content" * 20_000])
    return made.getvalue()


def _page(raw: bytes, _: Path) -> object:
    headers = Message()
    for name in ("As-Of-Seq", "Until", "Next-After", "Rows"):
        headers[f"Holdfast-{name}"] = "3"
    headers["Holdfast-Log-Id"] = "00" * 16
    page = pages._page(pages.Place(url="http://x"), SimpleNamespace(headers=headers), raw)  # type: ignore[arg-type]
    return [batch.to_pylist() for batch in page.batches]


def _arrow() -> bytes:
    sink = io.BytesIO()
    batch = pa.record_batch({"seq": [1, 2, 3], "kind": ["a", "b", None], "detail": [b"", b"x", None]})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _journal() -> bytes:
    """What a program that was killed leaves behind a database of two pages."""
    with tempfile.TemporaryDirectory() as place:
        writer = apsw.Connection(f"{place}/file")
        list(writer.execute("PRAGMA page_size=512; PRAGMA journal_mode=WAL; CREATE TABLE note (text TEXT)"))
        for number in range(3):
            writer.execute("INSERT INTO note VALUES (?)", (f"number {number}",))
        left = Path(f"{place}/file-wal").read_bytes()
        writer.close()
    return left


def _hook(raw: bytes, place: Path) -> object:
    return receiver._read(raw)


def _spool(raw: bytes, _: Path) -> object:
    return spool.parse(raw)


def _answers(shape: type[Any]) -> Run:
    return lambda raw, _: client._read(raw, shape, "http://x")


_READ = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # what whoever calls it is prepared for

DECODERS: Mapping[str, Decoder] = {
    "event": Decoder(lambda raw, _: event.decode(raw), EVENTS),
    "envelope, receipt, administration, snapshot": Decoder(lambda raw, _: offer.read(raw), EVENTS),
    "frame to the relay": Decoder(
        lambda raw, _: session.read_frame(raw.decode("utf-8", "replace").encode()),  # a frame is text
        _json(
            ["EVENT", json.loads(EVENTS[0])],
            ["AUTH", json.loads(EVENTS[0])],
            ["QUEUE", "q", {"mesh": "m", "epoch": "00" * 16, "replay": True}],
            ["QUEUE", "q", "ACK", [1, 2]],
            ["CHANGES", "s", {"mode": "tail"}],
            ["REQ", "s", {"ids": ["00" * 32]}, {"limit": 1}],
            ["CLOSE", "s"],
            ["FEATURES", {"require": {"a": 1}}],
            ["COUNT", "s", {}],
        ),
        (),
    ),
    "filter of CHANGES": Decoder(
        lambda raw, _: feed_filter.read_changes(raw),
        _json({"mode": "tail", "kinds": [42061], "authors": [ann.key], "since": 3, "until_seq": 9, "#d": ["x"]}),
    ),
    "filter of REQ": Decoder(
        lambda raw, _: feed_filter.read_wanted(raw),
        _json({"ids": ["00" * 32], "authors": [ann.key], "kinds": [42061], "since": 1, "limit": 5, "#o": ["put"]}),
    ),
    "frame of a queue": Decoder(
        lambda raw, _: queue_frames.read(raw),
        _json(
            ["QUEUE", "q", "STATUS", {"pending_count": 1, "log_id": "00" * 16, "seq": 3, "forks": []}],
            ["QUEUE", "q", "MSG", 3, FACTS, json.loads(EVENTS[0])],
            ["QUEUE", "q", "LIVE", 3],
            ["QUEUE", "q", "ACKED", [3]],
        ),
        _READ,
    ),
    "frame of the feed": Decoder(
        lambda raw, _: feed_frames.read(raw),
        _json(
            ["CHANGES", "s", "STATUS", {"snapshot_seq": 3}],
            ["CHANGES", "s", "EVENT", 3, json.loads(EVENTS[3])],
            ["CHANGES", "s", "SNAPSHOT", json.loads(EVENTS[3])],
            ["CHANGES", "s", "EOSE", 3],
            ["EVENT-STATUS", "s", {"id": "00" * 32, "status": "compacted", "seq": 3}],
            ["CLOSED", "s", "x"],
        ),
        _READ,
    ),
    "sealed payload": Decoder(_text(lambda text: sealing.open_sealed(KEY, text)), [MESSAGE.content.encode()]),
    "payload": Decoder(lambda raw, _: payload.decode(raw), [PAYLOAD]),
    "signed request": Decoder(
        _text(lambda text: http_auth.read(text, "GET", {"http://x/"}, b"")), [AUTH.removeprefix("Nostr ").encode()]
    ),
    "export token": Decoder(
        _text(lambda text: token.verify(text, ann.key, 0)), [token.mint(ann.secret, "lake", 10**15, bytes(32)).encode()]
    ),
    "query of a URL": Decoder(lambda raw, _: route.read_query(raw), [b"after=1&until=2&columns=a,b", b"x="]),
    "query of an export": Decoder(
        lambda raw, _: exporter.read_query("history", {"after": raw.decode("latin-1")}),
        [b"7", b"123456789"],
    ),
    "query of an inbox": Decoder(
        lambda raw, _: ipc_queries.read({"limit": raw.decode("latin-1")}, ipc_queries.InboxQuery), [b"7"]
    ),
    "a time": Decoder(
        _text(ipc_queries.read_time),
        [b"1800000000000000", b"2026-11-16T04:00:00Z", b"2026-11-16T04:00:00.5+02:00"],
        found=[b"9" * 5_000, b"0001-01-01T00:00:00+23:59"],
    ),
    "send": Decoder(
        lambda raw, _: send.prepare(read_document(raw, send.Send)),
        _json({"to": "bob", "message": "x", "meta": {"a": [1, {"b": 2}]}, "mentions": ["a"], "priority": "now"}),
    ),
    "arguments of administration": Decoder(
        lambda raw, _: device_administration.read_arguments("invite", raw), _json({"role": "member", "expires_at": 1})
    ),
    "yes of a relay": Decoder(
        _answers(client.Yes),
        _json(
            {
                "broker_message_id": "m",
                "client_message_id": "c",
                "history_id": 3,
                "log_id": "00" * 16,
                "duplicate": False,
                "skipped": [],
                "anchor": {"log_id": "00" * 16, "seq": 3, "chain": "00" * 32, "sig": "00" * 64},
            }
        ),
        (client.Unreachable,),
    ),
    "mesh of a relay": Decoder(
        _answers(client.Mesh),
        _json(
            {
                "mesh": "m",
                "name": "M",
                "members": [
                    {"member": "a", "pubkey": ann.key, "name": "ann", "role": "admin", "status": "active", "keys": []}
                ],
                "topics": [{"topic": "t", "key_epoch": 1, "created_by": "a", "subscribers": [], "left": []}],
            }
        ),
        (client.Unreachable,),
        found=[b'{"x":' * 100_000],
    ),
    "no of a relay": Decoder(
        lambda raw, _: client._said(raw, "http://x", client.Yes),
        _json({"status": 429, "type": "urn:holdfast:refusal:queue_full", "code": "queue_full", "detail": "x"}),
        (),
    ),
    "invitation": Decoder(_text(invitation.read), [INVITATION.encode()], (invitation.InvalidInvitation,)),
    "npub": Decoder(_text(keys.read_npub), [keys.npub(ann.key).encode()]),
    "nsec": Decoder(_text(keys.read_nsec), [keys.nsec(ann.secret).encode()]),
    "address of a relay": Decoder(
        _text(client.relay_url), [b"http://127.0.0.1:7447", b"https://[::1]/x"], (client.InvalidUrl,)
    ),
    "hook payload": Decoder(_hook, _json(HOOK), (receiver.Invalid,)),
    "spool": Decoder(_spool, [spool._line({"a": 1}) + spool._line({"b": "x"})], ()),
    "settings of an agent, changed in place": Decoder(
        _text(json_text.parse),
        _json({"hooks": {"Stop": [{"command": "x"}]}, "a": [1, 2.5, None, "é\n"]}),
        (json_text.NotJson,),
        found=[b"{" + b"[" * 100_000],
    ),
    "plain JSON": Decoder(_text(plain_json.read), _json(HOOK), (plain_json.NotJson,)),
    "line of a transcript": Decoder(
        lambda raw, _: [transcript.said(agent, raw) for agent in ("claude", "codex", "gemini")],
        _json(
            {"type": "assistant", "message": {"role": "assistant", "content": [{"type": "text", "text": "hi"}]}},
            {"type": "response_item", "payload": {"type": "message", "role": "assistant", "content": [{"text": "x"}]}},
        ),
        (),
    ),
    "transcript that is one document": Decoder(
        lambda raw, _: transcript.messages(raw), _json({"messages": [{"type": "gemini", "content": "x"}]}), ()
    ),
    "page of an export": Decoder(
        _page,
        [_arrow()],
        (pages.SourceError,),
        found=[_arrow()[:-40], _arrow().replace(b"detail", b"det\xe1il")],
    ),
    "word to the export's reader": Decoder(
        lambda raw, _: exchange.read_request(raw), [exchange.frame(exchange.Close(7))[4:]], _READ
    ),
    "backup of a home": Decoder(
        _backup, [_sealed_backup()], (sealed_file.NotSealed, sealed_file.WrongPassphrase, sealed_file.SealBroken)
    ),
    "note of a program": Decoder(
        lambda raw, _: notes.read(raw, holder.Holder),
        [notes.write(holder.Holder(pid=7, since=1, socket="/run/x", url="http://127.0.0.1:1"))],
        (msgspec.DecodeError, UnicodeDecodeError),
        found=[b'{"x":' * 5_000],
    ),
    "write-ahead log": Decoder(
        lambda raw, _: wal.damage(lambda count, at: raw[at : at + count], len(raw)), [_journal()], ()
    ),
    "settings of a relay": Decoder(
        _file("relay.toml", lambda path: relay_settings.load(path, {})),
        [b'port = 0\nname = "x"\noperators = []\n[limits]\nmessages_per_s = 5.0\n[feed]\nopen = true\n'],
        (SettingsInvalid,),
        0.1,
    ),
    "settings of a daemon": Decoder(
        _file("daemon.toml", lambda path: device_settings.load(path.parent, {})),
        [b'log_level = "info"\n[log]\nbytes_max = 2000000\n'],
        (SettingsInvalid,),
        0.1,
    ),
    "adapters of agents": Decoder(
        _file(agent_settings.FILE_NAME, lambda path: agent_settings.load(path.parent)),
        _json(
            {
                "topics": ["@news"],
                "log": True,
                "webhooks": [{"name": "w", "url": "https://x/", "secret": "whsec_" + "A" * 32}],
            }
        ),
        (faults.Fault,),
        0.1,
    ),
    "key of a home": Decoder(
        _file("member.key", lambda path: Home(path.parent).secret(bytes)),
        [keys.nsec(ann.secret).encode() + b"\n"],
        (faults.Fault,),
        0.1,
    ),
    "keys before that": Decoder(
        _file("member-keys.json", lambda path: member_keys.archived(Home(path.parent), 0)),
        _json(
            {
                "version": 1,
                "keys": [
                    {"pubkey": ann.key, "secret": keys.nsec(ann.secret), "rotated_out_at": 2, "expires_at": 10**16}
                ],
            }
        ),
        (),
        0.1,
    ),
    "mesh of a home": Decoder(
        _file("home.json", lambda path: Home(path.parent).membership()),
        _json(
            {
                "version": 1,
                "relay": "http://x",
                "relay_pubkey": ann.key,
                "mesh": "m",
                "mesh_name": "M",
                "member": "a",
                "member_name": "ann",
                "client_message_id": "c",
            }
        ),
        (faults.Fault,),
        0.1,
    ),
}
