"""Tables of the export, and how rows of the database become their record batches.

A schema's field names are the database's columns: the SQL is made from them. Programs describe their tables with the types
defined here. Only reader processes import this module, because Arrow is a large library.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types

from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import shown
from holdfast.store.engine import Row

TIME = pa.timestamp("us", "UTC")
FLAG = pa.bool_()
NUMBER = pa.int64()
TEXT = pa.string()
BYTES = pa.binary()
TEXTS = pa.list_(TEXT)
_OUTCOME = pa.struct([pa.field("member", TEXT), pa.field("outcome", TEXT)])
_OUTCOMES = pa.list_(_OUTCOME)

PAYLOAD = {"payload": "only when named in columns"}


def always(name: str, type_: pa.DataType, metadata: dict[str, str] | None = None) -> pa.Field:
    return pa.field(name, type_, nullable=False, metadata=metadata)


class Table(msgspec.Struct, frozen=True):
    """An exported table: rows of `source`, each with the `seq` of the history entry that made it."""

    schema: Any  # pa.Schema
    source: str  # a table of the database, or a select in brackets


HISTORY = Table(
    pa.schema(
        [
            always("seq", NUMBER),
            always("at", TIME),
            always("kind", TEXT),
            pa.field("mesh", TEXT),
            pa.field("message_id", TEXT),
            pa.field("client_message_id", TEXT),
            pa.field("sender", TEXT),
            pa.field("epoch", BYTES),
            pa.field("sequence", NUMBER),
            pa.field("recipient", TEXT),
            always("recipients", _OUTCOMES),
            always("mentions", TEXTS),
            pa.field("destination_kind", TEXT),
            pa.field("destination_ref", TEXT),
            pa.field("event_id", BYTES),
            pa.field("size", NUMBER),
            pa.field("was_stored", FLAG),
            pa.field("reason", TEXT),
            always("detail", BYTES),
            always("chain", BYTES),
        ]
    ),
    source="history",
)
"""The history table, the same in every program."""


class Selection(msgspec.Struct, frozen=True):
    """Some columns of one table."""

    source: str
    schema: Any  # pa.Schema

    @classmethod
    def of(cls, tables: Mapping[str, Table], name: str, columns: Sequence[str] | None) -> "Selection":
        """The wanted columns of a table, in that order; None means all except payloads."""
        if name not in tables:
            raise Refused(Refusal.TABLE_UNKNOWN, f"there is no table {shown(name)}; there are {', '.join(tables)}")
        schema, source = tables[name].schema, tables[name].source
        if columns is None:
            return cls(source, pa.schema(field for field in schema if not field.metadata))
        for column in columns:
            if column not in schema.names:
                detail = f"{name} has no column {shown(column)}; it has {', '.join(schema.names)}"
                raise Refused(Refusal.COLUMN_UNKNOWN, detail)
        if not columns or len(set(columns)) < len(columns):
            raise Refused(Refusal.COLUMN_UNKNOWN, f"columns of {name}: each at most once, and at least one")
        return cls(source, pa.schema(schema.field(column) for column in columns))

    @property
    def statement(self) -> str:
        """The SELECT of rows with after < seq ≤ until, in order; `seq` comes first, even if not wanted."""
        columns = ", ".join(("seq", *self.schema.names))
        return f"SELECT {columns} FROM {self.source} WHERE seq > :after AND seq <= :until ORDER BY seq LIMIT :limit"  # noqa: S608 - names and sources of tables, never of callers

    def batch(self, rows: Sequence[Row]) -> Any:
        """The statement's rows as one record batch, built column by column, because an object per value is slow."""
        columns = list(zip(*rows, strict=True))[1:] if rows else [()] * len(self.schema)
        arrays = [_array(field.type, column) for field, column in zip(self.schema, columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _array(type_: pa.DataType, values: Sequence[Any]) -> pa.Array:
    convert = _CONVERSIONS.get(type_)
    return pa.array(values, type_) if convert is None else convert(values)


def _times(values: Sequence[int | None]) -> pa.Array:
    return pa.array(values, NUMBER).view(TIME)  # the same bits; reading integers as times is six times slower


def _flags(values: Sequence[int | None]) -> pa.Array:
    return pa.array(values, NUMBER).cast(FLAG)


_texts_decoder = msgspec.json.Decoder(list[list[str]])
_outcomes_decoder = msgspec.json.Decoder(list[list[tuple[str, str]]])


def _texts(values: Sequence[str]) -> pa.Array:
    lists = _texts_decoder.decode(_as_one(values))
    return pa.ListArray.from_arrays(_offsets(lists), pa.array(list(chain.from_iterable(lists)), TEXT), type=TEXTS)


def _outcomes(values: Sequence[str]) -> pa.Array:
    lists = _outcomes_decoder.decode(_as_one(values))
    pairs = list(chain.from_iterable(lists))
    members, outcomes = zip(*pairs, strict=True) if pairs else ((), ())
    fields = [pa.array(members, TEXT), pa.array(outcomes, TEXT)]
    structs = pa.StructArray.from_arrays(fields, fields=list(_OUTCOME))
    return pa.ListArray.from_arrays(_offsets(lists), structs, type=_OUTCOMES)


def _as_one(documents: Sequence[str]) -> str:
    """A column of JSON texts joined into one, which takes a third of the time to decode."""
    return f"[{','.join(documents)}]"


def _offsets(lists: Sequence[Sequence[object]]) -> pa.Array:
    return pa.array([0, *accumulate(map(len, lists))], pa.int32())


_CONVERSIONS: dict[pa.DataType, Callable[[Sequence[Any]], pa.Array]] = {
    TIME: _times,
    FLAG: _flags,
    TEXTS: _texts,
    _OUTCOMES: _outcomes,
}
