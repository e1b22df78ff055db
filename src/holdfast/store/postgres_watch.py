"""The watch of relays that share one PostgreSQL: it tells that another has written, and which relay has the duty (sweeps).

One connection listens and holds the duty's lock. The server releases the lock when the connection ends, however it ends,
and ends it when its process is silent for too long; then another relay takes the duty. Correctness does not depend on it,
only how soon and how often work is done: a missed notice is made up by polling, and work done twice is harmless, because
every row is changed by compare-and-set.
"""

import threading
from collections.abc import Callable
from contextlib import suppress

import psycopg

from holdfast.store import faults
from holdfast.store.address import shown
from holdfast.store.engine import Row
from holdfast.store.postgres_session import DUTY_LOCK, WRITERS_CHANNEL, connect, meaning

LISTEN_S = 0.25
"""How long it listens before it sends a sign of life and asks for the duty."""

DUTY_WAIT_S = 3.0
"""How long `wait_for_duty` waits."""

RECONNECT_S = 1.0
"""How long it waits before it connects again."""

SILENCE_MAX_S = 20
"""After so long without a sign of life the server ends the connection, and with it the duty."""


class PostgresWatch:
    """Listens until it is closed; a lost connection is replaced."""

    def __init__(self, url: str, told: Callable[[], None], own_pid: Callable[[], int | None]) -> None:
        self.has_duty = False
        self._url = url
        self._told = told
        self._own_pid = own_pid
        self._ended = threading.Event()
        self._took = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="holdfast-watch", daemon=True)
        self._thread.start()

    def wait_for_duty(self) -> bool:
        return self._took.wait(DUTY_WAIT_S)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _listen(self) -> None:
        while not self._ended.is_set():
            with suppress(faults.Fault):  # the next read or write meets the same fault and reports it
                self._hear()
            self.has_duty = False
            self._took.clear()
            self._ended.wait(RECONNECT_S)

    def _hear(self) -> None:
        connection = connect(self._url)
        try:
            connection.execute(f"SET idle_session_timeout = '{SILENCE_MAX_S}s'")
            connection.execute(f"LISTEN {WRITERS_CHANNEL}")
            self._told()  # something may have been written before
            while not self._ended.is_set():
                if not self.has_duty and _took_duty(connection):
                    self.has_duty = True
                    self._took.set()
                for notice in connection.notifies(timeout=LISTEN_S):
                    if notice.pid != self._own_pid():
                        self._told()
                connection.execute("SELECT 1")
        except psycopg.Error as error:
            raise meaning(error, shown(self._url)) from error
        finally:
            connection.close()


def _took_duty(connection: "psycopg.Connection[Row]") -> bool:
    ((took,),) = connection.execute(f"SELECT pg_try_advisory_lock({DUTY_LOCK})").fetchall()
    return bool(took)
