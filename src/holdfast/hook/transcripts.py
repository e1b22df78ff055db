"""The transcript reader: what an agent writes down while it works, read on from where it was and told as output.

Outputs and the place up to which they were read are one transaction. A transcript that is not there yet says nothing; one that
is not the file it was is read from its beginning, and what was told before keeps its id. That a tool was used never produces
output: only what stands in the transcript does.
"""

import os
import stat
from collections.abc import Mapping
from glob import escape
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import structlog

from holdfast.hook import agent_sessions, tail
from holdfast.hook.agent_sessions import AgentSession
from holdfast.hook.tail import LINE_BYTES_MAX, Mark
from holdfast.protocol import transcript
from holdfast.protocol.agent_event import AgentEvent, AgentKind, fitting
from holdfast.store.engine import Transaction

PIECE_BYTES = 1_048_576  # read in one transaction
DOCUMENT_BYTES_MAX = 67_108_864  # of a transcript that is one document
ID_CHARACTERS = 32
DOCUMENT = "document"  # in the place of a line's digest: the mark counts messages, and has the time of the last change

_log = structlog.get_logger(__name__)


def end_of(path: str) -> Mark:
    """The mark at the current end of a transcript."""
    try:
        if not _is_document(path):
            return tail.at_end(path)
        entries, changed_at = _messages(path)
        return Mark(len(entries or ()), changed_at, DOCUMENT)
    except OSError:
        return Mark()


class Reader:
    """Reads the transcripts of one machine. `environment` says where Codex keeps them."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._missing: dict[tuple[str, str], str] = {}  # whose was not found when which event was the last

    def has_news(self, session: AgentSession) -> bool:
        """Whether a transcript has changed, by its size or time alone."""
        path = self.path_of(session)
        if path is None:
            return False
        try:
            found = os.stat(path)
        except OSError:
            return False
        if _is_document(path):
            return found.st_mtime_ns != session.transcript_size  # of a document it is the time of its last change
        return found.st_size != session.transcript_end

    def path_of(self, session: AgentSession) -> str | None:
        """Where a session's transcript is. Codex does not always say; then it is looked for, once after each event."""
        if self._missing.get((session.agent, session.session_id)) == session.last_event_id:
            return session.transcript_path or None
        return self._look_for(session)

    def _look_for(self, session: AgentSession) -> str | None:
        if session.transcript_path or session.agent != "codex":
            return session.transcript_path or None
        name = session.agent, session.session_id
        path = self._found(session)
        if path is None:
            self._missing[name] = session.last_event_id
        else:
            self._missing.pop(name, None)
        return path

    def _found(self, session: AgentSession) -> str | None:
        if "/" in session.session_id or "\0" in session.session_id:
            return None  # it would lead elsewhere
        home = self._environment.get("CODEX_HOME") or os.path.join(
            self._environment.get("HOME") or os.path.expanduser("~"), ".codex"
        )
        name = f"rollout-*-{escape(session.session_id)}.jsonl"
        found = sorted(str(path) for path in Path(home, "sessions").glob(f"*/*/*/{name}"))
        return found[-1] if found else None

    def read_on(self, transaction: Transaction, agent: str, session_id: str, now: int) -> bool:
        """Report the outputs after the session's mark in its transcript; whether there is more to read.

        One that was missing is looked for all the same: who asks may know of an event that the session has not heard of.
        """
        session = agent_sessions.find(transaction, agent, session_id)
        path = None if session is None else self._look_for(session)
        if session is None or path is None:
            return False
        try:
            texts, mark, has_more = _document(path, session) if _is_document(path) else _lines(path, session)
        except OSError as error:
            _log.warning("a transcript cannot be read", path=path, detail=str(error))
            return False
        for place, text in texts:
            if fitting(text) != session.message:  # the end of the turn has told it already
                agent_sessions.tell(transaction, _output(session, path, place, text, now), now)
        if mark != session.transcript_mark or path != session.transcript_path:
            agent_sessions.keep(transaction, msgspec.structs.replace(session.read_to(mark), transcript_path=path))
        return has_more


def _lines(path: str, session: AgentSession) -> tuple[list[tuple[int, str]], Mark, bool]:
    """The agent's outputs in the next whole lines, each with its position."""
    mark = session.transcript_mark
    content, start, is_whole = tail.read(path, mark, PIECE_BYTES)
    if len(content) >= LINE_BYTES_MAX and b"\n" not in content.strip(b"\n"):
        return [], tail.behind(content, start), True  # it is passed over; what is left of it is no JSON
    content = content[: content.rfind(b"\n") + 1]
    if not content.strip(b"\n"):
        return [], mark if start == mark.end else Mark(), False
    texts, place = [], start
    for line in content.splitlines(keepends=True):
        text = transcript.said(session.agent, line)
        texts += [(place, text)] if text else []
        place += len(line)
    return texts, tail.behind(content, start), not is_whole


def _document(path: str, session: AgentSession) -> tuple[list[tuple[int, str]], Mark, bool]:
    """The agent's outputs in the messages added to a JSON document; its mark counts messages."""
    entries, changed_at = _messages(path)
    if entries is None:
        return [], session.transcript_mark, False
    done = session.transcript_end if session.transcript_end <= len(entries) else 0
    texts = [(place, transcript.said_in(session.agent, entry)) for place, entry in enumerate(entries) if place >= done]
    return [(place, text) for place, text in texts if text], Mark(len(entries), changed_at, DOCUMENT), False


def _messages(path: str) -> tuple[list[Any] | None, int]:
    """The messages of a document, if it can be read now, and when it was changed before that."""
    found = os.stat(path)
    is_readable = stat.S_ISREG(found.st_mode) and found.st_size <= DOCUMENT_BYTES_MAX
    return transcript.messages(Path(path).read_bytes()) if is_readable else None, found.st_mtime_ns


def _output(session: AgentSession, path: str, place: int, text: str, now: int) -> AgentEvent:
    """The report of an output, with the same id each time it is read."""
    name = "\0".join((session.agent, session.session_id, path, str(place), text))
    return AgentEvent(
        id=sha256(name.encode("utf-8", "replace")).hexdigest()[:ID_CHARACTERS],
        kind=AgentKind.OUTPUT,
        agent=session.agent,
        session_id=session.session_id,
        at=now,
        text=fitting(text),
        cwd=session.cwd,
    )


def _is_document(path: str) -> bool:
    return path.endswith(".json")
