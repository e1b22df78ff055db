"""What programs leave on a disk: a relay's directory, its backup and two homes, after some work and a `kill -9`."""

import asyncio
import json
import os
import signal
import time
from pathlib import Path

from holdfast.device import holder, member_keys, rotation
from holdfast.device.device import at_work
from holdfast.device.home import Home
from holdfast.device.mesh import in_session
from holdfast.hook import agents, entries, spool
from holdfast.hook.installer import Installer
from holdfast.hook.receiver import Call, receive
from holdfast.relay import copy
from tests import ports
from tests.crash.programs import Program
from tests.device.company import gather_in_mesh
from tests.hook.receivers import rows

SENDS = 25
SETTLE_S = 120.0
SETTINGS = {
    "relay/relay.toml": "port = {port}\n[limits]\nmessages_per_s = 50.0\n[retention]\nqueue_ttl_days = 8\n",
    "ann/daemon.toml": 'log_level = "warning"\n[outbox]\nrows_max = 5000\n',
    "ann/hooks.json": '{"poll_s": 0.5, "batch_rows": 30}\n',
    "ann/agents.json": '{"log": true, "transcript_poll_s": 2.5}\n',
}
HOOKS = ("SessionStart", "UserPromptSubmit", "Stop")
COMMAND = agents.command_line("claude", "/usr/bin/python3", Path("/home/ann/.holdfast"))


def furnish(place: Path) -> None:
    """Have a relay and a daemon work here, and die."""
    for name, text in SETTINGS.items():
        path = place / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_text(text.replace("{port}", str(ports.port())))
        path.chmod(0o600)
    ann, bob = Home(place / "ann"), Home(place / "bob")
    relay = Program("relay", "run", "--data", str(place / "relay"), log=place / "relay.log")
    daemon = Program("daemon", "run", "--home", str(ann.path), "--port", "0", log=place / "ann.log")
    relay.start()
    try:
        asyncio.run(_befriend(relay.first["url"], ann, bob))
        daemon.start()
        _tell_of_agents(place, ann)
        for number in range(SENDS):
            assert daemon.ask("POST", "/v1/send", {"to": "bob", "message": f"number {number}"}) is not None
        copy.backup(place / "relay", place / "backup")
        _until_told(ann.path)
    finally:
        daemon.end(signal.SIGKILL)
        relay.end(signal.SIGKILL)
    _leave(ann, bob)


async def _befriend(url: str, ann: Home, bob: Home) -> None:
    await gather_in_mesh(url, [ann, bob])
    with at_work(ann) as device:
        async with in_session(device) as session:
            await rotation.rotate(session)


def _tell_of_agents(place: Path, ann: Home) -> None:
    settings = place / "agent" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{"theme": "dark"}\n')
    Installer(ann.path).install(
        "claude", "hooks", settings, lambda text: entries.with_hooks(text, "claude", ["Stop"], COMMAND)
    )
    for name in HOOKS:
        said = {"session_id": "s", "hook_event_name": name, "prompt": "hello", "cwd": "/"}
        assert receive(Call(["--agent", "claude", "--home", str(ann.path), json.dumps(said)])) == "stored"


def _until_told(home: Path) -> None:
    """Until the daemon has no more to write about hooks: a death in the middle of that leaves half a transaction."""
    give_up_at = time.monotonic() + SETTLE_S
    while not _is_told(home):
        assert time.monotonic() < give_up_at, rows(home, "event_name, ended_at, ended_reported")
        time.sleep(0.1)


def _is_told(home: Path) -> bool:
    ended, told = rows(home, "ended_reported"), rows(home, "position", "agent_event", "position")
    followers = rows(home, "position", "agent_follower", "name")
    return ended == [1] * len(HOOKS) and followers == told[-1:] != [] and (home / "agents.jsonl").exists()


def _leave(ann: Home, bob: Home) -> None:
    """What a death at another moment leaves, too."""
    note = holder.Holder(pid=os.getpid(), since=1, socket=str(ann.path / "daemon.sock"))  # one that is there
    holder.note(ann, note)
    spool.append(str(ann.path), {"event_id": "1", "payload": "x" * 50})
    member_keys.begin(bob, 1, os.urandom, "asked", 7)
