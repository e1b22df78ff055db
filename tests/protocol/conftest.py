"""What the tests of the protocol share: the golden files, which hold exact bytes that must not change by accident.

After a deliberate change of the wire, write them anew and read the difference before keeping it:

    HOLDFAST_GOLDEN=write .venv/bin/python -m pytest tests/protocol
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Golden = Callable[[str, Any], None]

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def golden() -> Golden:
    """Compare a value with the golden file of that name, or write the file when asked to."""

    def check(name: str, value: Any) -> None:
        path = GOLDEN / name
        written = json.dumps(value, indent=2, ensure_ascii=True) + "\n"
        if os.environ.get("HOLDFAST_GOLDEN") == "write":
            path.write_text(written)
        assert path.read_text() == written, f"{path} differs from what the code makes now"

    return check
