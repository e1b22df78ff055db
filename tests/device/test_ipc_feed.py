"""Documents over the daemon's socket, with no relay in reach: what is asked for, what is answered, and every no."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.device import author as authors
from holdfast.device.author import GRANT_META, GRANT_OBJECT
from holdfast.device.feed_client import FeedClient
from holdfast.device.ipc_link import RequestRefused
from holdfast.protocol import sealing
from holdfast.protocol.payload import Payload, canonical_meta
from holdfast.protocol.refusal import Refusal, Refused
from tests.device.house import House, new_house
from tests.people import Person, public_key, secret_of


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with new_house(tmp_path / "home") as opened:
        yield opened


@pytest.fixture
def notes(house: House) -> Iterator[FeedClient]:
    with FeedClient(home=house.device.home.path) as client:
        yield client


def refused(code: str, house: House, path: str, body: object) -> str:
    answer = house.ask("POST", f"/v1/feed/{path}", body)
    assert answer.document["code"] == code, answer.document
    return str(answer.document["detail"])


def test_without_an_author_there_are_no_documents(house: House, notes: FeedClient) -> None:
    feed = notes.feed()
    assert (feed.author, feed.documents, feed.shared) == (None, 0, ())
    refused("author_missing", house, "put", {"name": "list", "body": "milk"})
    assert house.ask("GET", "/v1/feed/documents").document["code"] == "author_missing"


def test_documents_are_written_read_listed_and_deleted(house: House, notes: FeedClient) -> None:
    made = notes.init()
    assert notes.init() == made
    names = [f"note {number:02}" for number in range(7)]
    for name in names:
        assert notes.put(name, f"text of {name}").body == f"text of {name}"
    first = notes.documents(limit=4)
    assert [one.name for one in first.documents] == names[:4]
    rest = notes.documents(limit=4, after=first.next_after or "")
    assert ([one.name for one in rest.documents], rest.next_after) == (names[4:], None)
    assert notes.delete("note 00").status == "deleted"
    assert len(notes.documents().documents) == 6
    assert len(notes.documents(deleted=True).documents) == 7
    assert notes.document(made_id := notes.document("note 01").id).name == "note 01"
    assert notes.document("note 01") == notes.document(made_id)
    feed = notes.feed()
    assert (feed.author, feed.documents, feed.deleted, feed.conflicts) == (made.author, 6, 1, 0)
    (relay,) = feed.relays
    assert (relay.is_home, relay.live, relay.seq, relay.waiting) == (True, False, None, 8)


def test_documents_that_cannot_be_read_are_listed_first_and_a_page_leaves_none_out(
    house: House, notes: FeedClient
) -> None:
    notes.init()
    for number in range(6):
        notes.put(f"note {number}", "text")
    house.device.do(lambda tx: tx.run("UPDATE snapshot SET name = NULL WHERE name IN ('note 1', 'note 3', 'note 5')"))
    for limit in range(1, 8):
        found, after = [], ""
        while True:
            page = notes.documents(limit=limit, after=after)
            found += [one.name for one in page.documents]
            if page.next_after is None:
                break
            after = page.next_after
        assert found == [None, None, None, "note 0", "note 2", "note 4"]
    with pytest.raises(RequestRefused) as caught:
        notes.documents(after="ab" * 32)
    assert caught.value.refusal is Refusal.NOT_FOUND


def test_a_document_is_edited_by_its_id_too_and_a_version_is_named_by_the_beginning_of_its_id(
    house: House, notes: FeedClient
) -> None:
    notes.init()
    made = notes.put("list", "milk")
    version = made.versions[0].id
    assert notes.put(made.id, "bread", seen=[version[:12]]).name == "list"
    for seen in (version[:12], "", notes.document("list").versions[0].id[:7]):
        refused("document_changed", house, "put", {"name": "list", "body": "tea", "seen": [seen]})
    assert notes.delete(made.id).id == made.id
    assert [one.name for one in notes.documents(deleted=True).documents] == ["list"]


def test_a_name_may_have_any_characters_that_can_be_seen(house: House, notes: FeedClient) -> None:
    notes.init()
    for name in ("a/b", "100 %", "Ärger?", "x" * 256):
        notes.put(name, "text")
        assert notes.document(name).name == name
        assert [version.body for version in notes.history(name)] == ["text"]


@pytest.mark.parametrize("name", [".", "..", "...", "a/../b", "%2E", "?", "#"])
def test_a_name_that_looks_like_a_step_of_a_path_is_a_name_like_any_other(notes: FeedClient, name: str) -> None:
    notes.init()
    notes.put(name, "milk")
    assert notes.document(name).body == "milk"
    assert [version.body for version in notes.history(name)] == ["milk"]


@pytest.mark.parametrize("name", ["", "\udcff"])
def test_a_name_that_no_document_can_have_is_refused(notes: FeedClient, name: str) -> None:
    notes.init()
    for ask in (notes.document, notes.history, notes.message, notes.trace, lambda name: notes.put(name, "milk")):
        with pytest.raises(Refused) as caught:
            ask(name)
        assert caught.value.refusal is Refusal.MALFORMED
    with pytest.raises(Refused):
        notes.documents(after=name or "no document")


def test_what_is_wrong_is_said_and_changes_nothing(house: House, notes: FeedClient) -> None:
    notes.init()
    notes.put("list", "milk")
    before = house.look(lambda tx: tx.rows("SELECT count(*) FROM history"))
    refused("malformed", house, "put", {"name": " list", "body": "x"})
    refused("malformed", house, "put", {"name": "list"})
    refused("malformed", house, "put", {"name": "list", "body": "x", "more": 1})
    refused("too_large", house, "put", {"name": "list", "body": "x" * 41_000})
    refused("document_changed", house, "put", {"name": "list", "body": "x", "seen": ["00" * 32]})
    refused("not_found", house, "delete", {"name": "nothing"})
    refused("document_not_conflicted", house, "resolve", {"name": "list", "body": "x"})
    refused("malformed", house, "resolve", {"name": "list", "body": "x", "delete": True})
    refused("malformed", house, "resolve", {"name": "list"})
    refused("not_found", house, "resolve", {"name": "list", "keep": "ffff"})
    refused("malformed", house, "relays", {"relay": "ftp://nowhere"})
    refused("destination_unknown", house, "share", {"member": "nobody"})
    assert house.ask("GET", "/v1/feed/documents/nothing").status == 404
    assert house.ask("GET", "/v1/feed/versions/nothing").status == 404
    assert house.look(lambda tx: tx.rows("SELECT count(*) FROM history")) == before


def test_a_key_is_shared_in_a_message_that_shows_no_secret(house: House, notes: FeedClient) -> None:
    author = notes.init().author
    shared = notes.share("bob")
    assert (shared.author, shared.member) == (author, house.bob.member)
    ((blob, object_id),) = house.look(
        lambda tx: tx.rows("SELECT blob, object_id FROM operation_log WHERE destination_kind = 'dm'")
    )
    secret = house.look(authors.need).secret
    assert secret not in blob
    assert secret.hex().encode() not in blob
    assert object_id == GRANT_OBJECT
    refused("malformed", house, "share", {"member": house.me.member})


def test_a_key_is_shared_once_however_often_the_same_id_asks_for_it(house: House, notes: FeedClient) -> None:
    notes.init()
    shared = notes.share("bob", client_message_id="mine")
    assert shared.client_message_id == "mine"
    assert notes.share("bob", client_message_id="mine") == shared
    again = house.ask("POST", "/v1/feed/share", {"member": "bob"}, idempotency_key="mine")
    assert (again.status, again.document["client_message_id"]) == (200, "mine")
    refused("idempotency_key_reused", house, "share", {"member": "carol", "client_message_id": "mine"})
    assert house.rows("SELECT client_message_id FROM operation_log WHERE destination_kind = 'dm'") == [("mine",)]
    assert notes.share("bob").client_message_id != notes.share("bob").client_message_id, "each is a request of its own"


def test_a_request_to_share_a_key_is_the_same_though_it_is_sealed_anew_or_to_another_key(
    house: House, notes: FeedClient
) -> None:
    notes.init()
    author, secret = house.look(authors.need), house.me.secret
    first, again = (
        authors.grant(author, secret, house.bob.member, public_key(key), os.urandom)
        for key in (house.bob.secret, secret_of("bob's next"))
    )
    assert first.content.meta != again.content.meta
    assert first.request_fingerprint == again.request_fingerprint


def arrive(house: House, sender: Person, author: bytes, sealed_for: bytes, said: bytes | None = None) -> None:
    """A member shares an author's key with this home, and says that it is this one's."""
    conversation = sealing.conversation_key(sender.secret, public_key(sealed_for))
    sealed = sealing.seal(conversation, author, bytes(32))
    meta = canonical_meta({GRANT_META: {"author": public_key(said or author), "sealed": sealed}})
    content = Payload(object_id=GRANT_OBJECT, meta=meta, body=b"a key")
    house.store(house.arrival(sender.message(house.me, author), sender, payload=content))


def test_a_shared_key_is_used_only_when_somebody_says_so(house: House, notes: FeedClient) -> None:
    key = secret_of("a person")
    arrive(house, house.bob, key, house.me.secret)
    assert notes.feed().author is None
    (offered,) = notes.feed().shared
    assert (offered.author, offered.member) == (public_key(key), house.bob.member)
    with pytest.raises(RequestRefused) as caught:
        notes.init("carol")
    assert caught.value.refusal is Refusal.NOT_FOUND
    kept = notes.init("bob")
    assert (kept.author, kept.granted_by) == (public_key(key), house.bob.member)
    assert notes.feed().shared == ()
    arrive(house, house.carol, secret_of("another person"), house.me.secret)
    with pytest.raises(RequestRefused) as caught:
        notes.init("carol")
    assert caught.value.refusal is Refusal.AUTHOR_PRESENT
    assert notes.init().author == public_key(key)


def test_a_shared_key_is_found_though_another_member_shares_very_many(house: House, notes: FeedClient) -> None:
    key = secret_of("a person")
    arrive(house, house.bob, key, house.me.secret)
    for _ in range(authors.GRANTS_MAX):
        arrive(house, house.carol, secret_of("another person"), house.me.secret)
    assert notes.init("bob").author == public_key(key)


def test_a_key_that_was_sealed_to_somebody_else_is_of_no_use(house: House, notes: FeedClient) -> None:
    arrive(house, house.bob, secret_of("a person"), house.carol.secret)
    with pytest.raises(RequestRefused) as caught:
        notes.init("bob")
    assert caught.value.refusal is Refusal.UNREADABLE
    assert notes.feed().author is None


def test_a_key_that_is_not_the_one_it_is_said_to_be_is_of_no_use(house: House, notes: FeedClient) -> None:
    arrive(house, house.bob, secret_of("a person"), house.me.secret, said=secret_of("another person"))
    with pytest.raises(RequestRefused) as caught:
        notes.init("bob")
    assert caught.value.refusal is Refusal.UNREADABLE
    assert notes.feed().author is None
