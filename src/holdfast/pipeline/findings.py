"""The findings of a lake, counted, and the first of them. There may be millions, so nothing here reads all of their rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.pipeline.finding import COLUMNS

_COLUMNS = ", ".join(f'"{field.name}"' for field in COLUMNS.fields)

OF_HISTORY = "history/"
"""How the keys of findings begin that say that `history` broke its rule."""

_OF_LOG = "^[0-9a-f]{32}/"
"""How the keys of findings begin that name an entry of a log."""

TABLE_CHANGED = "table_changed"
"""The kind of findings that say that somebody else than a batch changed a table; their keys begin with its name."""


@dataclass(frozen=True)
class Count:
    """The number of violations, and of all findings by kind."""

    violations: int
    kinds: Mapping[str, int]

    @property
    def all(self) -> int:
        return sum(self.kinds.values())


@dataclass(frozen=True)
class Files:
    """The files of a findings table, and the function that gives the SQL relation of some of them."""

    paths: Sequence[Path]
    relation: Callable[[Sequence[Path]], str]


@dataclass(frozen=True)
class Findings:
    """The rows of all findings tables as they are after a batch."""

    tables: Mapping[str, Files]
    answer: Callable[[str], list[dict[str, Any]]]

    def first(self, most: int) -> list[dict[str, Any]]:
        """At most so many findings, violations first, each with the name of its table."""
        order = 'is_violation DESC, kind, key, "table", origin'
        return self.answer(f"SELECT * FROM ({self._rows}) ORDER BY {order} LIMIT {most}")  # noqa: S608 - a number

    def count(self) -> Count:
        sql = f"""
            SELECT kind, count(*) AS rows, count(*) FILTER (is_violation) AS violations FROM ({self._rows}) GROUP BY kind
        """  # noqa: S608 - our own words
        rows = self.answer(sql)
        return Count(sum(row["violations"] for row in rows), {row["kind"]: row["rows"] for row in rows})

    def first_of_each(self) -> list[dict[str, Any]]:
        """The finding with the least position per table, history, log and kind; and every one that says that somebody changed a table, or
        that `history` broke its rule."""
        names = '"table", origin, kind'
        sql = f"""
            SELECT {names}, arg_min(key, seq) AS key, min(seq) AS seq FROM ({self._rows}) WHERE seq IS NOT NULL
            GROUP BY {names}, regexp_extract(key, '{_OF_LOG}')
            UNION ALL
            SELECT {names}, key, seq FROM ({self._rows}) WHERE kind = '{TABLE_CHANGED}' OR starts_with(key, '{OF_HISTORY}')
        """  # noqa: S608 - our own words
        return self.answer(sql)

    def new_violations(self, before: "Findings") -> int:
        """How many violations there are that an earlier batch did not have. Only files that it did not have are read for them."""
        count = 0
        for name, now in self.tables.items():
            known = before.tables[name]
            added = sorted(set(now.paths) - set(known.paths))
            if added:
                violations = "SELECT origin, kind, key FROM {} WHERE is_violation"
                new, old = (violations.format(one) for one in (now.relation(added), known.relation(known.paths)))
                count += self.answer(f"SELECT count(*) AS rows FROM ({new} EXCEPT {old})")[0]["rows"]  # noqa: S608 - our own words
        return count

    @property
    def _rows(self) -> str:
        return " UNION ALL ".join(
            f"SELECT '{name}' AS \"table\", {_COLUMNS} FROM {one.relation(one.paths)}"  # noqa: S608 - names out of the registry
            for name, one in self.tables.items()
        )
