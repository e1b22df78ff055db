"""Tells any number of listeners that something has changed; they look up themselves what it is."""

import asyncio


class Changes:
    """A number that grows with every change."""

    def __init__(self) -> None:
        self.version = 0
        self._next: asyncio.Event = asyncio.Event()

    def tell(self) -> None:
        """Wake all listeners."""
        self.version += 1
        changed, self._next = self._next, asyncio.Event()
        changed.set()

    async def wait(self, after: int) -> int:
        """Wait until the number is greater than `after`; returns it."""
        while self.version <= after:
            await self._next.wait()
        return self.version
