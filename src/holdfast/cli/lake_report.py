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
    sql = f"SELECT number, document, pubkey FROM certificate ORDER BY number DESC LIMIT {CERTIFICATES_SHOWN}"  # noqa: S608 - a number
    report = await _ask("report", "--lake", str(lake))
    certificates = await _ask("sql", sql, "--lake", str(lake))
    return {
        "report": report,
        "certificates": [
            {**row, "hash": hashlib.sha256(row["document"].encode()).hexdigest()} for row in certificates["rows"]
        ],
    }


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
