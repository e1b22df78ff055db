"""Our entries in an agent's settings: put in and taken out as text, with everything else left as it is."""

import json
import tomllib
from typing import Any

from holdfast.hook import agents
from holdfast.hook.json_text import Node, NotJson, parse, with_item, with_member, without

NOTIFY_COMMENT = "  # holdfast"
NOTIFY_LINES_MAX = 30


class Taken(Exception):
    """Somebody else's entry stands where ours would have to."""


def with_hooks(text: str, agent: str, events: list[str], command: str) -> str:
    """Settings that call our command for these events, after whatever they call already."""
    text = text if text.strip() else "{}\n"
    text = _with_container(text, (), "hooks", {})
    for event in events:
        text = _with_container(text, ("hooks",), event, [])
        text = with_item(text, _at(text, "hooks", event), agents.group(agent, event, command))
    return text


def without_hooks(text: str) -> str:
    """Settings without our commands, and without lists that this leaves empty."""
    while (found := _find(text)) is not None:
        event, place, command = found
        group = _at(text, "hooks", event).children[place]
        handlers = (group.members or {})["hooks"]
        text = without(text, handlers, handlers.children[command])
        for path in (("hooks", event), ("hooks",), ()):
            text = _without_empty(text, path, event, place)
    return text


def commands(text: str) -> dict[str, list[str]]:
    """Our commands in some settings, by event."""
    found: dict[str, list[str]] = {}
    for event, groups in _hooks(text).items():
        ours = [command for command in map(_command, _handlers(groups)) if agents.is_ours(command)]
        if ours:
            found[event] = [str(command) for command in ours]
    return found


def with_notify(text: str, words: list[str]) -> str:
    """Codex settings that call us when a turn is complete; there can be only one such command."""
    there = notify(text)
    if there is not None:
        raise Taken(f"notify is {json.dumps(there)} already, and Codex has only one")
    line = f"notify = {json.dumps(words, ensure_ascii=False)}{NOTIFY_COMMENT}"
    return (
        line + ("\r\n" if "\r\n" in text else "\n") + text
    )  # before every table: what follows a table's name belongs to it


def without_notify(text: str) -> str:
    """Codex settings without our command, which somebody may have spread over several lines."""
    lines = text.splitlines(keepends=True)
    for start, line in enumerate(lines):
        for end in range(start + 1, start + 1 + NOTIFY_LINES_MAX) if line.startswith("notify") else ():
            if _is_our_notify("".join(lines[start:end])):
                return "".join(lines[:start] + lines[end:])
    if agents.is_ours(notify(text)):
        raise NotJson("our notify stands there in a way that is not understood; take it out by hand")
    return text


def notify(text: str) -> Any:
    """What Codex calls when a turn is complete, if anything."""
    try:
        return tomllib.loads(text).get("notify")
    except tomllib.TOMLDecodeError as error:
        raise NotJson(str(error)) from error


def _is_our_notify(lines: str) -> bool:
    try:
        return agents.is_ours(tomllib.loads(lines).get("notify"))
    except tomllib.TOMLDecodeError:
        return False


def _with_container(text: str, path: tuple[str, ...], key: str, empty: Any) -> str:
    parent = _at(text, *path)
    if key not in (parent.members or {}):
        return with_member(text, parent, key, empty)
    found = (parent.members or {})[key].value
    if not isinstance(found, type(empty)):
        raise NotJson(f"{'.'.join((*path, key))} is no {'list' if empty == [] else 'object'}")
    return text


def _without_empty(text: str, path: tuple[str, ...], event: str, place: int) -> str:
    """The text without the list or object at this level, if our removal has emptied it."""
    parent = _at(text, *path)
    if path == ("hooks", event):
        child = parent.children[place]
        is_empty = not child.value["hooks"]
    else:
        key = event if path == ("hooks",) else "hooks"
        if key not in (parent.members or {}):
            return text
        child = (parent.members or {})[key]
        is_empty = not text[child.start + 1 : child.end - 1].strip()  # a comment is somebody's
    return without(text, parent, child) if is_empty else text


def _find(text: str) -> tuple[str, int, int] | None:
    """A command of ours: its event, its group there, its place in the group."""
    for event, groups in _hooks(text).items():
        for place, group in enumerate(groups if isinstance(groups, list) else []):
            for number, handler in enumerate(_handlers([group])):
                if agents.is_ours(_command(handler)):
                    return event, place, number
    return None


def _hooks(text: str) -> dict[str, Any]:
    root = parse(text).value if text.strip() else {}
    hooks = root.get("hooks") if isinstance(root, dict) else None
    return hooks if isinstance(hooks, dict) else {}


def _handlers(groups: Any) -> list[Any]:
    found = [group.get("hooks") for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []
    return [handler for handlers in found if isinstance(handlers, list) for handler in handlers]


def _command(handler: Any) -> Any:
    return handler.get("command") if isinstance(handler, dict) else None


def _at(text: str, *path: str) -> Node:
    node = parse(text)
    if not isinstance(node.value, dict):
        raise NotJson("the settings are no object")
    for key in path:
        node = (node.members or {})[key]
    return node
