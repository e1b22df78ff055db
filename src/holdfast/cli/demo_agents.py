"""The demo's agent: our command in its settings, run as the agent runs it, and what it tells on another machine."""

import json
import subprocess
from pathlib import Path
from threading import Thread
from typing import Any

from holdfast.cli.demo_mesh import TOPIC
from holdfast.cli.demo_world import World, command, hold, process
from holdfast.cli.output import show_time
from holdfast.device.home import VARIABLE
from holdfast.store.world import wall_clock

SESSION = "5f3c"
SAID: tuple[dict[str, str], ...] = (
    {"hook_event_name": "UserPromptSubmit", "prompt": "Water the garden"},
    {"hook_event_name": "Stop", "last_assistant_message": "The garden is watered."},
)


def watch_elsewhere(world: World) -> str:
    """Installed at Alice's, seen at Bob's by `agents watch --topic`."""
    world.user.mkdir()
    environment = {VARIABLE: str(world.alice), "HOME": str(world.user)}
    installed = json.loads(command("hook", "install", "--agent", "claude", "--json", environment=environment).stdout)
    since = show_time(wall_clock())
    watching = ("agents", "watch", "--topic", TOPIC, "--since", since, "--json")
    with process(*watching, environment={VARIABLE: str(world.bob)}) as watch:
        told = _listening(watch)
        for said in SAID:
            _run_hook(Path(installed["path"]), {"session_id": SESSION, "cwd": str(world.user), **said})
        world.until(lambda: len(told) >= len(SAID), "Bob has not heard of Alice's agent")
    texts = [(one["sender"], one["session_id"], one["text"]) for one in told]
    expected = [("alice", SESSION, said.get("prompt") or said["last_assistant_message"]) for said in SAID]
    hold(texts == expected, f"Bob heard {texts}")
    return f"Bob heard {texts[0][2]!r} and {texts[1][2]!r} from Alice's agent"


def _listening(watch: "subprocess.Popen[str]") -> list[dict[str, Any]]:
    """What a watcher prints, as it comes; its end ends the listening."""
    told: list[dict[str, Any]] = []
    assert watch.stdout is not None  # noqa: S101 - it is a pipe
    lines = watch.stdout
    Thread(target=lambda: told.extend(map(json.loads, lines)), daemon=True).start()
    return told


def _run_hook(settings: Path, payload: dict[str, str]) -> None:
    """What the agent does: the command of its own settings, the payload on its input."""
    event = payload["hook_event_name"]
    line = json.loads(settings.read_text())["hooks"][event][0]["hooks"][0]["command"]
    done = subprocess.run(  # noqa: S603 - what we installed
        ["/bin/sh", "-c", line], input=json.dumps(payload), capture_output=True, text=True, check=False
    )
    hold(done.returncode == 0 and not done.stdout, f"the hook command said {done.stdout}{done.stderr}")
