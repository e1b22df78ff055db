"""Named statements in `.sql` files: `-- name: x`, then comment lines with the reason, then the SQL."""

import re
from collections.abc import Iterator, Mapping
from importlib import resources

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


class Statement(str):
    """SQL text with its name and the reason written above it."""

    __slots__ = ("name", "why")
    name: str
    why: str


class Statements(Mapping[str, Statement]):
    """The statements of one file, by name."""

    def __init__(self, package: str, file: str) -> None:
        text = resources.files(package).joinpath(file).read_text(encoding="utf-8")
        _, *parts = _NAME.split(text)
        names, bodies = parts[::2], parts[1::2]
        self._statements = {name: _statement(name, body) for name, body in zip(names, bodies, strict=True)}
        if len(self._statements) != len(names):
            raise ValueError(f"{package}/{file} gives one name to two statements")

    def __getitem__(self, name: str) -> Statement:
        return self._statements[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._statements)

    def __len__(self) -> int:
        return len(self._statements)


def _statement(name: str, body: str) -> Statement:
    lines = body.strip().splitlines()
    comment = [line.removeprefix("--").strip() for line in lines if line.startswith("--")]
    statement = Statement("\n".join(line for line in lines if not line.startswith("--")))
    statement.name = name
    statement.why = " ".join(comment)
    return statement
