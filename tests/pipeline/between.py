"""Stands between the pipeline and a relay, and spoils what a test says: answers that are late, torn, or not of this log."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types

PATIENCE_S = 120.0  # of whoever asks the relay in our stead


@dataclass
class Answer:
    """What the relay said, to be passed on."""

    path: str
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def has_rows(self) -> bool:
        return self.headers.get("Holdfast-Rows", "0") != "0"


Spoil = Callable[[Answer], Answer | None]


@dataclass
class Between:
    """The address to use instead, what was asked there, and what is done to the answers; None is no answer at all."""

    url: str
    asked: list[str] = field(default_factory=list)
    spoil: Spoil = lambda answer: answer


@contextmanager
def between(relay: tuple[str, int]) -> Iterator[Between]:
    """A server in the way while the block runs."""
    found = Between("")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append(self.path)
            answer = found.spoil(_ask(relay, self.path, dict(self.headers)))
            if answer is None:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *arguments: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _ask(relay: tuple[str, int], path: str, headers: dict[str, str]) -> Answer:
    connection = http.client.HTTPConnection(*relay, timeout=PATIENCE_S)
    try:
        connection.request("GET", path, headers={**headers, "Host": f"127.0.0.1:{relay[1]}"})
        response = connection.getresponse()
        kept = {
            name: value for name, value in response.getheaders() if name.lower() not in ("connection", "date", "server")
        }
        named = {"-".join(part.capitalize() for part in name.split("-")): value for name, value in kept.items()}
        return Answer(path, response.status, named, response.read())
    finally:
        connection.close()


def without_row(answer: Answer, row: int) -> Answer:
    """The answer as it would be if a row were gone from the table."""
    with pa.ipc.open_stream(answer.body) as stream:
        table = stream.read_all()
    left = pa.concat_tables([table.slice(0, row), table.slice(row + 1)])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, left.schema) as writer:
        writer.write_table(left)
    body = sink.getvalue().to_pybytes()
    headers = {**answer.headers, "Holdfast-Rows": str(len(left)), "Content-Length": str(len(body))}
    return Answer(answer.path, answer.status, headers, body)
