"""The operator's page names every setting with its default, and no other."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.relay.settings import Settings

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


def _settings(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, str]]:
    for field in msgspec.structs.fields(struct):
        if isinstance(field.default, msgspec.Struct):
            yield from _settings(type(field.default), f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, "none" if field.default in (None, ()) else f"`{field.default}`"


def test_the_page_names_every_setting_with_its_default() -> None:
    rows = re.findall(
        r"^\| `([a-z_.]+)` \| (none|`[^`]*`) \|", PAGE.split("### Settings")[1].split("###")[0], re.MULTILINE
    )
    assert dict(rows) == dict(_settings(Settings))
