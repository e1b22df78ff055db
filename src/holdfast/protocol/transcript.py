"""What an agent says in its transcript: the words meant for a person, out of everything else that stands there.

A line is one JSON value; an agent may change what it writes at any time, so what is not understood says nothing. Some
versions of Gemini keep one document instead, with a list of messages; each of these is as good as a line.
"""

from typing import Any

import msgspec


def said(agent: str, line: bytes) -> str:
    """The agent's words in a line of its transcript; empty where there are none."""
    try:
        entry = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return said_in(agent, entry)


def said_in(agent: str, entry: Any) -> str:
    """The same of an entry that was read already."""
    return _SAID[agent](entry) if isinstance(entry, dict) else ""


def messages(document: bytes) -> list[Any] | None:
    """The entries of a transcript that is one document; None while it is none, as when it is just being written."""
    try:
        found = msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    listed = found.get("messages") if isinstance(found, dict) else None
    return listed if isinstance(listed, list) else None


def _claude(entry: dict[str, Any]) -> str:
    message = entry.get("message")
    if entry.get("type") != "assistant" or entry.get("isSidechain") or not isinstance(message, dict):
        return ""
    return _text(message.get("content"), ("text",))


def _codex(entry: dict[str, Any]) -> str:
    """Each message stands there twice, once as an event; this is the one that earlier versions have, too."""
    payload = entry.get("payload") if entry.get("type") == "response_item" else entry
    if not isinstance(payload, dict) or payload.get("type") != "message" or payload.get("role") != "assistant":
        return ""
    return _text(payload.get("content"), ("output_text", "text"))


def _gemini(entry: dict[str, Any]) -> str:
    return _text(entry.get("content"), ("text", None)) if entry.get("type") in ("gemini", "model") else ""


def _text(content: object, types: tuple[str | None, ...]) -> str:
    if isinstance(content, str):
        return content.strip()
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") in types]
    return "\n".join(text for text in texts if isinstance(text, str)).strip()


_SAID = {"claude": _claude, "codex": _codex, "gemini": _gemini}
