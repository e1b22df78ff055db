"""What a lake says, for the console: asked of a process of its own, so that the relay's never holds what reads a lake."""

import asyncio
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from holdfast.console.audit import LakeUnavailable

CERTIFICATES_SHOWN = 50
ANSWER_TIMEOUT_S = 60.0


async def lake_report(lake: Path) -> dict[str, Any]:
    """The report of a lake, and its latest certificates, the newest first."""
    if not lake.is_dir():
        raise LakeUnavailable(f"There is no lake at {lake}. `holdfast pipeline run --lake {lake}` makes one.")
    report = await _ask("report", "--lake", str(lake))
    return {"report": report, "certificates": await _certificates(lake)}


async def index_report(lake: Path) -> dict[str, Any]:
    """The same of an owner's index, which has no balance, and nothing to compare."""
    findings = await _ask("sql", "SELECT * FROM breach ORDER BY kind, key", "--lake", str(lake))
    return {"report": {"findings": findings["rows"], "uncompared": []}, "certificates": await _certificates(lake)}


def is_index(lake: Path) -> bool:
    """Whether a lake is an owner's index of messages, as `holdfast.pipeline.kind` tells it, which takes long to load."""
    return (lake / "search_posting").is_dir()


async def _certificates(lake: Path) -> list[dict[str, Any]]:
    sql = f"SELECT number, document, pubkey FROM certificate ORDER BY number DESC LIMIT {CERTIFICATES_SHOWN}"  # noqa: S608 - a number
    found = await _ask("sql", sql, "--lake", str(lake))
    return [{**row, "hash": hashlib.sha256(row["document"].encode()).hexdigest()} for row in found["rows"]]


async def _ask(*arguments: str) -> Any:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "holdfast.cli", "pipeline", *arguments, "--json"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            said, complained = await process.communicate()
    except TimeoutError:
        process.kill()
        raise LakeUnavailable(f"The lake did not answer within {ANSWER_TIMEOUT_S:g} s.") from None
    if process.returncode:
        raise LakeUnavailable(_reason(complained))
    return json.loads(said)


def _reason(complained: bytes) -> str:
    last = complained.decode(errors="replace").strip().splitlines()[-1:]
    try:
        return str(json.loads(last[0])["message"])
    except (IndexError, KeyError, ValueError, TypeError):
        return last[0] if last else "The lake cannot be read."
