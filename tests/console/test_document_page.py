"""The page of a document, made without a server: what it calls each version, and what a browser reads out of its forms."""

import re
from html.parser import HTMLParser

from holdfast.console.daemon_documents import sides
from holdfast.console.rendering import Templates
from holdfast.console.signing_in import Role, Session
from holdfast.device.feed_views import Document, DocumentVersion

TEMPLATES = Templates("/console", kind="daemon", nav=[])


def version(number: int, body: str | None, *, operation: str = "put", readable: bool = True) -> DocumentVersion:
    return DocumentVersion(
        id=f"{number:064x}",
        status="current",
        operation=operation,
        body=body,
        readable=readable,
        clock={},
        created_at=0,
        known_at=0,
        own=False,
        superseded_by=None,
        relays={},
    )


def page(*versions: DocumentVersion) -> str:
    is_one = len(versions) == 1
    document = Document(
        id="ab" * 32,
        name="plans",
        status="ok" if is_one else "conflict",
        changed_at=0,
        body=versions[0].body if is_one else None,
        versions=versions,
    )
    values = {
        "session": Session(Role.OPERATOR, "owner", "csrf", 0),
        "notices": [],
        "title": "ann",
        "now": 0,
        "path": "/console/documents",
        "version": "0.0",
        "document": document,
        "versions": versions,
        **sides(document),
    }
    return TEMPLATES.text("daemon/document.html", values)


class Fields(HTMLParser):
    """The texts of a page's text fields, as browsers read them: a line end right behind the tag is not part of it."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: list[str] = []
        self._is_in = False
        self.feed(text)
        self.texts = [one.removeprefix("\n") for one in self.texts]

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._is_in = tag == "textarea"
        self.texts += [""] if self._is_in else []

    def handle_endtag(self, tag: str) -> None:
        self._is_in = self._is_in and tag != "textarea"

    def handle_data(self, data: str) -> None:
        if self._is_in:
            self.texts[-1] += data


def test_a_version_has_one_letter_wherever_it_is_named() -> None:
    shown = page(version(1, None, operation="del"), version(2, "sail", readable=True), version(3, "swim"))
    assert re.findall(r'value="0+([123])" required> keep ([A-Z])', shown) == [("2", "B"), ("3", "C")]
    shown = page(version(1, None, readable=False), version(2, "sail"), version(3, "swim"))
    assert re.findall(r'value="0+([123])" required> keep ([A-Z])', shown) == [("2", "B"), ("3", "C")]
    assert 'aria-label="B beside C"' in shown


def test_a_text_that_begins_with_an_empty_line_is_edited_as_it_is() -> None:
    assert Fields(page(version(1, "\nsail"))).texts == ["\nsail"]
    assert Fields(page(version(1, "\nsail"), version(2, "swim"))).texts == ["\nsail"]
