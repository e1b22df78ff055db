"""A device at work: its home is locked, its key is loaded, its database is open. There is one per home at a time."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from holdfast.device import database, feed_relays, member_keys, operations
from holdfast.device.home import LOCK_WAIT_S, Home
from holdfast.device.together import carry_out
from holdfast.protocol import keys, ulid
from holdfast.store.engine import Transaction
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.world import Clock, Random, wall_clock
from holdfast.store.writer import Later, Writer

T = TypeVar("T")


class Device:
    """One home's database and keys."""

    def __init__(
        self,
        home: Home,
        engine: SqliteEngine,
        secret: bytes,
        clock: Clock,
        random: Random,
        *,
        threaded: bool = False,
        later: Later | None = None,
    ) -> None:
        self.home = home
        self.clock = clock
        self._take_key(secret, home, clock())
        self.random = random
        self._engine = engine
        self._writer: Writer[Callable[[Transaction], Any], Any] = Writer(
            engine, carry_out, inline=not threaded, later=later
        )
        self.epoch = self.look(operations.epoch)

    def do(self, request: Callable[[Transaction], T]) -> T:
        """Run a write transaction; it is on disk when this returns."""
        answer: T = self._writer.ask(request)
        return answer

    async def do_soon(self, request: Callable[[Transaction], T]) -> T:
        """The same without blocking the event loop; requests of one moment share a commit."""
        answer: T = await self._writer.ask_soon(request)
        return answer

    def look(self, query: Callable[[Transaction], T]) -> T:
        """Run a query in one read transaction."""
        with self._engine.read() as transaction:
            return query(transaction)

    async def take_new_epoch(self) -> None:
        """Go on as another sender, because a relay has sends or edits of this epoch that the log does not know."""
        go_on = feed_relays.go_on_as_another
        self.epoch = await self.do_soon(lambda tx: go_on(tx, self.clock(), self.random, self.pubkey))

    def take_key(self, secret: bytes) -> None:
        """Use this member key from now on; the earlier keys still open what was sealed to them."""
        self._take_key(secret, self.home, self.clock())

    def secret_of(self, pubkey: str) -> bytes | None:
        """The secret of a public key that is or was this member's."""
        return self._secrets.get(pubkey)

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """All secrets that may open something: the one in use, then the earlier ones."""
        return tuple(self._secrets.values())

    def drop_expired_keys(self) -> int:
        """Delete the earlier keys whose time is over; returns how many."""
        dropped = member_keys.drop_expired(self.home, self.clock())
        if dropped:
            self.take_key(self.secret)
        return dropped

    def _take_key(self, secret: bytes, home: Home, now: int) -> None:
        self.secret = secret
        self.pubkey = keys.public_key(secret)
        self._secrets = {self.pubkey: secret} | member_keys.secrets(member_keys.archived(home, now))

    def mint(self) -> str:
        """A new id."""
        return ulid.mint(self.clock(), self.random(ulid.RANDOM_BYTES))

    def close(self) -> None:
        self._writer.close()
        self._engine.close()


@contextmanager
def at_work(
    home: Home,
    *,
    create: bool = False,
    clock: Clock = wall_clock,
    random: Random = os.urandom,
    wait_s: float = LOCK_WAIT_S,
    threaded: bool = False,
    later: Later | None = None,
    open_engine: Callable[[Path], SqliteEngine] = SqliteEngine,
) -> Iterator[Device]:
    """Lock a home and open its database and key; `create` makes a new home where there is none.

    `threaded` gives the writer a thread, so that the event loop need not wait for the disk. `later` schedules the writer on
    the loop instead. `open_engine` opens the database.
    """
    with home.entered(create=create, wait_s=wait_s):
        secret = home.secret(random)
        home.membership()  # refuses a damaged home before anything in it is touched
        engine = open_engine(home.database)
        try:
            database.prepare(engine, clock, random)
            device = Device(home, engine, secret, clock, random, threaded=threaded, later=later)
        except BaseException:
            engine.close()
            raise
        try:
            yield device
        finally:
            device.close()
