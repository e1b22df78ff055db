"""Columns and their types without Spark, which takes a second to load and is not needed to read a lake.

A schema here has those methods of Spark's own that we call; the two are converted into each other by the JSON that they share.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_ARROW = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
}


@dataclass(frozen=True)
class Plain:
    """A simple type, by Spark's name of it."""

    name: str

    def typeName(self) -> str:  # noqa: N802 - as Spark calls it
        return self.name

    def jsonValue(self) -> Any:  # noqa: N802 - likewise
        return self.name


@dataclass(frozen=True)
class Array:
    """A list of values of one type."""

    elementType: "Type"  # noqa: N815 - likewise
    containsNull: bool = True  # noqa: N815 - likewise

    def typeName(self) -> str:  # noqa: N802 - likewise
        return "array"

    def jsonValue(self) -> Any:  # noqa: N802 - likewise
        return {"type": "array", "elementType": self.elementType.jsonValue(), "containsNull": self.containsNull}


@dataclass(frozen=True)
class Field:
    """A column."""

    name: str
    dataType: "Type"  # noqa: N815 - likewise
    nullable: bool = True

    def jsonValue(self) -> Any:  # noqa: N802 - likewise
        return {"name": self.name, "type": self.dataType.jsonValue(), "nullable": self.nullable, "metadata": {}}


@dataclass(frozen=True)
class Struct:
    """The columns of a table, or the parts of a struct value."""

    fields: tuple[Field, ...]

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __getitem__(self, name: str) -> Field:
        return next(field for field in self.fields if field.name == name)

    def fieldNames(self) -> list[str]:  # noqa: N802 - likewise
        return [field.name for field in self.fields]

    def typeName(self) -> str:  # noqa: N802 - likewise
        return "struct"

    def jsonValue(self) -> Any:  # noqa: N802 - likewise
        return {"type": "struct", "fields": [field.jsonValue() for field in self.fields]}

    def json(self) -> str:
        return json.dumps(self.jsonValue(), separators=(",", ":"), sort_keys=True)


Type = Plain | Array | Struct

TEXT, NUMBER, BYTES, TIME, FLAG = Plain("string"), Plain("long"), Plain("binary"), Plain("timestamp"), Plain("boolean")


def columns(**types: Type) -> Struct:
    """Columns that are never NULL."""
    return Struct(tuple(Field(name, kind, nullable=False) for name, kind in types.items()))


def with_optional(struct: Struct, *names: str) -> Struct:
    """The same columns, of which those with these names may be NULL."""
    return Struct(tuple(Field(one.name, one.dataType, one.name in names) for one in struct))


def read(value: Any) -> Any:
    """A type from its JSON."""
    if isinstance(value, str):
        return Plain(value)
    if value["type"] == "array":
        return Array(read(value["elementType"]), value["containsNull"])
    return Struct(tuple(Field(one["name"], read(one["type"]), one["nullable"]) for one in value["fields"]))


def of_spark(schema: "StructType") -> Struct:
    """A schema of Spark's as one of ours."""
    found: Struct = read(schema.jsonValue())
    return found


def to_spark(schema: Struct) -> "StructType":
    """A schema of ours as one of Spark's."""
    from pyspark.sql.types import StructType

    value: Mapping[str, Any] = schema.jsonValue()
    return StructType.fromJson(dict(value))


def arrow(schema: "StructType | Struct") -> Any:
    """A schema in Arrow's types, as Spark writes them to files."""
    return pa.schema([_arrow_field(field) for field in schema.fields])


def _arrow_field(field: Any) -> Any:
    return pa.field(field.name, _arrow_type(field.dataType), field.nullable)


def _arrow_type(kind: Any) -> Any:
    if kind.typeName() == "array":
        return pa.list_(pa.field("element", _arrow_type(kind.elementType), kind.containsNull))
    if kind.typeName() == "struct":
        return pa.struct([_arrow_field(field) for field in kind.fields])
    return _ARROW[kind.typeName()]
