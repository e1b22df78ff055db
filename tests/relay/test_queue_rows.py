"""A queue as its rows tell, without sockets: pages by number and bytes, and what each of them leaves for the next."""

import asyncio

import pytest

from holdfast.protocol.schedule import DAY
from holdfast.relay import closing, queue
from holdfast.relay.settings import Limits, Settings
from tests.people import MESH
from tests.relay.place import Place


@pytest.fixture
def settings() -> Settings:
    return Settings(limits=Limits(messages_burst=1000))


def page(place: Place, after: int = 0, limit: int = 50) -> queue.Page:
    with place.engine.read() as transaction:
        return queue.waiting(transaction, place.now, MESH, place.bob.member, after, limit)


def read_through(place: Place, limit: int) -> list[list[queue.Waiting]]:
    pages, after = [], 0
    while messages := list(page(place, after, limit).messages):
        pages.append(messages)
        after = messages[-1].seq
    return pages


def test_a_page_holds_so_many_bytes_and_one_message_more_at_most(place: Place) -> None:
    place.settle()
    place.expect(201, *(place.alice.message(place.bob, b"x" * 40_000) for _ in range(15)))
    pages = read_through(place, 50)
    assert sum(map(len, pages)) == 15
    assert len(pages) > 1
    for messages in pages:
        sizes = [len(message.event or b"") for message in messages]
        assert sum(sizes[:-1]) < queue.PAGE_BYTES_MAX
    for messages in pages[:-1]:
        assert sum(len(message.event or b"") for message in messages) >= queue.PAGE_BYTES_MAX


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 50])
def test_pages_of_any_size_hold_every_message_once_in_order(place: Place, limit: int) -> None:
    place.settle()
    place.expect(201, *(place.alice.message(place.bob) for _ in range(7)))
    pages = read_through(place, limit)
    assert all(len(messages) <= limit for messages in pages)
    seqs = [message.seq for messages in pages for message in messages]
    assert seqs == sorted(set(seqs))
    assert len(seqs) == 7


def test_a_page_knows_where_the_history_stood(place: Place) -> None:
    place.settle()
    place.expect(201, place.alice.message(place.carol))
    assert page(place) == queue.Page([], place.relay.head().seq)


def test_many_rows_are_acknowledged_at_once_and_each_tells_whether_it_waited(place: Place) -> None:
    """More than one look-up of the store holds."""
    place.settle()
    place.expect(201, *(place.alice.message(place.bob) for _ in range(600)))
    seqs = [message.seq for messages in read_through(place, 50) for message in messages]
    waited = {seq: number % 2 == 0 for number, seq in enumerate(seqs)} | {10**9: True}
    done = asyncio.run(
        place.relay.decide(lambda tx: closing.acknowledge(tx, place.now, MESH, place.bob.member, waited))
    )
    assert (done.closed, done.unknown) == (tuple(seqs), (10**9,))
    rows = place.rows("SELECT seq, was_stored FROM delivery WHERE state = 'delivered' ORDER BY seq")
    assert rows == [(seq, int(waited[seq])) for seq in seqs]


def test_the_oldest_message_is_the_one_that_waits_not_the_one_that_is_over(place: Place) -> None:
    place.settle()
    with place.engine.read() as transaction:
        assert queue.oldest_at(transaction) is None
    first_at = place.now
    (first, _) = place.expect(201, place.alice.message(place.bob), place.alice.message(place.carol))
    place.now += DAY
    place.expect(201, place.alice.message(place.carol))
    with place.engine.read() as transaction:
        assert queue.oldest_at(transaction) == first_at
    seq = first.members["history_id"]
    asyncio.run(place.relay.decide(lambda tx: closing.acknowledge(tx, place.now, MESH, place.bob.member, {seq: True})))
    asyncio.run(place.relay.decide(lambda tx: closing.drop_queue(tx, place.now, MESH, place.carol.member)))
    with place.engine.read() as transaction:
        assert queue.oldest_at(transaction) is None
