"""Which lines of the programs a world has run through, folder by folder."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "holdfast"
FOLDERS = ("protocol", "store", "wire", "relay", "device", "hook")


class Covered:
    """Notes every line of ours that runs while it is on."""

    def __init__(self) -> None:
        self._seen: dict[str, set[int]] = {}
        self._prefix = str(SOURCE)

    def start(self) -> None:
        sys.settrace(self._enter)

    def stop(self) -> None:
        sys.settrace(None)

    def folders(self) -> dict[str, tuple[int, int]]:
        """Of each folder, how many lines ran, and how many could."""
        return {folder: self._count(folder) for folder in FOLDERS}

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(self._prefix):
            return None
        seen = self._seen.setdefault(name, set())

        def step(inner: FrameType, event: str, argument: Any) -> Any:
            seen.add(inner.f_lineno)
            return step

        seen.add(frame.f_lineno)
        return step

    def _count(self, folder: str) -> tuple[int, int]:
        ran = whole = 0
        for path in sorted((SOURCE / folder).rglob("*.py")):
            possible = set(_lines(compile(path.read_text(), str(path), "exec")))
            ran += len(possible & self._seen.get(str(path), set()))
            whole += len(possible)
        return ran, whole


def _lines(code: CodeType) -> Iterator[int]:
    """Every line that can run."""
    yield from (line for _, _, line in code.co_lines() if line)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _lines(constant)
