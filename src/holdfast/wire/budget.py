"""A budget of bytes for all connections together, so that many within their own limits cannot fill the memory."""

import asyncio
from collections import deque


class Budget:
    """Bytes that are taken and given back; those who wait are served in order."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.taken = 0

    def take_now(self, size: int) -> bool:
        """Take the bytes if they are free; returns whether they were."""
        if self._waiting or not self._fits(size):
            return False
        self.taken += size
        return True

    async def take(self, size: int) -> None:
        """Take the bytes, waiting until they are free."""
        if self.take_now(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            self.give(0 if turn.cancelled() else size)  # and serve those who wait behind us
            raise

    def give(self, size: int) -> None:
        """Give bytes back."""
        self.taken -= size
        while self._waiting:
            wanted, turn = self._waiting[0]
            if not turn.done():
                if not self._fits(wanted):
                    return
                self.taken += wanted
                turn.set_result(None)
            self._waiting.popleft()

    def _fits(self, size: int) -> bool:
        # A size above the whole budget passes when nothing else is taken; otherwise it would wait for ever.
        return self.taken == 0 or self.taken + size <= self._bytes_max
