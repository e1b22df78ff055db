"""Searches without Spark: the messages of an owner by their words, ranked by BM25, and the messages of a relay by what it knows of them."""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from holdfast.pipeline.search._words import MARKS_MAX, PREFIX, WORD, composed
from holdfast.pipeline.shelf import Shelf
from holdfast.store import faults

TERMS_MAX = 32
"""How many words one search may have; more are refused, because to leave some out would give a wrong answer."""

FREQUENCY_SATURATION = 1.2
LENGTH_WEIGHT = 0.75
"""The two parameters of BM25, with their usual values: how soon a repeated word stops to count, and how much long texts are marked down."""

SNIPPET_CHARACTERS_MAX = 160
SNIPPET_CHARACTERS_BEFORE = 40

_JOINER = "\N{ZERO WIDTH JOINER}"
_SKINS = "\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"  # the colours that follow a picture of a person

_IN_WORDS = ("L", "N", "M")  # letters, numbers and marks: what `WORD` says, which Python's own patterns cannot

_UNTOLD = ("text", "words", "day", "log_id", "terms")  # columns that a hit does not show


class NothingAsked(faults.Fault):
    what = "there is no word in what was asked for"
    remedy = "Name at least one word of letters or digits; one that ends in * stands for all that begin so."


class TooManyAsked(faults.Fault):
    what = f"no more than {TERMS_MAX} words are looked for at once (TERMS_MAX)"
    remedy = "Leave out those that most messages have, or ask several times."


@dataclass(frozen=True)
class Snippet:
    """A piece of a text, and where the words of the search are in it."""

    text: str
    matches: tuple[tuple[int, int], ...]


def terms_of(shelf: Shelf, asked: str) -> list[str]:
    """The words that are asked for, as they are in the index."""
    # Python lowers case as Java does, which wrote the index; DuckDB does not know the final sigma of Greek.
    text = composed(readable(asked)).lower()
    pattern = f"{WORD}\\{PREFIX}?"
    (found,) = shelf.connection.execute("SELECT regexp_extract_all($1, $2)", [text, pattern]).fetchall()[0]
    return _checked(found, asked)


def _checked(words: Iterable[str], asked: str) -> list[str]:
    """The words, each once, if there are any and not too many."""
    terms, shown = list(dict.fromkeys(words)), repr(asked[:SNIPPET_CHARACTERS_MAX])
    if not terms:
        raise NothingAsked(shown)
    if len(terms) > TERMS_MAX:
        raise TooManyAsked(shown, f"these are {len(terms)}")
    return terms


def readable(text: str) -> str:
    """A text that a person typed, with invalid bytes replaced: no message has any."""
    return text.encode("utf-8", "replace").decode()


def search_messages(shelf: Shelf, asked: str, limit: int) -> list[dict[str, Any]]:
    """The messages of an owner's lake with any of these words, the best first, each with a snippet."""
    terms = terms_of(shelf, asked)
    lookups = " UNION ALL ".join(
        f"""SELECT {number} AS term, origin, log_id, seq, sum(times) AS times FROM search_posting
        WHERE {_condition(term, number)} GROUP BY ALL"""  # noqa: S608 - numbers; the words are among the values
        for number, term in enumerate(terms, start=1)
    )
    rows = shelf.look_up(
        f"""
        WITH hit AS ({lookups}),
        term AS (SELECT term, count(*) AS messages FROM hit GROUP BY term),
        everything AS (SELECT count(*) AS messages, avg(words) AS words FROM search_message),
        scored AS (
            SELECT message.*, count(*) AS terms, sum(
                ln(1 + (everything.messages - term.messages + 0.5) / (term.messages + 0.5))
                * times * {FREQUENCY_SATURATION + 1}
                / (times + {FREQUENCY_SATURATION} * (1 - {LENGTH_WEIGHT} + {LENGTH_WEIGHT} * message.words / everything.words))
            ) AS score
            FROM hit JOIN term USING (term) JOIN search_message AS message USING (origin, log_id, seq), everything
            GROUP BY ALL
        )
        SELECT * FROM scored ORDER BY terms DESC, score DESC, "at" DESC, origin, seq DESC LIMIT {limit}
        """,  # noqa: S608 - numbers of our own
        [term.removesuffix(PREFIX) for term in terms],
    )
    return [_hit(row, terms) for row in rows]


def _condition(term: str, number: int) -> str:
    return f"starts_with(word, ${number})" if term.endswith(PREFIX) else f"word = ${number}"


def _hit(row: dict[str, Any], terms: Sequence[str]) -> dict[str, Any]:
    found = snippet(row["text"], terms)
    kept = {name: value for name, value in row.items() if name not in _UNTOLD}
    return {**kept, "snippet": found.text, "matches": [list(one) for one in found.matches]}


def snippet(text: str, terms: Sequence[str]) -> Snippet:
    """The part of a text around the first word of the search, on one line."""
    line = " ".join(text.split())
    whole, places = _composed(line)
    found = [(places[start], places[end]) for start, end in _words(whole) if _is_asked(whole[start:end].lower(), terms)]
    start = _whole(line, max(0, found[0][0] - SNIPPET_CHARACTERS_BEFORE)) if found else 0
    # At the beginning of a word, if one begins between there and the match.
    start = 0 if start == 0 else line.find(" ", start, found[0][0]) + 1 or start
    end = _whole(line, start + SNIPPET_CHARACTERS_MAX)
    before, after = "…" if start else "", "…" if end < len(line) else ""
    shift = len(before) - start
    # A word may be longer than a snippet: a sentence of a script without blanks is one.
    matches = tuple((first + shift, min(last, end) + shift) for first, last in found if first < end)
    return Snippet(before + line[start:end] + after, matches)


def _whole(line: str, place: int) -> int:
    """The place, or one a little before it, where a line can be cut without parting a letter from its marks or a picture from its parts."""
    for one in range(min(place, len(line)), max(0, place - MARKS_MAX), -1):
        if one == len(line) or not (_goes_on(line[one]) or line[one - 1] == _JOINER):
            return one
    return place


def _goes_on(character: str) -> bool:
    return unicodedata.category(character)[0] == "M" or character == _JOINER or character in _SKINS


def _composed(line: str) -> tuple[str, Sequence[int]]:
    """A line with its characters composed, as the index has it; and for each of these, and the end, its position in the line as written."""
    if composed(line) == line:
        return line, range(len(line) + 1)
    parts, places = [], []
    for start, end in _characters(line):
        parts.append(composed(line[start:end]))
        places += [start] * len(parts[-1])
    return "".join(parts), [*places, len(line)]


def _characters(line: str) -> Iterator[tuple[int, int]]:
    """Start and end of each group of characters that compose with each other: a letter with its marks, a syllable of its parts."""
    start = 0
    for end in range(1, len(line) + 1):
        # What stands before a mark may be long, and need not be looked at: a mark is never apart.
        if end == len(line) or (not unicodedata.combining(line[end]) and _is_apart(line[start:end], line[end])):
            yield start, end
            start = end


def _is_apart(before: str, character: str) -> bool:
    return composed(before + character) == composed(before) + composed(character)


def _words(line: str) -> Iterator[tuple[int, int]]:
    """Start and end of each word."""
    start = 0
    for is_word, characters in groupby(line, key=lambda one: unicodedata.category(one)[0] in _IN_WORDS):
        end = start + sum(1 for _ in characters)
        if is_word:
            yield start, end
        start = end


def _is_asked(word: str, terms: Sequence[str]) -> bool:
    return any(word.startswith(term[:-1]) if term.endswith(PREFIX) else word == term for term in terms)


_METADATA = """
    SELECT entry.origin, entry.seq, entry."at", entry.mesh, entry.sender, entry.destination_kind, entry.destination_ref,
        entry.message_id, entry.client_message_id, entry.size,
        list_transform(entry.recipients, lambda one: one.member) AS recipients, entry.mentions, entry.reason
    FROM history AS entry
    WHERE entry.origin LIKE 'relay:%' AND entry.kind = 'accepted' AND list_bool_and(list_transform($1, lambda asked: contains(
        lower(concat_ws(' ', mesh, sender, destination_ref, message_id, client_message_id,
            array_to_string(list_transform(recipients, lambda one: one.member), ' '), array_to_string(mentions, ' '))),
        asked)))
    ORDER BY entry."at" DESC, entry.seq DESC LIMIT $2
"""


def search_metadata(shelf: Shelf, asked: str, limit: int) -> list[dict[str, Any]]:
    """The messages of a relay's lake whose names and ids have all of these words, the newest first; a relay never sees the text."""
    # A part is looked for anyway, so the mark at the end of a beginning says nothing more.
    terms = _checked(filter(None, (word.rstrip(PREFIX) for word in readable(asked).lower().split())), asked)
    return shelf.look_up(_METADATA, [terms, limit])
