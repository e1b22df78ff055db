"""The relay's answer to one offered event, in a form for both HTTP and WebSocket."""

from typing import Any

import msgspec

from holdfast.protocol.refusal import REFUSALS, Refusal, Refused, ok_message, problem

FEED = "/feed"  # instead of a mesh, which cannot have this name: the feed of an author
ALL = ""  # instead of an author: the feeds of all authors
EVERYBODY = ("", "")  # instead of a mesh and a member: all readers of a queue or the feed


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A yes (201 new, 200 known already) with its members, or a refusal with the detail and members of its problem."""

    event_id: str = ""  # as far as the event could be read
    http_status: int
    members: dict[str, Any] = {}
    refusal: Refusal | None = None
    detail: str = ""
    retry_after_s: int | None = None
    wakes: tuple[tuple[str, str], ...] = ()  # (mesh, member) or (FEED, author) with new rows because of this event
    ends: tuple[tuple[str, str, Refusal], ...] = ()  # (mesh, member, reason) whose connections this event ends

    @property
    def accepted(self) -> bool:
        return self.refusal is None

    def body(self) -> dict[str, Any]:
        """The JSON of this answer."""
        return dict(self.members) if self.refusal is None else problem(self.refusal, self.detail, **self.members)

    def ok(self) -> tuple[str, str, bool, str]:
        """The NIP-01 OK frame of this answer."""
        if self.refusal is not None:
            return ("OK", self.event_id, False, ok_message(self.refusal, self.detail))
        word = "duplicate: " if self.members.get("duplicate") else ""
        return ("OK", self.event_id, True, word + msgspec.json.encode(self.members).decode())


def refuse(refusal: Refusal, detail: str = "", *, event_id: str = "", **members: Any) -> Answer:
    """The answer with a refusal; a member `retry_after_s` also becomes the header Retry-After."""
    retry_after_s = members.pop("retry_after_s", None)
    return Answer(
        event_id=event_id,
        http_status=REFUSALS[refusal].http_status,
        refusal=refusal,
        detail=detail,
        members=members,
        retry_after_s=retry_after_s,
    )


def refusal_answer(refused: Refused, event_id: str) -> Answer:
    """The answer for a raised refusal, with its members."""
    return refuse(refused.refusal, refused.detail, event_id=event_id, **getattr(refused, "members", {}))
