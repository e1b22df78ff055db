"""docs/pipeline.md says what the code says."""

from holdfast.pipeline.records import RECORDS
from holdfast.pipeline.table import load
from tools.pipeline_tables import DOCUMENT, document


def test_the_tables_in_the_document_are_those_of_the_registry() -> None:
    text = DOCUMENT.read_text()
    assert document(text) == text, "run tools/pipeline_tables.py"


def test_every_table_says_what_it_is_and_keeps_a_rule() -> None:
    for table in [*load().values(), *RECORDS]:
        assert table.meaning.endswith("."), table.name
        if table.is_stored:
            assert table.key, table.name
            assert (table.rule if table.invariant is None else table.invariant.__doc__ or "").strip(), table.name
