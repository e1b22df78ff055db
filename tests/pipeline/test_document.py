"""docs/pipeline.md and the catalog say what the code says."""

from deltalake import Schema
from pyspark.sql.pandas.types import to_arrow_schema

from holdfast.pipeline import catalog, records
from holdfast.pipeline.questions import relation
from holdfast.pipeline.records import RECORDS
from holdfast.pipeline.table import load, load_search
from tools.pipeline_tables import CATALOG, DOCUMENT, document


def test_the_tables_in_the_document_are_those_of_the_registry() -> None:
    text = DOCUMENT.read_text()
    assert document(text) == text, "run tools/pipeline_tables.py"


def test_the_catalog_is_that_of_the_registry() -> None:
    assert CATALOG.read_text() == catalog.written(), "run tools/pipeline_tables.py"


def test_a_table_of_the_catalog_answers_as_the_registrys_own() -> None:
    for name, found in ((catalog.RELAYS, load()), (catalog.OWN, load_search())):
        shown = catalog.shown(name)
        assert list(shown) == list(found)
        for one in found.values():
            told = shown[one.name]
            assert relation(told, []) == relation(one, [])
            assert (
                records.arrow_schema(told) == to_arrow_schema(one.schema, timezone="UTC") == records.arrow_schema(one)
            )
            assert Schema.from_json(told.schema.json()) == Schema.from_json(one.schema.json())
            assert (told.meaning, told.key, told.writing) == (one.meaning, one.key, one.writing)
            assert (told.partition_by, told.finds) == (one.partition_by, one.finds)


def test_every_table_says_what_it_is_and_keeps_a_rule() -> None:
    for table in [*load().values(), *RECORDS]:
        assert table.meaning.endswith("."), table.name
        if table.is_stored:
            assert table.key, table.name
            assert (table.rule if table.invariant is None else table.invariant.__doc__ or "").strip(), table.name
