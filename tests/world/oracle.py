"""The judge: the seven points of the contract as named rules over the files that are left, and the rules of each database.

A rule sees the durable files. What was promised to somebody stands in no file, so the rules about promises also see the
journal of those who were told. A rule yields a sentence for everything that breaks it.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from holdfast.device.forks import kept_through
from holdfast.protocol.clock import dominates
from holdfast.protocol.history import Entry, Kind
from holdfast.protocol.hook_queue import Item
from tests.world import evidence
from tests.world.evidence import MESSAGES, Arrived, Evidence, HomeFile, HookRow, Operation, Version
from tests.world.journal import Asked, Journal
from tests.world.people import MARK

if TYPE_CHECKING:
    from tests.world.world import World

HASHES_MAX = 100  # that are looked for on a relay's disk
SHOWN_MAX = 5  # findings of one rule

CLOSED = frozenset({Kind.EXPIRED, Kind.DROPPED, Kind.QUARANTINED, Kind.MODERATED})
# Said of a whole request, before anything of it is looked at; what it has is offered again.
FAULTS_OF_THE_WORLD = frozenset({"unavailable", "shutting_down", "internal_error", "other_log"})
ENDED = frozenset({"done", "dead", "coalesced"})


@dataclass(frozen=True)
class Rule:
    """One thing that the contract promises."""

    point: int
    name: str
    broken: Callable[[Evidence, Journal], Iterator[str]]


def _lost_to_a_restore(home: str, asked: Asked, journal: Journal) -> bool:
    """Whether the home has since gone back to a time before its yes."""
    return any(
        one.machine == home and asked.accepted_at is not None and one.made_at <= asked.accepted_at <= one.at
        for one in journal.restored
    )


def _accepted_but_gone(found: Evidence, journal: Journal) -> Iterator[str]:
    for asked in journal.asked.values():
        home = found.homes[asked.home]
        is_there = asked.client_message_id in home.by_id or asked.client_message_id in home.scheduled
        if asked.is_accepted and not is_there and not _lost_to_a_restore(asked.home, asked, journal):
            yield f"{asked.home} was told yes for {asked.client_message_id}, and has no such row"


def _relayed_but_gone(found: Evidence, journal: Journal) -> Iterator[str]:
    """Except what a relay forgot that went back in time, and its one recipient has all the same."""
    for home in found.homes.values():
        if home.name in found.out and _is_restored(found.relay.name, journal):
            continue  # it is out, and was never told that the relay went back
        proven = {sequence for sequence, _, _ in home.receipted}
        for one in home.operations.values():
            if one.destination_kind == "dm" and one.sequence in proven:
                continue
            if one.status != "done" or one.destination_kind not in {*MESSAGES, "receipt", "admin"}:
                continue
            entry = found.relay.entry(one.log_id, one.history_id)
            if entry is None or entry.client_message_id != one.client_message_id:
                yield f"{home.name} was told that {one.client_message_id} is at {one.history_id}, and it is not"


def _document_relayed_but_gone(found: Evidence, journal: Journal) -> Iterator[str]:
    for home in found.followers:
        for one in home.operations.values():
            if one.destination_kind != "feed" or one.status != "done" or one.event_id is None:
                continue
            entry, is_here = found.relay.entry(one.log_id, one.history_id), one.log_id == found.relay.log_id
            if (entry is None and is_here) or (entry is not None and entry.event_id != one.event_id):
                yield f"{home.name} was told that {found.relay.name} has a version at {one.history_id}, and it has not"


def _anchor_not_in_the_chain(found: Evidence, journal: Journal) -> Iterator[str]:
    for home in found.followers:
        for told in home.entries:
            if told.kind is not Kind.RELAYED or not told.detail:
                continue
            log_id, seq = told.detail[:16], int.from_bytes(told.detail[16:24], "big")
            entry = found.relay.entry(log_id, seq)
            if entry is not None and entry.chain != told.detail[24:56]:
                yield f"{home.name} has the relay's signature under another entry {seq} than the relay has"


def _said_but_gone(found: Evidence, journal: Journal) -> Iterator[str]:
    for heard in journal.heard:
        if not heard.is_yes or heard.log_id is None:
            continue
        log_id = bytes.fromhex(heard.log_id)
        is_kept = log_id == found.relay.log_id or (heard.seq or 0) <= (kept_through(log_id, found.relay.forks) or 0)
        entry = found.relay.entry(log_id, heard.seq)
        if is_kept and (entry is None or (entry.event_id or b"").hex() != heard.event_id):
            yield f"the relay said yes to {heard.client_message_id} at {heard.seq}, and does not have it there"


def _repetition_refused(found: Evidence, journal: Journal) -> Iterator[str]:
    for heard in journal.heard:
        if heard.was_there and heard.status >= 400 and heard.code not in FAULTS_OF_THE_WORLD:
            yield f"the relay had {heard.client_message_id} and said {heard.code} to its repetition"


def _acknowledged_but_gone(found: Evidence, journal: Journal) -> Iterator[str]:
    for entry in found.relay.of(Kind.DELIVERED):
        home = found.home_of(entry.recipient or "")
        if home is None:
            continue
        about = _origin(found, entry)
        if about is None:
            continue
        if about.kind is Kind.RECEIPT and (_is_restored(home.name, journal) or _is_restored(found.relay.name, journal)):
            continue  # a receipt about a send that was forgotten, or of which a receipt is known, is not kept
        if about.event_id not in home.arrived | home.receipts:
            yield f"{home.name} acknowledged {entry.client_message_id} of {_name(found, entry.sender)}, and does not have it"


def _receipt_without_the_message(found: Evidence, journal: Journal) -> Iterator[str]:
    for home in found.homes.values():
        for sequence, recipient, _ in home.receipted:
            other, sent = found.home_of(recipient), home.operations.get(sequence)
            if other is None or sent is None or sent.event_id is None:
                continue
            if _is_restored(other.name, journal) and _is_restored(found.relay.name, journal):
                continue  # both went back: nobody is left who could bring it again
            # A home that went back may have sealed anew what it had sent, and so may one whose relay went back, if a key had
            # changed since: the receipt is about what it sent first.
            is_sealed_anew = _is_restored(home.name, journal) or _is_restored(found.relay.name, journal)
            is_known = any(
                (one.sender, one.client_message_id) == (home.member, sent.client_message_id) for one in other.inbox
            )
            if sent.event_id not in other.arrived and not (is_known and is_sealed_anew):
                yield f"{home.name} has a receipt of {other.name} for {sent.client_message_id}, which is not there"


def _unknown_to_its_sender(found: Evidence, journal: Journal) -> Iterator[str]:
    """Whatever arrived is receipted, and the receipt has come; unless somebody forgot something on the way."""
    if _is_restored(found.relay.name, journal):
        return
    here = [
        home for home in found.homes.values() if home.name not in found.out and not _is_restored(home.name, journal)
    ]
    for home in here:
        for one in home.inbox:
            sender = next((other for other in here if other.member == one.sender), None)
            sent = None if sender is None else sender.by_id.get(one.client_message_id)
            if sender is None or sent is None:
                continue
            if not any((sequence, who) == (sent.sequence, home.member) for sequence, who, _ in sender.receipted):
                yield f"{home.name} has {one.client_message_id}, and {sender.name} has no receipt for it"


def _fate_unknown(found: Evidence, journal: Journal) -> Iterator[str]:
    """A sender knows whom its message did not reach, and why."""
    skipped = [
        (entry, member, outcome)
        for entry in found.relay.of(Kind.ACCEPTED)
        for member, outcome in entry.recipients
        if outcome != "queued"
    ]
    closed = [(entry, entry.recipient, entry.kind.value) for entry in found.relay.of(*CLOSED) if entry.recipient]
    for entry, member, kind in (*skipped, *closed):
        home = found.home_of(entry.sender or "")
        if home is None or home.name in found.out or _is_restored(home.name, journal):
            continue
        sent = home.by_id.get(entry.client_message_id or "")
        if sent is not None and (sent.sequence, member, kind) not in home.fates:
            yield f"{sent.client_message_id} of {home.name} was {kind} at {_name(found, member)}, and its sender does not know"


def _confirmed_but_not_applied(found: Evidence, journal: Journal) -> Iterator[str]:
    for told in journal.confirmed:
        home = found.homes[told.home]
        is_undone = any(one.machine == told.home and one.made_at <= told.at <= one.at for one in journal.restored)
        is_applied = any(one.id == told.message and one.is_applied for one in home.inbox)
        if not is_undone and not (told.is_kept and is_applied):
            yield f"{told.home} was told that {told.message} is applied, and it {'was not yet' if is_applied else 'is not'}"


def _sent_though_cancelled(found: Evidence, journal: Journal) -> Iterator[str]:
    for asked in journal.asked.values():
        at = asked.cancelled_at
        is_undone = any(
            one.machine == asked.home and at is not None and one.made_at <= at <= one.at for one in journal.restored
        )
        if at is not None and not is_undone and asked.client_message_id in found.homes[asked.home].by_id:
            yield f"{asked.home} was told that {asked.client_message_id} is cancelled, and it is in the log"


def _delivered_though_kept_back(found: Evidence, journal: Journal) -> Iterator[str]:
    """Neither what its recipient does not want, or had no room for, nor what an operator took down, is delivered from then on."""
    kept_back: set[tuple[str | None, str | None]] = set()
    for entry in found.relay.entries.values():
        if entry.kind is Kind.ACCEPTED:
            kept_back |= {(entry.message_id, member) for member, outcome in entry.recipients if outcome != "queued"}
        elif entry.kind is Kind.MODERATED:
            kept_back |= {(entry.message_id, member) for member in found.relay.names}
        elif entry.kind is Kind.DELIVERED and (entry.message_id, entry.recipient) in kept_back:
            yield f"{entry.client_message_id} came to {_name(found, entry.recipient)}, from whom it was to be kept"


def _accepted_twice(found: Evidence, journal: Journal) -> Iterator[str]:
    seen: dict[tuple[str | None, str | None], int] = {}
    for entry in found.relay.of(Kind.ACCEPTED):
        key = (entry.sender, entry.client_message_id)
        if key in seen:
            yield f"{entry.client_message_id} of {_name(found, entry.sender)} was accepted at {seen[key]} and at {entry.seq}"
        seen[key] = entry.seq


def _arrived_twice(found: Evidence, journal: Journal) -> Iterator[str]:
    """Every text is sent once. What an operator had sent anew under another id may come in its first form, too."""
    for home in found.homes.values():
        texts: dict[tuple[str, str], list[Arrived]] = defaultdict(list)
        for one in home.inbox:
            if one.body is not None:
                texts[one.sender, one.body].append(one)
        for (sender, text), arrivals in texts.items():
            names = [one.client_message_id for one in arrivals]
            excused = _retired(found, found.home_of(sender), text, names, journal)
            counted = [one for one in arrivals if one.client_message_id not in excused]
            if len(counted) > 1:
                places = " and ".join(f"as arrival {one.arrival} ({one.client_message_id})" for one in counted)
                yield f"{home.name} has a message of {_name(found, sender)} {places}"


def _retired(found: Evidence, home: HomeFile | None, text: str, names: list[str], journal: Journal) -> set[str]:
    """Which of the ids under which one text arrived a late packet may have brought behind its operator's back."""
    if home is None:
        return set(names)
    asks = [ask for (name, _), asks in journal.requeued.items() if name == home.name for ask in asks]
    if _is_restored(home.name, journal):
        first = {one.client_message_id for one in journal.asked.values() if (one.home, one.body) == (home.name, text)}
        if any(ask.client_message_id in {*names, *first} for ask in asks):
            return set(names)  # it may have forgotten that another row had taken the place of the first
    rows = [home.by_id[name] for name in names if name in home.by_id]
    return {row.client_message_id for row in rows if _may_come_late(found, home, row, journal)}


def _may_come_late(found: Evidence, home: HomeFile, row: Operation, journal: Journal) -> bool:
    """It left before it was retired, and whoever retired it insisted, or the relay did not have it when it was asked."""
    if row.status != "aborted" or not home.was_offered_before_it_was_retired(row):
        return False
    if _is_restored(found.relay.name, journal):
        return True  # it had it, was asked, and did not know it any more
    asks = journal.requeued.get((home.name, row.id), [])
    had_at = min(
        (one.at for one in journal.heard if one.is_yes and one.event_id == (row.event_id or b"").hex()), default=inf
    )
    return any(ask.is_forced or ask.at < had_at for ask in asks)


def _offered_though_retired(found: Evidence, journal: Journal) -> Iterator[str]:
    for home in found.homes.values():
        for row in home.operations.values():
            if row.superseded_by is not None and row.status != "aborted":
                yield f"{row.client_message_id} of {home.name} is {row.status}, and another row has taken its place"
            elif home.was_offered_when_it_was_retired(row):
                yield f"{row.client_message_id} of {home.name} was offered after it was retired"


def _id_of_two_things(found: Evidence, journal: Journal) -> Iterator[str]:
    for asked in journal.asked.values():
        home = found.homes[asked.home]
        row = home.by_id.get(asked.client_message_id)
        if not asked.is_accepted or row is None or _lost_to_a_restore(asked.home, asked, journal):
            continue
        if row.body not in (None, asked.body):
            yield f"{asked.client_message_id} at {asked.home} is another message than the one that was accepted"
    for other in journal.conflicts:
        first = journal.asked[other.home, other.client_message_id]
        if other.is_accepted and not _lost_to_a_restore(other.home, first, journal):
            yield f"{other.home} said yes to {other.client_message_id} for two messages"
    events: dict[tuple[str | None, str | None], bytes | None] = {}
    for entry in found.relay.of(Kind.ACCEPTED):
        key = (entry.sender, entry.client_message_id)
        if events.setdefault(key, entry.event_id) != entry.event_id:
            yield f"the relay took two events as {entry.client_message_id} of {_name(found, entry.sender)}"


def _name_of_two_sends(found: Evidence, journal: Journal) -> Iterator[str]:
    """Epoch and sequence name a send for ever, whatever became of the home that gave the name."""
    names: dict[tuple[object, ...], bytes | None] = {}
    for entry in found.relay.of(Kind.ACCEPTED, Kind.RECEIPT, Kind.ADMIN):
        key = (entry.sender, entry.epoch, entry.sequence)
        if entry.epoch is not None and names.setdefault(key, entry.event_id) != entry.event_id:
            yield f"{_name(found, entry.sender)} gave two sends the name {entry.sequence} of one epoch"


def _subscriber_missing(found: Evidence, journal: Journal) -> Iterator[str]:
    """Whoever was put out is missing from then on."""
    entries = [entry for entry in found.relay.of(Kind.ACCEPTED) if entry.destination_kind == "topic"]
    for home in found.homes.values():
        named = [home.member in ({member for member, _ in entry.recipients} | {entry.sender}) for entry in entries]
        is_out = home.member in found.relay.revoked
        for place, entry in enumerate(entries):
            if not named[place] and (not is_out or any(named[place:])):
                yield f"entry {entry.seq} does not say what {entry.client_message_id} is to {home.name}"


def _same_request_refused(found: Evidence, journal: Journal) -> Iterator[str]:
    """Except where a home went back, forgot the request, and then took another one under its id.

    And except where it had retired the id before it refused, and then forgot that.
    """
    for asked in journal.asked.values():
        row = found.homes[asked.home].by_id.get(asked.client_message_id)
        if _lost_to_a_restore(asked.home, asked, journal) and _may_be_anothers(asked, journal):
            continue
        if _was_retired_and_forgotten(asked, journal):
            continue
        if row is not None and row.status in ("pending", "inflight", "done") and 409 in asked.statuses:
            yield f"{asked.home} refused a repetition of {asked.client_message_id}, which it has"


def _was_retired_and_forgotten(asked: Asked, journal: Journal) -> bool:
    """Whether an operator had a request sent anew before it was last refused, and its home went back over both after that."""
    refused_at = asked.refused_at or 0
    retired = [
        one
        for (home, _), asks in journal.requeued.items()
        for one in asks
        if (home, one.client_message_id) == (asked.home, asked.client_message_id) and one.at <= refused_at
    ]
    back = [one for one in journal.restored if one.machine == asked.home and refused_at <= one.at]
    return any(one.made_at <= ask.told_at for one in back for ask in retired)


def _may_be_anothers(asked: Asked, journal: Journal) -> bool:
    """Whether something else was asked for under the id of a request, and got a yes, or no answer that anybody heard."""
    return any(
        (other.home, other.client_message_id) == (asked.home, asked.client_message_id)
        and (other.is_accepted or not other.statuses)
        for other in journal.conflicts
    )


def _accepted_out_of_order(found: Evidence, journal: Journal) -> Iterator[str]:
    """Except what was offered and then retired: a late packet may bring it at any time, and so may a home that went back.

    And except what its recipient already has: a home that went back offers it anew if the relay lost it, in order all the same.
    And except what had expired by the time of the relay's history: it was refused by a clock that ran ahead, and asked again later.
    """
    last: dict[tuple[object, ...], int] = defaultdict(int)
    last_anew: dict[tuple[object, ...], int] = defaultdict(int)
    retired = {
        (home.member, one.event_id)
        for home in found.homes.values()
        for one in home.operations.values()
        if one.status == "aborted" and home.was_offered_before_it_was_retired(one)
    }
    retired |= {(home.member, event) for home in found.homes.values() for event in _retired_unknown_to(home, journal)}
    expires = {
        (home.member, one.event_id): one.expires_at
        for home in found.homes.values()
        for one in home.operations.values()
        if one.expires_at is not None
    }
    receipted = _receipted_unknown_to(found, journal)
    for entry in found.relay.of(Kind.ACCEPTED):
        sent = (entry.sender or "", entry.event_id or b"")
        if sent in retired or expires.get(sent, entry.at + 1) <= entry.at:
            continue
        lane = (entry.sender, entry.epoch, entry.destination_kind, entry.destination_ref)
        sequence, order = entry.sequence or 0, last
        if sequence < last[lane] and sent in receipted and entry.message_id not in receipted[sent]:
            order = last_anew
        if sequence < order[lane]:
            yield f"the relay took sequence {sequence} of {_name(found, entry.sender)} behind {order[lane]}"
        order[lane] = sequence


def _retired_unknown_to(home: HomeFile, journal: Journal) -> Iterator[bytes]:
    """Events that were retired between a backup and its restoration: the home has forgotten that, and offers them as they were.

    Those bytes have the epoch of the home before, which went on to send what follows. Sealed anew they would have the new
    one, but the relay may have them: it recognises a repetition by its bytes, and would take them for another message's.
    """
    for (name, _), asks in journal.requeued.items():
        for ask in asks if name == home.name else ():
            is_forgotten = any(
                one.machine == name and one.made_at <= ask.told_at and ask.at <= one.at for one in journal.restored
            )
            if ask.event_id is not None and is_forgotten:
                yield bytes.fromhex(ask.event_id)


def _receipted_unknown_to(found: Evidence, journal: Journal) -> dict[tuple[str, bytes], set[str | None]]:
    """Direct messages that a home may offer anew, with the ids that their relay had given them when they came to their recipients.

    A home drops the bytes of a message that was receipted. If the relay then loses it, nobody offers it again, until the home
    goes back to a time when it had the bytes. What followed has been accepted by then.
    """
    ids: dict[tuple[str, bytes], set[str | None]] = defaultdict(set)
    for home in found.homes.values():
        for entry in home.entries:
            if entry.kind is Kind.STORED and entry.destination_kind == "dm" and _may_be_back(found, entry, journal):
                ids[entry.sender or "", entry.event_id or b""].add(entry.message_id)
    return ids


def _may_be_back(found: Evidence, entry: Entry, journal: Journal) -> bool:
    """Whether a message's home was backed up with it, its relay went back after that, and then the home.

    The time at which its recipient got it would say less: that clock may be wrong by an hour, and the home keeps the bytes
    for a while after that.
    """
    home = found.home_of(entry.sender or "")
    if home is None:
        return False
    asked = journal.asked.get((home.name, entry.client_message_id or ""))
    asked_at = 0 if asked is None else asked.at  # None: an operator had it sent anew
    lost_at = [one.at for one in journal.restored if one.machine == found.relay.name]
    backups = [one for one in journal.restored if one.machine == home.name]
    return any(asked_at <= one.made_at <= at <= one.at for one in backups for at in lost_at)


def _arrived_out_of_order(found: Evidence, journal: Journal) -> Iterator[str]:
    for home in found.homes.values():
        positions: dict[bytes, int] = defaultdict(int)
        for one in home.inbox:
            if one.replayed:
                continue
            if one.history_id < positions[one.log_id]:
                yield f"{home.name} got position {one.history_id} behind {positions[one.log_id]}"
            positions[one.log_id] = max(positions[one.log_id], one.history_id)


def _read_but_gone(found: Evidence, journal: Journal) -> Iterator[str]:
    yield from dict.fromkeys([*(what for _, what in journal.unread), *found.unread])


def _ended_for_nothing(found: Evidence, journal: Journal) -> Iterator[str]:
    for name, why in journal.ended.items():
        if name not in journal.revoked:
            yield f"{name} has ended for good because of {why}, and nobody put it out"


def _waits_for_nobody(found: Evidence, journal: Journal) -> Iterator[str]:
    for member, count in found.relay.open.items():
        if member in found.relay.revoked:
            yield f"{count} messages wait for {_name(found, member)}, who is out"


def _edit_but_gone(found: Evidence, journal: Journal) -> Iterator[str]:
    for edited in journal.edited:
        home = found.homes[edited.home]
        told = {(entry.event_id or b"").hex() for entry in home.entries if entry.kind is Kind.SNAPSHOT}
        is_undone = any(one.machine == edited.home and one.made_at <= edited.at <= one.at for one in journal.restored)
        if edited.version not in told and not is_undone:
            yield f"{edited.home} was told that version {edited.version[:8]} is kept, and it is not"


def _documents_differ(found: Evidence, journal: Journal) -> Iterator[str]:
    """Everybody has as current what no version anywhere knows of, and nothing else."""
    known: dict[bytes, Version] = {one.event_id: one for versions in found.shelf.values() for one in versions}
    frontier = {
        one.event_id
        for one in known.values()
        if not any(other.d == one.d and dominates(other.clock, one.clock) for other in known.values())
    }
    for name, versions in found.shelf.items():
        current = {one.event_id for one in versions if one.is_current}
        for missing in sorted(frontier - current):
            yield f"{name} lacks version {missing.hex()[:8]} of {known[missing].d[:8]}, which nothing has replaced"
        for stale in sorted(current - frontier):
            yield f"{name} shows version {stale.hex()[:8]} of {known[stale].d[:8]}, which was replaced"


def _hook_lost(found: Evidence, journal: Journal) -> Iterator[str]:
    handled = {one.event_id for one in journal.handled}
    for hooked in journal.hooked:
        home = found.homes[hooked.home]
        if home.name in found.out:
            continue  # no daemon runs there any more
        rows = [one for one in home.hooks if (one.session_id, one.number) == (hooked.session_id, hooked.number)]
        if not rows or rows[0].status not in ENDED:
            status = rows[0].status if rows else "not there"
            yield f"hook event {hooked.number} of {hooked.session_id} at {hooked.home} is {status}"
        elif rows[0].status == "done" and rows[0].event_id not in handled:
            yield f"hook event {hooked.number} of {hooked.session_id} at {hooked.home} is done, and nobody handled it"
        elif rows[0].status == "coalesced" and Item(0, hooked.event_type).is_critical:
            yield f"hook event {hooked.number} of {hooked.session_id} at {hooked.home} is critical, and nobody handled it"


def _hooks_out_of_order(found: Evidence, journal: Journal) -> Iterator[str]:
    """Nothing is handled any more once something was that had to wait for it."""
    for home in found.homes.values():
        rows = {one.event_id: one for one in home.hooks}
        handled: dict[str, list[HookRow]] = defaultdict(list)
        for one in journal.handled:
            if one.home == home.name and one.event_id in rows:
                handled[one.session_id].append(rows[one.event_id])
        for session, order in handled.items():
            for place, row in enumerate(order):
                later = [one for one in order[:place] if one.number > row.number and _must_precede(row, one)]
                if later:
                    yield f"hook event {row.number} of {session} at {home.name} was handled behind {later[0].number}"


def _coalesced_across_critical(found: Evidence, journal: Journal) -> Iterator[str]:
    for home in found.homes.values():
        sessions: dict[str, list[HookRow]] = defaultdict(list)
        for row in sorted(home.hooks, key=lambda one: one.number):
            sessions[row.session_id].append(row)
        for session, rows in sessions.items():
            for place, row in enumerate(rows):
                if row.status != "coalesced":
                    continue
                following = next((one for one in rows[place + 1 :] if _is_critical(one) or _is_same(one, row)), None)
                if following is None or _is_critical(following):
                    yield f"hook event {row.number} of {session} at {home.name} stands behind a critical one that came later"


def _is_critical(row: HookRow) -> bool:
    return Item(row.id, row.event_type).is_critical


def _is_same(one: HookRow, other: HookRow) -> bool:
    return one.event_type == other.event_type


def _must_precede(earlier: HookRow, later: HookRow) -> bool:
    return _is_critical(earlier) or _is_critical(later)


def _lost_in_silence(found: Evidence, journal: Journal) -> Iterator[str]:
    """A send that was accepted is with its recipients, or a history says why not."""
    closed = {(entry.message_id, entry.recipient) for entry in found.relay.of(*CLOSED)}
    for asked in journal.asked.values():
        home = found.homes[asked.home]
        first = home.by_id.get(asked.client_message_id)
        if not asked.is_accepted or first is None:
            continue
        row = home.last(first)
        if home.name in found.out:
            continue  # what it still had is nobody's business
        if row.status == "dead":
            yield from _died_of_nothing(home, row.sequence, _may_die_of(found, row, asked, journal))
        elif row.status == "aborted":
            yield f"{row.client_message_id} of {home.name} was retired, and nothing took its place"
        entry = found.relay.entry(row.log_id, row.history_id)
        if row.status != "done" or entry is None:
            continue
        for member, outcome in entry.recipients:
            other = found.home_of(member)
            is_there = other is None or entry.event_id in other.arrived
            # It has ended, and a relay that went back has forgotten that it is out: what waits for it is not closed.
            is_forgotten = other is not None and other.name in found.out and member not in found.relay.revoked
            if outcome == "queued" and not (is_there or is_forgotten) and (entry.message_id, member) not in closed:
                yield f"{row.client_message_id} of {home.name} never came to {_name(found, member)}, and nobody says why"


def _may_die_of(found: Evidence, row: Operation, asked: Asked, journal: Journal) -> frozenset[str]:
    """What a send may be given up for."""
    reasons = set() if asked.expires_at is None else {"max_age_passed"}
    if found.relay.names.get(row.destination_ref or "") in found.out:
        reasons.add("destination_unknown")
    if any(one.machine == asked.home and one.at >= asked.at for one in journal.restored):
        reasons.add("idempotency_key_reused")  # the home forgot that it had used this id, and the relay did not
    return frozenset(reasons)


def _died_of_nothing(home: HomeFile, sequence: int, may: frozenset[str]) -> Iterator[str]:
    ends = [entry for entry in home.entries if entry.kind is Kind.DEAD and entry.sequence == sequence]
    # That the relay lost a dead row that it had is told once more, and is no reason.
    reasons = [entry.reason or "" for entry in ends if entry.reason != "rolled_back"]
    if not reasons or not set(reasons) <= may:
        yield f"send {sequence} of {home.name} was given up because of {reasons}, which nothing here calls for"


def _unreadable(found: Evidence, journal: Journal) -> Iterator[str]:
    for home in found.homes.values():
        for one in home.inbox:
            if one.status == "unreadable":
                yield f"{home.name} cannot open {one.client_message_id} of {_name(found, one.sender)}"


def _seen_by_the_relay(found: Evidence, journal: Journal) -> Iterator[str]:
    """Neither a text, nor what belongs to it, nor a hash of it."""
    hashes = [hashlib.sha256(asked.body.encode()) for asked in [*journal.asked.values()][-HASHES_MAX:]]
    forms = [MARK.encode(), MARK.encode().hex().encode(), *(one.digest() for one in hashes)]
    forms += [one.hexdigest().encode() for one in hashes]
    if any(form in found.relay.raw for form in forms):
        yield f"{found.relay.name} has on its disk what only its members may see"


def _origin(found: Evidence, entry: Entry) -> Entry | None:
    """The entry of what a closing entry is about."""
    return next(
        (one for one in found.relay.of(Kind.ACCEPTED, Kind.RECEIPT) if one.message_id == entry.message_id), None
    )


def _is_restored(machine: str, journal: Journal) -> bool:
    return any(one.machine == machine for one in journal.restored)


def _name(found: Evidence, member: str | None) -> str:
    return found.relay.names.get(member or "", member or "nobody")


RULES: tuple[Rule, ...] = (
    Rule(1, "what a caller was told is accepted is in the log", _accepted_but_gone),
    Rule(1, "what a device was told is relayed is in the relay's history", _relayed_but_gone),
    Rule(
        1, "what a device was told a relay keeps of a document is in that relay's history", _document_relayed_but_gone
    ),
    Rule(1, "what an application was told is applied is so", _confirmed_but_not_applied),
    Rule(1, "what the relay signed for is in its chain", _anchor_not_in_the_chain),
    Rule(1, "what a recipient acknowledged is on its disk", _acknowledged_but_gone),
    Rule(2, "a receipt is proof of arrival", _receipt_without_the_message),
    Rule(2, "whoever sent what arrived has a receipt for it", _unknown_to_its_sender),
    Rule(6, "a sender knows whom its message did not reach", _fate_unknown),
    Rule(1, "what the relay said yes to is in its history", _said_but_gone),
    Rule(3, "a repetition of what the relay has is never refused", _repetition_refused),
    Rule(3, "the relay accepts an id once", _accepted_twice),
    Rule(3, "a message arrives once", _arrived_twice),
    Rule(3, "what was retired is not offered any more", _offered_though_retired),
    Rule(4, "an id means one message for ever", _id_of_two_things),
    Rule(4, "an epoch and a sequence name one send for ever", _name_of_two_sends),
    Rule(6, "a topic's message has an outcome for every subscriber", _subscriber_missing),
    Rule(4, "the same request is never a conflict", _same_request_refused),
    Rule(5, "messages to one destination are accepted in sequence order", _accepted_out_of_order),
    Rule(5, "a queue comes in order", _arrived_out_of_order),
    Rule(6, "an accepted message arrives, or somebody says why not", _lost_in_silence),
    Rule(6, "what arrives can be opened", _unreadable),
    Rule(1, "an edit that was told is kept", _edit_but_gone),
    Rule(1, "what a home has read of the feed it has", _read_but_gone),
    Rule(6, "only a home that was put out ends for good", _ended_for_nothing),
    Rule(6, "nothing waits for a member that is out", _waits_for_nobody),
    Rule(2, "what was cancelled is not sent", _sent_though_cancelled),
    Rule(6, "what is to be kept from somebody does not come to it", _delivered_though_kept_back),
    Rule(6, "every home and every relay have the same documents", _documents_differ),
    Rule(6, "a hook event that was told comes to its end", _hook_lost),
    Rule(5, "a session's hook events are handled in order", _hooks_out_of_order),
    Rule(5, "nothing is coalesced across a critical event", _coalesced_across_critical),
    Rule(7, "no relay ever sees a text, an object or a note, nor a hash of a text", _seen_by_the_relay),
)


def _is_of_one_restored_file(broken: str, journal: Journal) -> bool:
    """Homes go back here with their log alone; the hook database beside it knows of events that the log has forgotten."""
    name = broken.partition(" ")[0].rstrip(":")
    return "every_hook_event_ends_once_and_after_it_came" in broken and _is_restored(name, journal)


def judge(world: "World") -> list[str]:
    """Everything that is wrong with a world."""
    findings = [f"mistake: {mistake}" for mistake in world.journal.mistakes]
    broken_rules = list(world.journal.broken)
    for machine in world.machines:
        broken_rules += [f"{machine.name}: {broken}" for broken in evidence.broken_rules(machine.disk)]
    findings += [f"check: {broken}" for broken in broken_rules if not _is_of_one_restored_file(broken, world.journal)]
    files = evidence.read(world)
    for rule in RULES:
        broken = [
            what for found in files for what in rule.broken(found, world.journal.about(found.relay.name, found.homes))
        ]
        findings += [f"{rule.point}. {rule.name}: {what}" for what in broken[:SHOWN_MAX]]
        if len(broken) > SHOWN_MAX:
            findings.append(f"{rule.point}. {rule.name}: and {len(broken) - SHOWN_MAX} more")
    return findings
