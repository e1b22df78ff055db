"""Programs of ours as processes that are struck and started again, and what a careful caller of a daemon does about it."""

import http.client
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

START_S = 180.0  # for a program to end when it is told to
ANSWER_S = 60.0  # for a daemon that is stopped for a while


class Program:
    """A process that can be killed and started again."""

    def __init__(self, *arguments: str, log: Path) -> None:
        self._arguments = [sys.executable, "-m", "holdfast.cli", *arguments]
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        self.first: dict[str, Any] = {}

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        assert self.try_start(), self.log.read_text()[-2_000:]

    def try_start(self) -> bool:
        """Start it; says whether it is there, which a full disk, say, may prevent."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._arguments, stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.end(signal.SIGKILL)
            return False
        self.first = json.loads(line)
        return True

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.process is None:
            return
        self.process.send_signal(number)
        self.process.wait(START_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any] | None:
        """What a daemon answers at its socket, if it does."""
        connection = http.client.HTTPConnection("localhost", timeout=ANSWER_S)
        try:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(ANSWER_S)
            connection.sock.connect(self.first["socket"])
            written = None if body is None else json.dumps(body)
            connection.request(method, path, written, {"content-type": "application/json"} if written else {})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        except (OSError, http.client.HTTPException, json.JSONDecodeError):
            return None
        finally:
            connection.close()
