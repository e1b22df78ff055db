"""Editing JSON as text: what is not touched stays as it was written, to the last space and comment.

Agents' settings are people's own files. So a value is found by its place in the text, and only that place is changed. Comments
and commas before a closing bracket, which some agents allow, are read and kept.
"""

import json
from typing import Any

import msgspec

INDENT = "  "  # where a file shows none of its own


class NotJson(ValueError):
    """The text cannot be read, so it must not be written."""


class Node(msgspec.Struct):
    """A value and where it stands; `members` of an object, `items` of an array."""

    start: int
    end: int
    value: Any  # with everything that is in it
    members: "dict[str, Node] | None" = None
    items: "list[Node] | None" = None
    key_start: int = -1  # of a member

    @property
    def children(self) -> "list[Node]":
        return list((self.members or {}).values()) if self.items is None else self.items

    @property
    def first(self) -> int:
        """Where it begins, with its key."""
        return self.start if self.key_start < 0 else self.key_start


def parse(text: str) -> Node:
    """The one value of a text."""
    reader = _Reader(text)
    reader.skip()
    node = reader.value(0)
    reader.skip()
    if reader.place != len(text):
        raise reader.wrong("something stands behind the value")
    return node


def with_member(text: str, parent: Node, key: str, value: Any) -> str:
    """The text with one more member at the end of an object."""
    return _with_child(text, parent, f"{json.dumps(key, ensure_ascii=False)}: ", value)


def with_item(text: str, parent: Node, value: Any) -> str:
    """The text with one more item at the end of an array."""
    return _with_child(text, parent, "", value)


def without(text: str, parent: Node, child: Node) -> str:
    """The text without one member or item, and without what set it apart from its neighbours; comments stay."""
    solid = _solid_end(text, parent, child.first)
    comma = _find_comma(text, child.end, parent.end - 1)
    if comma >= 0:
        return _joined(text, parent, solid, child.first, comma + 1)
    place = next(number for number, one in enumerate(parent.children) if one is child)
    if place == 0:
        return _joined(text, parent, solid, child.first, child.end)
    before = _find_comma(text, parent.children[place - 1].end, child.first)
    shorter = text[:before] + text[before + 1 :]
    return _joined(shorter, parent, max(solid - 1, before), child.first - 1, child.end - 1)


def _joined(text: str, parent: Node, solid: int, start: int, end: int) -> str:
    """The text without what stands from start to end, and without one of the gaps around it; solid is where the first begins."""
    rest = text[end:]
    if rest.lstrip()[:1] in ("}", "]") and solid == parent.start + 1:
        return text[:solid] + rest.lstrip()
    gap = rest[: len(rest) - len(rest.lstrip())]
    if "\n" in text[solid:start] and "\n" not in gap and _is_in_line_comment(text, parent.start + 1, solid):
        return text[:start] + rest
    if "\n" in text[solid:start] or rest.lstrip()[:1] in ("}", "]"):
        return text[:solid] + rest
    return text[:start] + (rest if "\n" in gap else rest.lstrip())


def _with_child(text: str, parent: Node, label: str, value: Any) -> str:
    close = parent.end - 1
    base, inner = _indents(text, parent)
    solid = _solid_end(text, parent, close)
    last = parent.children[-1].end if parent.children else parent.start + 1
    if inner is None and _is_in_line_comment(text, last, solid):
        inner = base + _unit(text)
    comma = _find_comma(text, last, close) if parent.children else -1
    rendered = label + _rendered(text, value, inner) + ("," if comma >= 0 else "")
    if inner is None:
        lead, tail = ("" if text[solid - 1] in "{[" else " "), ""
    else:
        lead = f"{_newline(text)}{inner}"
        tail = "" if "\n" in text[solid:close] else f"{_newline(text)}{base}"
    if parent.children and comma < 0:
        text = f"{text[:last]},{text[last:]}"
        solid = max(solid, last) + 1
    return text[:solid] + lead + rendered + tail + text[solid:]


def _is_in_line_comment(text: str, start: int, end: int) -> bool:
    """Whether what stands at the end is behind `//`: anything that is put there must go to the next line."""
    place = start
    while place < end:
        if text.startswith("//", place):
            place = text.find("\n", place, end)
            if place < 0:
                return True
        elif text.startswith("/*", place):
            place = text.index("*/", place + 2) + 2
        elif text[place] == '"':
            place = json.JSONDecoder().raw_decode(text, place)[1]  # slashes in a text begin no comment
        else:
            place += 1
    return False


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _solid_end(text: str, parent: Node, place: int) -> int:
    """Where what stands before a place ends, spaces apart; a comment is not a space."""
    return max(parent.start + 1, len(text[:place].rstrip()))


def _find_comma(text: str, start: int, end: int) -> int:
    """Where the comma behind a value is; -1 if there is none."""
    reader = _Reader(text)
    reader.place = start
    reader.skip()
    return reader.place if reader.place < end and text[reader.place] == "," else -1


def _indents(text: str, parent: Node) -> tuple[str, str | None]:
    """How far a container and what is in it are indented; None where it is all on one line."""
    base = _indent_at(text, parent.start)
    if parent.children and "\n" not in text[parent.start : parent.children[0].first]:
        return base, None
    if parent.children:
        return base, _indent_at(text, parent.children[0].first)
    return base, base + _unit(text)


def _indent_at(text: str, place: int) -> str:
    line = text[text.rfind("\n", 0, place) + 1 : place]
    return line[: len(line) - len(line.lstrip())]


def _unit(text: str) -> str:
    for line in text.splitlines()[1:]:
        indent = line[: len(line) - len(line.lstrip())]
        if indent and line.strip():
            return indent
    return INDENT


def _rendered(text: str, value: Any, inner: str | None) -> str:
    if inner is None:
        return json.dumps(value, ensure_ascii=False)
    lines = json.dumps(value, ensure_ascii=False, indent=_unit(text)).split("\n")
    return f"{_newline(text)}{inner}".join(lines)


class _Reader:
    """Reads JSON with comments, noting where everything stands."""

    DEPTH_MAX = 200

    def __init__(self, text: str) -> None:
        self.text = text
        self.place = 0

    def wrong(self, what: str) -> NotJson:
        line = self.text.count("\n", 0, self.place) + 1
        return NotJson(f"line {line}: {what}")

    def skip(self) -> None:
        """Pass over spaces and comments."""
        text = self.text
        while self.place < len(text):
            if text[self.place] in " \t\r\n\ufeff":
                self.place += 1
            elif text.startswith("//", self.place):
                end = text.find("\n", self.place)
                self.place = len(text) if end < 0 else end
            elif text.startswith("/*", self.place):
                end = text.find("*/", self.place + 2)
                if end < 0:
                    raise self.wrong("a comment has no end")
                self.place = end + 2
            else:
                return

    def value(self, depth: int) -> Node:
        if depth > self.DEPTH_MAX:
            raise self.wrong("it is nested too deeply")
        found = self.text[self.place : self.place + 1]
        if found == "{":
            return self._object(depth)
        if found == "[":
            return self._array(depth)
        return self._scalar()

    def _scalar(self) -> Node:
        start = self.place
        try:
            value, self.place = json.JSONDecoder().raw_decode(self.text, start)
        except (ValueError, RecursionError):  # where only a name may stand, no container's depth is counted
            raise self.wrong("a value is expected") from None
        return Node(start, self.place, value)

    def _object(self, depth: int) -> Node:
        start = self.place
        members: dict[str, Node] = {}
        for key_start in self._each("}"):
            key = self._scalar()
            if not isinstance(key.value, str):
                raise self.wrong("a name is expected")
            if key.value in members:
                raise self.wrong(f"the name {key.value} stands here twice")
            self.skip()
            self._take(":")
            self.skip()
            members[key.value] = node = self.value(depth + 1)
            node.key_start = key_start
        return Node(start, self.place, {name: node.value for name, node in members.items()}, members=members)

    def _array(self, depth: int) -> Node:
        start = self.place
        items = [self.value(depth + 1) for _ in self._each("]")]
        return Node(start, self.place, [node.value for node in items], items=items)

    def _each(self, closing: str):  # type: ignore[no-untyped-def]  # places, while the caller reads what stands there
        """The places of a container's children, up to and over its end."""
        self.place += 1
        self.skip()
        while self.text[self.place : self.place + 1] != closing:
            yield self.place
            self.skip()
            if self.text[self.place : self.place + 1] != closing:
                self._take(",")
                self.skip()
        self.place += 1

    def _take(self, character: str) -> None:
        if self.text[self.place : self.place + 1] != character:
            raise self.wrong(f"{character} is expected")
        self.place += 1
