"""The tables that are exported, as Arrow schemas, and how rows of the database become record batches of them.

A schema's names are the database's columns: the SQL is made from them. The only module that knows Arrow's types; only
the reader imports it, because the library is large.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types

from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import shown
from holdfast.store.engine import Row

_TIME = pa.timestamp("us", "UTC")
_FLAG = pa.bool_()
_NUMBER = pa.int64()
_TEXT = pa.string()
_BYTES = pa.binary()
_TEXTS = pa.list_(_TEXT)
_OUTCOME = pa.struct([pa.field("member", _TEXT), pa.field("outcome", _TEXT)])
_OUTCOMES = pa.list_(_OUTCOME)

_PAYLOAD = {"payload": "only when named in columns"}


def _always(name: str, type_: pa.DataType, metadata: dict[str, str] | None = None) -> pa.Field:
    return pa.field(name, type_, nullable=False, metadata=metadata)


TABLES: dict[str, pa.Schema] = {
    "history": pa.schema(
        [
            _always("seq", _NUMBER),
            _always("at", _TIME),
            _always("kind", _TEXT),
            pa.field("mesh", _TEXT),
            pa.field("message_id", _TEXT),
            pa.field("client_message_id", _TEXT),
            pa.field("sender", _TEXT),
            pa.field("epoch", _BYTES),
            pa.field("sequence", _NUMBER),
            pa.field("recipient", _TEXT),
            _always("recipients", _OUTCOMES),
            _always("mentions", _TEXTS),
            pa.field("destination_kind", _TEXT),
            pa.field("destination_ref", _TEXT),
            pa.field("event_id", _BYTES),
            pa.field("size", _NUMBER),
            pa.field("was_stored", _FLAG),
            pa.field("reason", _TEXT),
            _always("detail", _BYTES),
            _always("chain", _BYTES),
        ]
    ),
    "dedupe": pa.schema(
        [
            _always("mesh", _TEXT),
            _always("sender", _TEXT),
            _always("client_message_id", _TEXT),
            _always("event_id", _BYTES),
            _always("message_id", _TEXT),
            _always("seq", _NUMBER),
            _always("destination_kind", _TEXT),
            _always("destination_ref", _TEXT),
            _always("first_seen_at", _TIME),
            pa.field("expires_at", _TIME),
            _always("history_available", _FLAG),
            _always("skipped", _TEXTS),
        ]
    ),
    "message": pa.schema(
        [
            _always("message_id", _TEXT),
            _always("mesh", _TEXT),
            _always("sender", _TEXT),
            _always("client_message_id", _TEXT),
            _always("event_id", _BYTES),
            _always("seq", _NUMBER),
            _always("kind", _NUMBER),
            _always("destination_kind", _TEXT),
            _always("destination_ref", _TEXT),
            _always("event", _BYTES, _PAYLOAD),
            _always("size", _NUMBER),
            _always("accepted_at", _TIME),
            pa.field("expires_at", _TIME),
        ]
    ),
    "delivery": pa.schema(
        [
            _always("mesh", _TEXT),
            _always("member", _TEXT),
            _always("seq", _NUMBER),
            _always("message_id", _TEXT),
            _always("state", _TEXT),
            _always("expires_at", _TIME),
            pa.field("closed_at", _TIME),
            pa.field("was_stored", _FLAG),
        ]
    ),
    "mention": pa.schema(
        [
            _always("mesh", _TEXT),
            _always("member", _TEXT),
            _always("seq", _NUMBER),
            _always("message_id", _TEXT),
        ]
    ),
}


class Selection(msgspec.Struct, frozen=True):
    """Some columns of one table."""

    table: str
    schema: Any  # pa.Schema

    @classmethod
    def of(cls, table: str, columns: Sequence[str] | None) -> "Selection":
        """The columns that were asked for, in that order; None is all of them but payloads."""
        if table not in TABLES:
            raise Refused(Refusal.TABLE_UNKNOWN, f"there is no table {shown(table)}; there are {', '.join(TABLES)}")
        schema = TABLES[table]
        if columns is None:
            return cls(table, pa.schema(field for field in schema if not field.metadata))
        for column in columns:
            if column not in schema.names:
                detail = f"{table} has no column {shown(column)}; it has {', '.join(schema.names)}"
                raise Refused(Refusal.COLUMN_UNKNOWN, detail)
        if not columns or len(set(columns)) < len(columns):
            raise Refused(Refusal.COLUMN_UNKNOWN, f"columns of {table}: each at most once, and at least one")
        return cls(table, pa.schema(schema.field(column) for column in columns))

    @property
    def statement(self) -> str:
        """Rows with after < seq ≤ until, in order; `seq` itself comes first, whatever was asked for."""
        columns = ", ".join(("seq", *self.schema.names))
        return f"SELECT {columns} FROM {self.table} WHERE seq > :after AND seq <= :until ORDER BY seq LIMIT :limit"  # noqa: S608 - names out of TABLES

    def batch(self, rows: Sequence[Row]) -> Any:
        """Rows of the statement as one record batch. Built by column: an object per value is what takes the time."""
        columns = list(zip(*rows, strict=True))[1:] if rows else [()] * len(self.schema)
        arrays = [_array(field.type, column) for field, column in zip(self.schema, columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _array(type_: pa.DataType, values: Sequence[Any]) -> pa.Array:
    convert = _CONVERSIONS.get(type_)
    return pa.array(values, type_) if convert is None else convert(values)


def _times(values: Sequence[int | None]) -> pa.Array:
    return pa.array(values, _NUMBER).view(_TIME)  # the same bits; reading integers as times is six times slower


def _flags(values: Sequence[int | None]) -> pa.Array:
    return pa.array(values, _NUMBER).cast(_FLAG)


_texts_decoder = msgspec.json.Decoder(list[list[str]])
_outcomes_decoder = msgspec.json.Decoder(list[list[tuple[str, str]]])


def _texts(values: Sequence[str]) -> pa.Array:
    lists = _texts_decoder.decode(_as_one(values))
    return pa.ListArray.from_arrays(_offsets(lists), pa.array(list(chain.from_iterable(lists)), _TEXT), type=_TEXTS)


def _outcomes(values: Sequence[str]) -> pa.Array:
    lists = _outcomes_decoder.decode(_as_one(values))
    pairs = list(chain.from_iterable(lists))
    members, outcomes = zip(*pairs, strict=True) if pairs else ((), ())
    fields = [pa.array(members, _TEXT), pa.array(outcomes, _TEXT)]
    structs = pa.StructArray.from_arrays(fields, fields=list(_OUTCOME))
    return pa.ListArray.from_arrays(_offsets(lists), structs, type=_OUTCOMES)


def _as_one(documents: Sequence[str]) -> str:
    """A column of JSON texts as one: read in one go, they take a third of the time."""
    return f"[{','.join(documents)}]"


def _offsets(lists: Sequence[Sequence[object]]) -> pa.Array:
    return pa.array([0, *accumulate(map(len, lists))], pa.int32())


_CONVERSIONS: dict[pa.DataType, Callable[[Sequence[Any]], pa.Array]] = {
    _TIME: _times,
    _FLAG: _flags,
    _TEXTS: _texts,
    _OUTCOMES: _outcomes,
}
