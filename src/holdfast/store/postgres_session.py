"""Connections to PostgreSQL: values as on SQLite, timeouts for stalled sessions, and only servers that are durable."""

from collections.abc import Sequence
from enum import Enum
from typing import Any

import psycopg
from psycopg.adapt import Buffer, Loader
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import StrDumper

from holdfast.store import faults
from holdfast.store.address import shown
from holdfast.store.engine import ConstraintViolated, Row

CONNECT_TIMEOUT_S = 5
"""How long connecting may take."""

TURN_TIMEOUT_S = 25
"""How long a writer waits for its turn."""

STALL_TIMEOUT_S = 10
"""How long a writer may be silent during its turn before the server ends it, so that a stopped process stops no other."""

READ_STALL_TIMEOUT_S = 60
"""How long a reader may be silent in its transaction; it only keeps the server from cleaning up."""

VERSION_MIN = 140_000
"""The first server version with all features that are used here, in the server's own notation."""

WRITE_LOCK = 0x686F6C64_66617374  # "holdfast" in ASCII; the advisory lock that all writers of a database take
DUTY_LOCK = WRITE_LOCK + 1  # held by the relay that has the duty
WRITERS_CHANNEL = "holdfast"

# Ends a session that holds the write lock and does not read the server's answers: no timeout of the server covers that.
_END_DEAF = f"""
SELECT count(*) FROM (
    SELECT pg_terminate_backend(activity.pid, {1000 * CONNECT_TIMEOUT_S}) AS is_ended
    FROM pg_catalog.pg_locks AS held
    JOIN pg_catalog.pg_stat_activity AS activity ON activity.pid = held.pid AND activity.datname = current_database()
    WHERE held.locktype = 'advisory' AND held.granted
      AND held.classid = {WRITE_LOCK >> 32} AND held.objid = {WRITE_LOCK & 0xFFFFFFFF} AND held.objsubid = 1
      AND activity.wait_event = 'ClientWrite' AND activity.query_start < now() - $1 * interval '1 second'
) AS deaf WHERE is_ended
"""  # noqa: S608 - numbers of ours

DURABLE = {
    "fsync": ("on",),
    "full_page_writes": ("on",),
    "synchronous_commit": ("on", "local", "remote_write", "remote_apply"),
}
DURABLE_NOW = ", ".join(f"current_setting('{name}')" for name in DURABLE)
"""SQL: what these settings are, in their order."""

# Errors of PostgreSQL, by the beginning of their code, and our faults for them. The first match counts.
_FAULTS: tuple[tuple[str, type[faults.Fault]], ...] = (
    ("53100", faults.DiskFull),
    ("58030", faults.DiskFailed),
    ("XX001", faults.Corrupt),
    ("XX002", faults.Corrupt),
    ("25006", faults.NoAccess),  # the transaction is read-only
    ("28", faults.NotLetIn),
    ("3D", faults.NotLetIn),
    ("42501", faults.NotLetIn),
    ("42", faults.NotUnderstood),
    ("40", faults.Busy),  # rolled back in favour of another
    ("55P03", faults.Busy),  # waited too long for its turn
    ("57014", faults.Busy),  # cancelled
    ("53200", faults.Busy),  # out of memory
    ("53", faults.ServerGone),  # too many connections
    ("08", faults.ServerGone),
    ("57P", faults.ServerGone),  # shut down, crashed, or starting
    ("25P03", faults.ServerGone),  # idle for too long in a transaction
)

_BY_KEY = " -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c jit=off"
"""For a serving relay, which reads few rows by key. The server plans a statement once, while its tables are small and it has
no statistics, and would otherwise keep scanning whole tables after they have grown."""


def connect(url: str, *, durable: bool = False, by_key: bool = False) -> "psycopg.Connection[Row]":
    """Open a connection. A `durable` one, for writing, is refused if the server's settings may lose commits."""
    where = shown(url)
    stall_s = STALL_TIMEOUT_S if durable else READ_STALL_TIMEOUT_S
    settings = {
        "application_name": "holdfast",
        "client_encoding": "UTF8",
        "connect_timeout": CONNECT_TIMEOUT_S,
        "keepalives_idle": 10,
        "tcp_user_timeout": 1000 * READ_STALL_TIMEOUT_S,
        "options": f"-c lock_timeout={TURN_TIMEOUT_S}s -c idle_in_transaction_session_timeout={stall_s}s"
        + (_BY_KEY if by_key else ""),
    }
    try:
        connection: psycopg.Connection[Row] = psycopg.Connection.connect(
            url,
            autocommit=True,
            cursor_factory=psycopg.RawCursor,
            **settings,  # type: ignore[arg-type]  # stubs know one type of value
        )
    except psycopg.ProgrammingError:  # not chained: its text may quote a password
        raise faults.NotLetIn(where, "the URL cannot be read: write % in it as %25, a space as %20") from None
    except psycopg.Error as error:
        raise meaning(error, where) from error
    try:
        _adapt(connection)
        _check(connection, where)
        if durable or by_key:
            _refuse_standby(connection, where)
        if durable:
            check_durable(connection.execute(f"SELECT {DURABLE_NOW}").fetchall()[0], where)
    except psycopg.Error as error:
        connection.close()
        raise meaning(error, where) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _check(connection: "psycopg.Connection[Row]", where: str) -> None:
    if connection.info.server_version < VERSION_MIN:
        raise faults.ServerUnfit(
            where, f"it is version {connection.info.parameter_status('server_version')}; 14 is the first that will do"
        )
    if connection.info.parameter_status("server_encoding") != "UTF8":
        raise faults.ServerUnfit(where, "its database is not in UTF8; make one with ENCODING 'UTF8'")


def _refuse_standby(connection: "psycopg.Connection[Row]", where: str) -> None:
    """A standby takes no writes, and may not have yet what a relay that reads there has said yes to."""
    # Asked, because a pooler may repeat to everybody what the server told it long ago.
    ((is_standby,),) = connection.execute("SELECT pg_is_in_recovery()").fetchall()
    if is_standby:
        raise faults.ServerUnfit(where, "it is a standby and takes no writes; name its primary")


def check_durable(settings: Sequence[str], where: str) -> None:
    """Refuse a server whose settings, in the order of `DURABLE`, may lose commits."""
    for (name, allowed), setting in zip(DURABLE.items(), settings, strict=True):
        if setting not in allowed:
            raise faults.NotDurable(where, f"{name} is {setting}")


def end_deaf(connection: "psycopg.Connection[Row]") -> bool:
    """End the session of a writer that does not read the server's answers; returns whether there was one."""
    try:
        connection.execute("ROLLBACK")
        ((ended,),) = connection.execute(_END_DEAF, [STALL_TIMEOUT_S]).fetchall()
    except psycopg.Error:  # the caller reports the error that led here
        return False
    return bool(ended)


def meaning(error: psycopg.Error, where: str) -> Exception:
    """Our exception for an error of PostgreSQL."""
    # A value that no column can hold is the caller's mistake, like a row that breaks a constraint.
    if isinstance(error, psycopg.IntegrityError | psycopg.DataError | psycopg.errors.ProgramLimitExceeded):
        return ConstraintViolated(str(error))
    return _fault(error)(where, str(error).strip().partition("\n")[0])


def _fault(error: psycopg.Error) -> type[faults.Fault]:
    if error.sqlstate is None:  # the connection itself failed
        is_lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return faults.ServerGone if is_lost else faults.Unexpected
    return next((fault for beginning, fault in _FAULTS if error.sqlstate.startswith(beginning)), faults.Unexpected)


class _Whole(Loader):
    """Loads `numeric` (sums) as int, as SQLite does."""

    def load(self, data: Buffer) -> int:
        return int(bytes(data))


class _Flag(Loader):
    def load(self, data: Buffer) -> int:
        return int(bytes(data) == b"t")


class _Word(StrDumper):
    """Dumps a member of an enum as its text."""

    def dump(self, obj: Any) -> Buffer | None:
        return super().dump(obj.value)


def _adapt(connection: "psycopg.Connection[Row]") -> None:
    adapters = connection.adapters
    adapters.register_dumper(int, Int8Dumper)  # one type for all numbers, so that a statement stays prepared
    adapters.register_dumper(bool, Int8Dumper)
    adapters.register_dumper(Enum, _Word)
    adapters.register_loader("numeric", _Whole)
    adapters.register_loader("bool", _Flag)
