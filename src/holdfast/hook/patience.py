"""Waiting: for a store that has no time, and for something to happen."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from holdfast.hook.store import Store
from holdfast.store import faults
from holdfast.store.engine import Transaction

FAULT_WAIT_S = 1.0  # before the next try after a fault that may pass

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class Patience:
    """Repeats transactions until the store is free: the result of a handler must be stored some day."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_failing = False  # it had no time when it was last asked

    async def do(self, request: Callable[[Transaction], T]) -> T:
        """Run a transaction that writes."""
        return await self.patiently(lambda: self._store.do_soon(request))

    async def patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do some work, and repeat it after a temporary fault."""
        while True:
            try:
                answer = await work()
            except faults.Fault as fault:
                if not fault.temporary:
                    raise
                if not self.is_failing:
                    _log.error("the hook store failed; it is tried until it has time", detail=str(fault))
                self.is_failing = True
                await asyncio.sleep(FAULT_WAIT_S)
            else:
                self.is_failing = False
                return answer


async def woken_or_after(woken: asyncio.Event, wait_s: float) -> bool:
    """Wait for the event, at most this long; whether it was set."""
    try:
        async with asyncio.timeout(wait_s):
            await woken.wait()
    except TimeoutError:
        return False
    return True
