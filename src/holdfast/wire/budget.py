"""How many bytes may be held at once for everybody together, so that many who each keep their limit cannot fill memory."""

import asyncio
from collections import deque


class Budget:
    """Bytes that are taken and given back. Whoever waits for some gets them in turn."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.taken = 0

    def take_now(self, size: int) -> bool:
        """Take the bytes if they are there."""
        if self._waiting or not self._fits(size):
            return False
        self.taken += size
        return True

    async def take(self, size: int) -> None:
        """Take the bytes when they are there."""
        if self.take_now(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            self.give(0 if turn.cancelled() else size)  # and let those behind us have their turn
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
        # One that is larger than everything still passes when it is alone, or it would wait for ever.
        return self.taken == 0 or self.taken + size <= self._bytes_max
