"""The check of a relay's database looks at what waits, byte by byte."""

from holdfast.relay import closing
from holdfast.relay.message_check import verify
from tests.relay.place import Place


def test_a_message_that_was_changed_while_it_waits_is_found_until_nobody_waits_for_it(place: Place) -> None:
    place.settle()
    first, second = place.expect(201, place.alice.message(place.bob), place.alice.message(place.carol))
    assert list(verify(place.engine)) == []
    with place.engine.write() as transaction:
        transaction.run("UPDATE message SET event = :event WHERE message_id = :id", _changed(first.members))
    (found,) = verify(place.engine)
    assert str(first.members["broker_message_id"]) in str(found)
    seq = int(str(first.members["history_id"]))
    with place.engine.write() as transaction:
        assert closing.quarantine(transaction, place.now, place.bob.mesh, place.bob.member, seq, "it was changed")
    assert list(verify(place.engine)) == []
    assert second.members["duplicate"] is False


def _changed(members: dict[str, object]) -> dict[str, str | bytes]:
    return {"event": b"something else", "id": str(members["broker_message_id"])}
