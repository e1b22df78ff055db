"""Word that something has changed, for any number of listeners; what it is, they look up themselves."""

import asyncio


class Changes:
    """A number that grows with every change."""

    def __init__(self) -> None:
        self.version = 0
        self._next: asyncio.Event = asyncio.Event()

    def tell(self) -> None:
        """Something has changed."""
        self.version += 1
        changed, self._next = self._next, asyncio.Event()
        changed.set()

    async def wait(self, after: int) -> int:
        """The number now, as soon as it is past this one."""
        while self.version <= after:
            await self._next.wait()
        return self.version
