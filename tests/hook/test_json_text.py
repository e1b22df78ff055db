"""Editing JSON as text: only what is to change changes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.hook.json_text import NotJson, parse, with_item, with_member, without

PLAIN = """{
  "model": "opus",
  "env": { "A": "1",   "B": "2" },
  "hooks": {
    "Stop": [
      { "hooks": [ { "type": "command", "command": "beep" } ] }
    ]
  }
}
"""


def test_a_member_joins_the_others_and_nothing_else_moves() -> None:
    root = parse(PLAIN)
    hooks = (root.members or {})["hooks"]
    assert with_member(PLAIN, hooks, "Start", [{"a": 1}]) == PLAIN.replace(
        "    ]\n  }\n}\n", '    ],\n    "Start": [\n      {\n        "a": 1\n      }\n    ]\n  }\n}\n'
    )


def test_what_stands_on_one_line_stays_on_one_line() -> None:
    root = parse(PLAIN)
    text = with_member(PLAIN, (root.members or {})["env"], "C", "3")
    assert text == PLAIN.replace('"B": "2" }', '"B": "2", "C": "3" }')


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{}", '{\n  "x": [\n    1\n  ]\n}'),
        ("{}\n", '{\n  "x": [\n    1\n  ]\n}\n'),
        ('{"a":1}', '{"a":1, "x": [1]}'),
        ('{\n\t"a": 1\n}', '{\n\t"a": 1,\n\t"x": [\n\t\t1\n\t]\n}'),
        ('{\n    "a": {}\n}', '{\n    "a": {},\n    "x": [\n        1\n    ]\n}'),
        ('{\n  "a": 1 // why\n}', '{\n  "a": 1, // why\n  "x": [\n    1\n  ]\n}'),
        ('{\n  "a": 1,\n}', '{\n  "a": 1,\n  "x": [\n    1\n  ],\n}'),
        ('{"a": 1 // why\n}', '{"a": 1, // why\n  "x": [\n    1\n  ]\n}'),
        ("{ // nothing yet\n}", '{ // nothing yet\n  "x": [\n    1\n  ]\n}'),
        ('{"a": "http://b"}', '{"a": "http://b", "x": [1]}'),
        ('{\r\n  "a": 1\r\n}', '{\r\n  "a": 1,\r\n  "x": [\r\n    1\r\n  ]\r\n}'),
        ("{\n  /* nothing yet */\n}", '{\n  /* nothing yet */\n  "x": [\n    1\n  ]\n}'),
    ],
)
def test_a_member_takes_on_the_shape_of_its_surroundings(before: str, after: str) -> None:
    text = with_member(before, parse(before), "x", [1])
    assert text == after
    assert parse(text).value == parse(before).value | {"x": [1]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1 2]",
        '{"a" 1}',
        "{'a': 1}",
        '{"a": 1} x',
        '{"a": 1, "a": 2}',
        "/* {}",
        "[" * 300 + "]" * 300,
        "{1: 2}",
    ],
)
def test_what_cannot_be_read_is_said_with_its_line(text: str) -> None:
    with pytest.raises(NotJson, match="line 1"):
        parse(text)


def test_comments_and_last_commas_are_read() -> None:
    text = '// mine\n{"a": [1, /* two */ 2,], // end\n "b": "// no comment",}\n// done'
    assert parse(text).value == {"a": [1, 2], "b": "// no comment"}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
SHAPES = st.sampled_from([None, 2, 4, "\t"])


@given(value=st.dictionaries(st.text(max_size=3), VALUES, max_size=4), shape=SHAPES, added=VALUES)
def test_what_was_added_can_be_taken_away_again_without_a_trace(value: Any, shape: Any, added: Any) -> None:
    before = json.dumps(value, indent=shape, ensure_ascii=False)
    after = with_member(before, parse(before), "the new one", added)
    root = parse(after)
    assert json.loads(after) == value | {"the new one": added}
    assert without(after, root, (root.members or {})["the new one"]) == before


@given(value=st.lists(VALUES, max_size=4), shape=SHAPES, added=VALUES)
def test_so_can_an_item(value: Any, shape: Any, added: Any) -> None:
    before = json.dumps(value, indent=shape, ensure_ascii=False)
    after = with_item(before, parse(before), added)
    root = parse(after)
    assert json.loads(after) == [*value, added]
    assert without(after, root, root.children[-1]) == before


@given(value=st.lists(VALUES, min_size=1, max_size=4), shape=SHAPES, data=st.data())
def test_any_item_can_be_taken_away(value: Any, shape: Any, data: st.DataObject) -> None:
    text = json.dumps(value, indent=shape, ensure_ascii=False)
    place = data.draw(st.integers(0, len(value) - 1))
    root = parse(text)
    assert json.loads(without(text, root, root.children[place])) == value[:place] + value[place + 1 :]


@given(value=st.dictionaries(st.text(max_size=3), VALUES, min_size=1, max_size=4), shape=SHAPES, data=st.data())
def test_any_member_can_be_taken_away(value: Any, shape: Any, data: st.DataObject) -> None:
    text = json.dumps(value, indent=shape, ensure_ascii=False)
    key = data.draw(st.sampled_from(sorted(value)))
    root = parse(text)
    rest = {name: one for name, one in value.items() if name != key}
    assert json.loads(without(text, root, (root.members or {})[key])) == rest
