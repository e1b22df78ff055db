"""Reading an agent's transcript: the agent's words to a person, without everything else in the file.

A line is one JSON value. An agent may change its format at any time, so an entry that is not understood counts as empty.
Some versions of Gemini keep one document with a list of messages instead; each message is then read like a line.
"""

from typing import Any

import msgspec


def said(agent: str, line: bytes) -> str:
    """The agent's words in a line of its transcript; empty if there are none."""
    try:
        entry = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return said_in(agent, entry)


def said_in(agent: str, entry: Any) -> str:
    """The agent's words in a decoded entry of its transcript; empty if there are none."""
    return _SAID[agent](entry) if isinstance(entry, dict) else ""


def messages(document: bytes) -> list[Any] | None:
    """The entries of a transcript that is one document; None if it cannot be read, as while it is being written."""
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
    """The words of a Codex entry. Each message is there twice, once as an event; earlier versions have only this one."""
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
