"""A page of a history has every position once and in order, or nobody sees a row of it."""

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pytest

from holdfast.pipeline.pages import Gap, Page, Place, check_dense

PLACE = Place("http://relay")
CASES: dict[
    str, tuple[list[list[int | None]], int, bool]
] = {  # the record batches, where the page ends, whether that is right
    "in order": ([[11, 12, 13]], 13, True),
    "in several batches": ([[11, 12], [13], [14, 15]], 15, True),
    "a batch without rows": ([[11, 12], [], [13]], 13, True),
    "one": ([[11]], 11, True),
    "nothing": ([], 10, True),
    "from another position": ([[12, 13]], 12, False),
    "two changed places": ([[11, 13, 12]], 13, False),
    "one twice": ([[11, 12, 12]], 13, False),
    "one twice, across batches": ([[11, 12], [12]], 13, False),
    "one that is no number": ([[11, None, 13]], 13, False),
    "the first is no number": ([[None, 12]], 12, False),
    "fewer than it says": ([[11, 12]], 13, False),
    "more than it says": ([[11, 12, 13]], 12, False),
}


def _page(batches: list[list[int | None]], next_after: int) -> Page:
    schema = pa.schema([("seq", pa.int64())])
    found = [pa.record_batch([pa.array(seqs, pa.int64())], schema=schema) for seqs in batches]
    return Page(b"A" * 16, 100, 100, next_after, schema, found)


@pytest.mark.parametrize("name", CASES)
def test_a_page_is_dense_or_refused(name: str) -> None:
    batches, next_after, is_right = CASES[name]
    if is_right:
        check_dense(PLACE, _page(batches, next_after), 10)
    else:
        with pytest.raises(Gap, match="holdfast check"):
            check_dense(PLACE, _page(batches, next_after), 10)
