"""What relays were heard to say about events: every answer that left one, and whether it had the event before it was asked.

An answer that reached nobody's disk is a promise all the same. It is read off the wire as it leaves.
"""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.world.machine import RelayMachine
    from tests.world.world import World

PATH = b"POST /v1/messages "
END = b"\r\n\r\n"


@dataclass(frozen=True)
class Heard:
    """One answer to one event."""

    relay: str
    event_id: str
    client_message_id: str
    status: int
    code: str
    log_id: str | None
    seq: int | None
    was_there: bool  # the relay had it when it was asked
    at: int  # true time at which the answer left

    @property
    def is_yes(self) -> bool:
        return self.status in (200, 201)


class Hearing:
    """Listens to one connection of a relay."""

    def __init__(self, world: "World", relay: "RelayMachine") -> None:
        self._world = world
        self._relay = relay
        self._asked = b""
        self._said = b""
        self._waiting: list[list[tuple[dict[str, Any], bool]]] = []  # events of requests that are not answered
        self._is_over = False  # it speaks no HTTP any more

    def asked(self, data: bytes) -> None:
        """Before the relay reads it."""
        self._asked += data
        while not self._is_over and (taken := _message(self._asked)) is not None:
            head, body, self._asked = taken
            if b"upgrade: websocket" in head.lower():
                self._is_over = True
            self._waiting.append(self._events(body) if head.startswith(PATH) else [])

    def said(self, data: bytes) -> int:
        """When it leaves the relay; says how many events it answers."""
        self._said += data
        answered = 0
        while not self._is_over and (taken := _message(self._said)) is not None:
            head, body, self._said = taken
            events = self._waiting.pop(0) if self._waiting else []
            if events:
                self._note(int(head.split()[1]), json.loads(body), events)
            answered += len(events)
        return answered

    def _events(self, body: bytes) -> list[tuple[dict[str, Any], bool]]:
        found = json.loads(body)
        events = found if isinstance(found, list) else [found]
        return [(event, self._relay.has(bytes.fromhex(event["id"]))) for event in events]

    def _note(self, status: int, body: Any, events: list[tuple[dict[str, Any], bool]]) -> None:
        answers = body.get("answers") or [{"status": status, **body}] * len(events)
        for (event, was_there), answer in zip(events, answers, strict=True):
            named = {tag[0]: tag[1] for tag in event["tags"] if len(tag) > 1}
            self._world.journal.heard.append(
                Heard(
                    relay=self._relay.name,
                    event_id=event["id"],
                    client_message_id=named.get("client_message_id", ""),
                    status=answer["status"],
                    code=answer.get("code", ""),
                    log_id=answer.get("log_id"),
                    seq=answer.get("history_id", answer.get("seq")),
                    was_there=was_there,
                    at=self._world.loop.now(),
                )
            )


def _message(read: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Head and body of the first message, and what follows it; nothing while it is not whole."""
    head, end, rest = read.partition(END)
    if not end:
        return None
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    return None if len(rest) < length else (head, rest[:length], rest[length:])
