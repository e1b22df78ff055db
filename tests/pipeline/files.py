"""Databases of a relay and its devices read as the export would give them, straight from the files."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from holdfast.device.home import Home
from holdfast.protocol.history import Entry, Kind
from holdfast.relay.identity import Identity
from holdfast.store import history
from holdfast.store.sqlite import SqliteEngine
from tests.pipeline.tables.memory_lake import Part, Rows

COLUMNS = {
    "dedupe": "mesh, sender, client_message_id, event_id, message_id, seq, destination_kind, destination_ref, history_available",
    "message": "message_id, mesh, sender, client_message_id, event_id, seq, kind, destination_kind, destination_ref, size",
    "delivery": "mesh, member, seq, message_id, state, was_stored",
    "mention": "mesh, member, seq, message_id",
}
_FLAGS = ("history_available", "was_stored")


@dataclass(frozen=True)
class Files:
    """What `holdfast generate` made."""

    out: Path

    @property
    def database(self) -> Path:
        return self.out / "relay" / "relay.db"

    @property
    def homes(self) -> list[Path]:
        return sorted((self.out / "homes").iterdir())

    @property
    def origin(self) -> str:
        return f"relay:{Identity.read(self.out / 'relay').pubkey}"

    @property
    def log_id(self) -> bytes:
        return _head(self.database).log_id

    def entries(self) -> list[Entry]:
        with closing(SqliteEngine(self.database, read_only=True)) as engine:
            return list(history.walk(engine))

    def device_members(self) -> list[tuple[str, str]]:
        """(mesh, member) of each home."""
        found = [Home(home).membership() for home in self.homes]
        return [(one.mesh, one.member) for one in found if one is not None]

    def anchors(self) -> list[tuple[int, bytes]]:
        """Position and chain of everything that the relay signed for some home."""
        details = [entry.detail for part in self.device_parts() for entry in part.entries if entry.kind is Kind.RELAYED]
        return sorted({(int.from_bytes(detail[16:24], "big"), detail[24:56]) for detail in details})

    def parts(self) -> list[Part]:
        return [part_of(self.origin, self.database), *self.device_parts()]

    def device_parts(self) -> list[Part]:
        return [
            part_of(f"device:{mesh}/{member}", home / "device.db")
            for home, (mesh, member) in zip(self.homes, self.device_members(), strict=True)
        ]

    def state(self) -> dict[str, Rows]:
        page = {"origin": self.origin, "log_id": self.log_id}
        with closing(apsw.Connection(str(self.database), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            tables = {table: [{**page, **row} for row in _rows(connection, table)] for table in COLUMNS}
        return {**tables, "operation": [row for home in self.homes for row in self._operations(home)]}

    def _operations(self, home: Path) -> Rows:
        mesh, member = self.device_members()[self.homes.index(home)]
        page = {"origin": f"device:{mesh}/{member}", "log_id": _head(home / "device.db").log_id}
        with closing(apsw.Connection(str(home / "device.db"), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            found = connection.execute(
                "SELECT history.seq, operation.sequence, operation.client_message_id, operation.status "
                "FROM history JOIN operation_log AS operation ON operation.sequence = history.sequence "
                "WHERE history.kind = 'enqueued'"
            )
            names = ("seq", "sequence", "client_message_id", "status")
            return [{**page, **dict(zip(names, row, strict=True))} for row in found]


def part_of(origin: str, database: Path) -> Part:
    """All of one history."""
    head = _head(database)
    with closing(SqliteEngine(database, read_only=True)) as engine:
        return Part(origin, head.log_id, head.anchor_seq, head.seq, list(history.walk(engine)))


def _head(database: Path) -> history.Head:
    with closing(SqliteEngine(database, read_only=True)) as engine, engine.read() as transaction:
        return history.head(transaction)


def _rows(connection: apsw.Connection, table: str) -> list[dict[str, Any]]:
    names = COLUMNS[table].split(", ")
    rows = connection.execute(f"SELECT {COLUMNS[table]} FROM {table}")
    return [
        {
            name: bool(value) if name in _FLAGS and value is not None else value
            for name, value in zip(names, row, strict=True)
        }
        for row in rows
    ]
