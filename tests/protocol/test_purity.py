"""protocol/ is pure: what its files import and call, read from their syntax, against lists of what they may.

The list of imports says what is allowed, so that a library which nobody thought of is refused too.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast.protocol

FOLDER = Path(holdfast.protocol.__path__[0])
FILES = sorted(FOLDER.glob("*.py"))


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Exactly these modules; a module inside one of them is another one.
MAY_IMPORT = words(
    """
    base64 collections.abc enum functools hashlib itertools json re struct types typing
    coincurve
    cryptography.exceptions
    cryptography.hazmat.primitives.asymmetric
    cryptography.hazmat.primitives.ciphers
    cryptography.hazmat.primitives.ciphers.algorithms
    cryptography.hazmat.primitives.hashes
    cryptography.hazmat.primitives.hmac
    cryptography.hazmat.primitives.kdf.hkdf
    msgspec rfc8785
    """
)
OUR_OWN = "holdfast.protocol"

# Built in, and reaching outside.
MAY_NOT_NAME = frozenset({"open", "print", "input", "breakpoint", "exec", "eval", "__import__"})
# Of whatever object: they reach outside, or draw what must come in as an argument.
MAY_NOT_USE = words(
    """
    import_module open
    now utcnow today time time_ns monotonic monotonic_ns perf_counter perf_counter_ns sleep
    random randbytes token_bytes token_hex urandom uuid1 uuid4 getrandbits
    generate generate_key generate_private_key
    """
)
# These draw random bytes, or read the clock, where they are given nothing.
MAY_NOT_CALL_WITHOUT_ARGUMENTS = frozenset({"PrivateKey"})


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def named(tree: ast.AST) -> Iterator[str]:
    """What is spoken of, called or not: a name given to it first would hide a call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in MAY_NOT_NAME:
            yield node.id
        elif isinstance(node, ast.Attribute) and node.attr in MAY_NOT_USE:
            yield node.attr


def called_with_nothing(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and not node.args and not node.keywords:
            name = ast.unparse(node.func).rpartition(".")[2]
            if name in MAY_NOT_CALL_WITHOUT_ARGUMENTS:
                yield name


def faults(source: str) -> list[str]:
    """What a file does that it may not."""
    tree = ast.parse(source)
    found = [
        f"imports {module}"
        for module in imported(tree)
        if module not in MAY_IMPORT and module != OUR_OWN and not module.startswith(OUR_OWN + ".")
    ]
    found += [f"uses {name}" for name in named(tree)]
    found += [f"calls {name} without arguments" for name in called_with_nothing(tree)]
    waits = ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith | ast.Await
    return found + ["is asynchronous" for node in ast.walk(tree) if isinstance(node, waits)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_of_the_protocol_touches_nothing_outside(path: Path) -> None:
    assert faults(path.read_text(encoding="utf-8")) == []


def test_all_files_were_looked_at() -> None:
    assert {"event.py", "history.py", "keys.py", "sealing.py", "ulid.py"} <= {path.name for path in FILES}
    assert not [
        path for path in FOLDER.rglob("*") if path.suffix in {".so", ".pyx"} or (path.is_dir() and path.name[0] != "_")
    ]


def test_nothing_is_allowed_that_nobody_needs() -> None:
    used = {module for path in FILES for module in imported(ast.parse(path.read_text(encoding="utf-8")))}
    assert {module for module in used if not module.startswith(OUR_OWN)} == MAY_IMPORT


IMPURE = {
    "import http.client": "imports http.client",
    "import ssl": "imports ssl",
    "import concurrent.futures": "imports concurrent.futures",
    "from concurrent import futures": "imports concurrent",
    "import queue": "imports queue",
    "import structlog": "imports structlog",
    "import httpx2": "imports httpx2",
    "import glob": "imports glob",
    "import mmap": "imports mmap",
    "import ctypes": "imports ctypes",
    "import os": "imports os",
    "import time": "imports time",
    "import datetime": "imports datetime",
    "import random": "imports random",
    "import secrets": "imports secrets",
    "import uuid": "imports uuid",
    "import asyncio": "imports asyncio",
    "import logging": "imports logging",
    "import importlib": "imports importlib",
    "import json.tool": "imports json.tool",
    "import cryptography.fernet": "imports cryptography.fernet",
    "from holdfast.store import history": "imports holdfast.store",
    "import holdfast.protocols": "imports holdfast.protocols",
    "from . import tags": "imports .",
    "def late() -> None:\n    import socket": "imports socket",
    "open('x')": "uses open",
    "read = open": "uses open",
    "io.open('x')": "uses open",
    "print('x')": "uses print",
    "input()": "uses input",
    "__import__('os')": "uses __import__",
    "eval('1')": "uses eval",
    "PrivateKey()": "calls PrivateKey without arguments",
    "ec.generate_private_key(x)": "uses generate_private_key",
    "datetime.now()": "uses now",
    "datetime.datetime.now(tz)": "uses now",
    "date.today()": "uses today",
    "time.time()": "uses time",
    "async def f() -> None: ...": "is asynchronous",
}


@pytest.mark.parametrize(("line", "fault"), IMPURE.items())
def test_an_impure_line_at_the_end_of_a_file_is_found(line: str, fault: str) -> None:
    pure = (FOLDER / "keys.py").read_text(encoding="utf-8")
    assert faults(f"{pure}\n{line}\n") == [fault]


@pytest.mark.parametrize(
    "line", ["ULID(b'x')", "PrivateKey(secret)", "import enum", "from holdfast.protocol import tags"]
)
def test_a_pure_line_is_not(line: str) -> None:
    assert faults(line) == []
