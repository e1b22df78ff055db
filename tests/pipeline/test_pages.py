"""A page of a history has every position once and in order, or nobody sees a row of it; a refusal is told in plain words."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pytest

from holdfast.pipeline.pages import (
    Gap,
    Head,
    Page,
    Place,
    RangePruned,
    SourceError,
    check_dense,
    read_document,
    read_head,
    read_page,
)

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


@contextmanager
def saying(*answers: bytes) -> Iterator[Place]:
    """Somebody who gives these answers, one after the other, and is not asked again."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)

        def serve() -> None:
            for answer in answers:
                connection, _ = server.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield Place(f"http://127.0.0.1:{server.getsockname()[1]}", patience_s=0)
        thread.join()


def test_the_path_of_a_socket_may_have_any_character(tmp_path: Path) -> None:
    path = tmp_path / "c# & why?; 100%20"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))  # and never listens
        with pytest.raises(SourceError, match="refused"):
            read_document(Place(f"unix:{path}", patience_s=0), "/")


def refusal(status: int, **problem: str) -> bytes:
    body = json.dumps(problem).encode()
    return b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


def page_of(field: Any) -> bytes:
    """An answer with a page that has this column and no row."""
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, pa.schema([field])).close()
    body = sink.getvalue().to_pybytes()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def pruned(anchor_seq: int) -> bytes:
    return refusal(410, code="range-pruned", detail=f"pruned: ask after {anchor_seq}")


def head_of(seq: int) -> bytes:
    """An answer with an empty page of a log that ends there."""
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, pa.schema([("seq", pa.int64())])).close()
    told = {"Log-Id": "aa" * 16, "As-Of-Seq": seq, "Until": seq, "Next-After": seq, "Rows": 0}
    headers = "".join(f"Holdfast-{name}: {value}\r\n" for name, value in told.items())
    body: bytes = sink.getvalue().to_pybytes()
    return f"HTTP/1.1 200 OK\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


def test_the_beginning_of_a_log_is_found_while_it_is_pruned() -> None:
    with saying(pruned(10), pruned(20), head_of(30)) as place:
        assert read_head(place) == Head(b"\xaa" * 16, 30, 20)
    with saying(pruned(10), pruned(10)) as place, pytest.raises(RangePruned):
        read_head(place)


MARKED = {b"ARROW:extension:name": b"arrow.uuid", b"ARROW:extension:metadata": b"\x1b[2Jmark"}

ESCAPES = {  # what is answered, and the visible rest of it in what is told
    "a reason": (b"HTTP/1.1 404 \x1b[2JGone\r\nContent-Length: 0\r\n\r\n", "[2JGone"),
    "no HTTP": (b"\x1b[2Jwelcome\r\n", "[2Jwelcome"),
    "a code": (refusal(400, code="\x1b[2Jcode", detail="no"), "[2Jcode"),
    "a detail": (refusal(400, code="malformed", detail="no\x1b[2Jway\x9b2J"), "[2Jway"),
    "a detail that is not allowed": (refusal(401, code="auth", detail="no\x1b[2Jway\u202e"), "[2Jway"),
    "a temporary detail": (refusal(503, code="unavailable", detail="no\x1b[2Jway\ud800"), "[2Jway"),
    "what Arrow quotes": (page_of(pa.field("seq", pa.string(), metadata=MARKED)), "[2Jmark"),
}


@pytest.mark.parametrize("case", ESCAPES)
def test_nothing_that_is_answered_moves_the_cursor(case: str) -> None:
    answer, rest = ESCAPES[case]
    with saying(answer) as place, pytest.raises(SourceError) as refused:
        read_page(place, "history", 0, 1, None)
    assert rest in str(refused.value)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("detail", "told"),
    [("there is none", ": there is none."), ("There is none.", ": There is none."), ("", " 404 table_unknown.")],
)
def test_a_refusal_ends_in_one_full_stop(detail: str, told: str) -> None:
    with saying(refusal(404, code="table-unknown", detail=detail)) as place, pytest.raises(SourceError) as refused:
        read_document(place, "/")
    assert str(refused.value).endswith(told)
    assert not str(refused.value).endswith("..")
