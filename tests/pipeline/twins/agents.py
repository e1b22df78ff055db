"""The turns of agents once more: a walk over the hook events of each session, one after the other."""

from dataclasses import dataclass, field
from typing import Any

from holdfast.protocol.history import Entry, Kind
from holdfast.protocol.hook_entry import HookDetail
from tests.pipeline.tables.memory_lake import as_time
from tests.pipeline.twins.twins import Rows, Story


@dataclass
class _Session:
    key: tuple[str, str, str]
    turns: Rows = field(default_factory=list)
    stop_name: str | None = None

    @property
    def open(self) -> dict[str, Any] | None:
        return self.turns[-1] if self.turns and self.turns[-1]["outcome"] == "open" else None

    def take(self, entry: Entry, detail: HookDetail) -> None:
        at, what, name = as_time(detail.received_at), detail.event_type, detail.event_name
        turn = self.open
        if what == "user_prompt_submit":
            if turn is not None:
                turn["outcome"] = "interrupted"
            self._begin(entry, prompt_at=at)
        elif what == "agent_stop" and turn is not None:
            turn.update(outcome="complete", stop_at=at)
            self.stop_name = name
        elif what == "agent_stop" and name == "agent-turn-complete" and self.stop_name in (None, name):
            self._begin(entry, stop_at=at, outcome="complete")
        elif turn is not None:
            self._go_on(turn, at, what, name)

    def _go_on(self, turn: dict[str, Any], at: Any, what: str, name: str) -> None:
        turn["tools"] += what == "tool_use"
        turn["errors"] += what == "error" or (what == "tool_done" and name == "PostToolUseFailure")
        if what == "session_end" or (what == "error" and name == "StopFailure"):
            turn.update(outcome="interrupted", stop_at=at)

    def _begin(self, entry: Entry, **more: Any) -> None:
        device, agent, session = self.key
        said = {"device": device, "agent": agent, "session": session, "n": len(self.turns) + 1}
        counts = {"tools": 0, "errors": 0, "outcome": "open", "prompt_at": None, "stop_at": None}
        began_at = as_time(entry.at)
        self.turns.append({**said, **counts, "began_at": began_at, "day": began_at.date(), **more})


def agent_turn(story: Story) -> Rows:
    """Every turn of every session, as its device told it the first time."""
    sessions: dict[tuple[str, str, str], _Session] = {}
    known = set()
    for origin, _, entry in story.of("device:"):
        if entry.kind is not Kind.HOOK_RECEIVED or (origin, entry.event_id) in known:
            continue
        known.add((origin, entry.event_id))
        detail = HookDetail.decode(entry.detail)
        if detail.session_id and not detail.session_id.startswith("holdfast-doctor-"):
            key = (origin, detail.agent, detail.session_id)
            sessions.setdefault(key, _Session(key)).take(entry, detail)
    return [turn for session in sessions.values() for turn in session.turns]
