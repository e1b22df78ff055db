"""Rules about a home that went back to a backup: what they let pass of it, and what they still find there."""

from dataclasses import replace

import msgspec
import pytest

from holdfast.protocol.history import Entry, Kind
from tests.world.evidence import Arrived, Evidence, HomeFile, Operation, RelayFile
from tests.world.journal import Asked, Journal, Requeued, Restored
from tests.world.oracle import RULES

RULE = {rule.name: rule.broken for rule in RULES}
IN_ORDER = RULE["messages to one destination are accepted in sequence order"]
NO_CONFLICT = RULE["the same request is never a conflict"]
ONCE = RULE["a message arrives once"]

BEFORE, AFTER = b"\x01" * 16, b"\x02" * 16  # epochs of bo, before and after it went back
WENT_BACK = Restored("bo", made_at=300, at=600)
RETIRED = Requeued("bo-23", event_id="17" * 32, at=400, told_at=401, is_forced=False)
FOUND = "the relay took sequence 23 of bo behind 77"


def _accepted(seq: int, sequence: int, epoch: bytes = BEFORE) -> Entry:
    return Entry(
        kind=Kind.ACCEPTED,
        seq=seq,
        at=0,
        chain=b"",
        sender="member-bo",
        epoch=epoch,
        sequence=sequence,
        client_message_id=f"bo-{sequence}",
        destination_kind="dm",
        destination_ref="member-cy",
        event_id=bytes([sequence]) * 32,
    )


def _arrived(number: int, client_message_id: str) -> Arrived:
    """A row of cy's inbox: what bo had asked for as bo-23."""
    return Arrived(
        arrival=number,
        id=f"row-{number}",
        sender="member-bo",
        client_message_id=client_message_id,
        event_id=client_message_id.encode(),
        epoch=BEFORE,
        sequence=number,
        topic=None,
        body="one",
        status="stored",
        replayed=False,
        log_id=b"",
        history_id=number,
        is_applied=False,
    )


def _evidence(accepted: list[Entry], *arrived: Arrived) -> Evidence:
    """A relay with these entries, bo, whose log says that all of its rows are done, and cy with an inbox."""
    operations = {
        entry.sequence or 0: Operation(
            sequence=entry.sequence or 0,
            id=f"row-{entry.sequence}",
            client_message_id=entry.client_message_id or "",
            destination_kind="dm",
            destination_ref="member-cy",
            status="done",
            body=None,
            event_id=entry.event_id,
            broker_message_id=None,
            history_id=entry.seq,
            log_id=None,
            superseded_by=None,
            aborted_by=None,
            expires_at=None,
        )
        for entry in accepted
    }
    bo = HomeFile("bo", "member-bo", "", operations, set(), [], set(), set(), [], set(), [], [], [])
    cy = HomeFile("cy", "member-cy", "", {}, set(), list(arrived), set(), set(), [], set(), [], [], [])
    entries = {entry.seq: entry for entry in accepted}
    relay = RelayFile("north", b"", entries, [], {"member-bo": "bo"}, {}, set(), [], b"")
    return Evidence(relay, {"bo": bo, "cy": cy}, [], {}, frozenset(), [])


def _findings(accepted: list[Entry], *requeued: Requeued, restored: tuple[Restored, ...] = (WENT_BACK,)) -> list[str]:
    """What the rule about order says."""
    journal = Journal(restored=list(restored), requeued={("bo", "row-23"): list(requeued)})
    return list(IN_ORDER(_evidence(accepted), journal))


def test_a_home_that_forgot_that_a_message_was_retired_may_send_it_behind_what_followed() -> None:
    assert _findings([_accepted(1, 77), _accepted(2, 23)], RETIRED) == []


@pytest.mark.parametrize(
    ("requeued", "restored"),
    [
        pytest.param((), (WENT_BACK,), id="nobody retired it"),
        pytest.param((RETIRED,), (), id="its home forgot nothing"),
        pytest.param((RETIRED,), (replace(WENT_BACK, machine="cy"),), id="another home went back"),
        pytest.param((RETIRED,), (replace(WENT_BACK, made_at=500),), id="the backup knows that it was retired"),
        pytest.param((RETIRED,), (replace(WENT_BACK, at=350),), id="it was retired by the home that had gone back"),
        pytest.param((replace(RETIRED, event_id=None),), (WENT_BACK,), id="it had never been offered"),
        pytest.param((replace(RETIRED, event_id="18" * 32),), (WENT_BACK,), id="other bytes were retired"),
    ],
)
def test_any_other_message_that_comes_behind_what_followed_is_found(
    requeued: tuple[Requeued, ...], restored: tuple[Restored, ...]
) -> None:
    assert _findings([_accepted(1, 77), _accepted(2, 23)], *requeued, restored=restored) == [FOUND]


def test_what_a_home_that_went_back_sealed_since_is_in_order() -> None:
    behind = [_accepted(1, 77), _accepted(2, 23), _accepted(3, 29, AFTER), _accepted(4, 28, AFTER)]
    assert _findings(behind, RETIRED) == ["the relay took sequence 28 of bo behind 29"]


def test_a_message_that_was_retired_excuses_none_that_follows_it() -> None:
    behind = [_accepted(1, 77), _accepted(2, 23), _accepted(3, 25)]
    assert _findings(behind, RETIRED) == ["the relay took sequence 25 of bo behind 77"]


def _had(sequence: int, message_id: str, destination_kind: str = "dm") -> Entry:
    """cy's entry of a message of bo's, which the relay had accepted under this id."""
    return msgspec.structs.replace(
        _accepted(7, sequence), kind=Kind.STORED, message_id=message_id, destination_kind=destination_kind
    )


LOST = Restored("north", made_at=100, at=500)
SENT = Asked("bo", "bo-23", "cy", "one", at=200, statuses=[202], accepted_at=201)


@pytest.mark.parametrize(
    ("had", "asked", "restored", "found"),
    [
        pytest.param(
            _had(23, "lost"), SENT, (LOST, WENT_BACK), [], id="its recipient has it from a relay that lost it"
        ),
        pytest.param(_had(23, "lost"), None, (LOST, WENT_BACK), [], id="likewise, and an operator had it sent anew"),
        pytest.param(_had(23, "lost"), SENT, (LOST,), [FOUND], id="its home forgot nothing"),
        pytest.param(_had(23, "lost"), SENT, (WENT_BACK,), [FOUND], id="the relay lost nothing"),
        pytest.param(
            _had(23, "lost"), SENT, (LOST, replace(WENT_BACK, machine="cy")), [FOUND], id="another home went back"
        ),
        pytest.param(
            _had(23, "lost"),
            replace(SENT, at=700),
            (LOST, WENT_BACK),
            [FOUND],
            id="its home went back before it was sent",
        ),
        pytest.param(_had(23, "lost"), replace(SENT, at=301), (LOST, WENT_BACK), [FOUND], id="the backup has it not"),
        pytest.param(
            _had(23, "lost"), SENT, (replace(LOST, at=700), WENT_BACK), [FOUND], id="the relay lost it after that"
        ),
        pytest.param(
            _had(23, "lost"), SENT, (replace(LOST, at=250), WENT_BACK), [FOUND], id="the relay had lost it before"
        ),
        pytest.param(
            _had(23, "now"), SENT, (LOST, WENT_BACK), [FOUND], id="its recipient has it as it was accepted now"
        ),
        pytest.param(_had(24, "lost"), SENT, (LOST, WENT_BACK), [FOUND], id="its recipient has another"),
        pytest.param(_had(23, "lost", "topic"), SENT, (LOST, WENT_BACK), [FOUND], id="the bytes of topics are kept"),
    ],
)
def test_what_a_recipient_has_may_be_taken_again_behind_what_followed_from_a_home_that_went_back(
    had: Entry, asked: Asked | None, restored: tuple[Restored, ...], found: list[str]
) -> None:
    evidence = _evidence([_accepted(1, 77), msgspec.structs.replace(_accepted(2, 23), message_id="now")])
    evidence.homes["cy"].entries.append(had)
    known = {} if asked is None else {("bo", "bo-23"): asked}
    assert list(IN_ORDER(evidence, Journal(asked=known, restored=list(restored)))) == found


@pytest.mark.parametrize(
    ("expires_at", "found"),
    [
        pytest.param(500, [], id="its relay had taken it for expired, and then set its clock back"),
        pytest.param(501, [FOUND], id="it had not expired by any clock"),
        pytest.param(None, [FOUND], id="it never expires"),
    ],
)
def test_what_had_expired_by_a_relays_wrong_clock_may_be_taken_behind_what_followed(
    expires_at: int | None, found: list[str]
) -> None:
    evidence = _evidence([msgspec.structs.replace(_accepted(*place), at=500) for place in ((1, 77), (2, 23))])
    rows = evidence.homes["bo"].operations
    rows[23] = replace(rows[23], expires_at=expires_at)
    assert list(IN_ORDER(evidence, Journal())) == found


@pytest.mark.parametrize(
    ("order", "restored", "found"),
    [
        pytest.param((77, 22, 23), (LOST, WENT_BACK), [], id="in order"),
        pytest.param((23, 77, 22, 78), (LOST, WENT_BACK), [], id="what is behind nothing does not count"),
        pytest.param(
            (77, 23, 22), (LOST, WENT_BACK), ["the relay took sequence 22 of bo behind 23"], id="out of their own order"
        ),
        pytest.param(
            (77, 23, 22),
            (LOST, replace(WENT_BACK, made_at=100, at=150)),
            ["the relay took sequence 23 of bo behind 77", "the relay took sequence 22 of bo behind 23"],
            id="it went back before anything was sent",
        ),
    ],
)
def test_what_a_home_that_went_back_offers_anew_is_in_order_all_the_same(
    order: tuple[int, ...], restored: tuple[Restored, ...], found: list[str]
) -> None:
    accepted = [msgspec.structs.replace(_accepted(*place), message_id="now") for place in enumerate(order, start=1)]
    evidence = _evidence(accepted)
    evidence.homes["cy"].entries += [_had(22, "lost"), _had(23, "lost")]
    asked = {("bo", name): replace(SENT, client_message_id=name) for name in ("bo-22", "bo-23")}
    assert list(IN_ORDER(evidence, Journal(asked=asked, restored=list(restored)))) == found


ASKED = Asked("bo", "bo-23", "cy", "one", at=399, statuses=[202, 409], accepted_at=400)
OTHER = Asked("bo", "bo-23", "cy", "two", at=700, statuses=[202], accepted_at=701)


@pytest.mark.parametrize(
    ("other", "restored", "found"),
    [
        pytest.param(OTHER, (WENT_BACK,), 0, id="its home forgot it and took another"),
        pytest.param(replace(OTHER, statuses=[], accepted_at=None), (WENT_BACK,), 0, id="it may have taken another"),
        pytest.param(replace(OTHER, statuses=[409], accepted_at=None), (WENT_BACK,), 1, id="it took no other"),
        pytest.param(replace(OTHER, client_message_id="bo-24"), (WENT_BACK,), 1, id="under another id"),
        pytest.param(OTHER, (), 1, id="its home forgot nothing"),
    ],
)
def test_a_repetition_may_be_refused_only_where_another_request_has_its_id_by_then(
    other: Asked, restored: tuple[Restored, ...], found: int
) -> None:
    journal = Journal(asked={("bo", "bo-23"): ASKED}, conflicts=[other], restored=list(restored))
    assert len(list(NO_CONFLICT(_evidence([_accepted(1, 23)]), journal))) == found


@pytest.mark.parametrize(
    ("retired", "refused_at", "restored", "found"),
    [
        pytest.param((450, 451), 500, (WENT_BACK,), 0, id="its home had retired it, and then forgot that"),
        pytest.param((450, 451), 500, (), 1, id="its home forgot nothing"),
        pytest.param((450, 451), 500, (replace(WENT_BACK, machine="cy"),), 1, id="another home went back"),
        pytest.param((450, 451), WENT_BACK.at + 1, (WENT_BACK,), 1, id="it was refused after that, too"),
        pytest.param((510, 511), 500, (WENT_BACK,), 1, id="it was retired later"),
        pytest.param((100, 101), 500, (WENT_BACK,), 1, id="the backup knows that it was retired"),
        pytest.param(None, 500, (WENT_BACK,), 1, id="it was not retired"),
    ],
)
def test_a_repetition_may_be_refused_where_its_home_had_retired_the_id_and_then_forgot_that(
    retired: tuple[int, int] | None, refused_at: int, restored: tuple[Restored, ...], found: int
) -> None:
    asks = [] if retired is None else [replace(RETIRED, client_message_id="bo-23", at=retired[0], told_at=retired[1])]
    journal = Journal(
        asked={("bo", "bo-23"): replace(ASKED, refused_at=refused_at)},
        restored=list(restored),
        requeued={("bo", "row-23"): asks},
    )
    assert len(list(NO_CONFLICT(_evidence([_accepted(1, 23)]), journal))) == found


@pytest.mark.parametrize(
    ("retired", "restored", "is_excused"),
    [
        pytest.param("bo-23", (WENT_BACK,), True, id="its home forgot that its first id was retired"),
        pytest.param("second", (WENT_BACK,), True, id="or the one that took its place"),
        pytest.param("bo-24", (WENT_BACK,), False, id="another message was retired"),
        pytest.param(None, (WENT_BACK,), False, id="nothing was retired"),
        pytest.param("bo-23", (), False, id="its home forgot nothing"),
        pytest.param("bo-23", (replace(WENT_BACK, machine="cy"),), False, id="another home went back"),
    ],
)
def test_a_text_may_arrive_twice_only_where_its_home_may_have_forgotten_that_it_was_sent_anew(
    retired: str | None, restored: tuple[Restored, ...], is_excused: bool
) -> None:
    requeued = [] if retired is None else [replace(RETIRED, client_message_id=retired)]
    asked = {("bo", name): Asked("bo", name, "cy", body, at=399) for name, body in (("bo-23", "one"), ("bo-24", "two"))}
    journal = Journal(asked=asked, restored=list(restored), requeued={("bo", "row-23"): requeued})
    found = list(ONCE(_evidence([], _arrived(1, "second"), _arrived(2, "third")), journal))
    twice = "cy has a message of bo as arrival 1 (second) and as arrival 2 (third)"
    assert found == ([] if is_excused else [twice])
