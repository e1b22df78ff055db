"""An event loop on which time passes only when everybody waits: an hour of retries takes a moment."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

START = 1_700_000_000_000_000  # microseconds; the loop itself counts from 0, where seconds have digits enough


class _Selector(selectors.SelectSelector):
    """Instead of waiting, moves the clock to when somebody has something to do."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found and timeout is None:
            raise RuntimeError("everybody waits for something that will never happen")
        if not found and timeout is not None:
            self.now_s += max(timeout, 0.0)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop with a clock of its own."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s

    def clock(self) -> int:
        """The same time as the store has it, in microseconds."""
        return START + round(self._virtual.now_s * 1_000_000)


def run(work: Coroutine[Any, Any, T], loop: VirtualLoop) -> T:
    """Run something to its end on a virtual loop; nothing may be left over."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(work)
