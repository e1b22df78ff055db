"""A process that stores events as the receiver does, many of them, and says of each that it is stored once it is.

python -m tests.hook.feeder HOME FIRST COUNT SESSIONS [PAUSE_S]
"""

import json
import os
import sys
import time

from holdfast.hook.receiver import Call, receive

# Mostly critical, with bursts in between.
PROMPT = "PLANTED-PROMPT-2b90"
NAMES = ("UserPromptSubmit", "PreToolUse", "PostToolUse", "Notification", "Stop")


def name_of(number: int) -> str:
    return NAMES[number % len(NAMES)]


def feed(home: str, numbers: range, sessions: int, pause_s: float) -> None:
    for number in numbers:
        payload = {"session_id": f"s{number % sessions}", "hook_event_name": name_of(number // sessions), "n": number}
        payload |= {"prompt": PROMPT, "cwd": "/"}
        where = receive(Call(["--agent", "claude", "--home", home, json.dumps(payload)]))
        assert where == "stored", where
        os.write(1, f"{number} {where}\n".encode())
        time.sleep(pause_s)


if __name__ == "__main__":
    home, first, count, sessions, *rest = sys.argv[1:]
    feed(home, range(int(first), int(first) + int(count)), int(sessions), float(rest[0]) if rest else 0.0)
