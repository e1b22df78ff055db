"""Writes docs/tables.md from the tables in holdfast.protocol, so that the page cannot say anything else than the code.

python tools/tables.py            writes the page
python tools/tables.py --check    changes nothing; exit status 1 if the page is not what would be written
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from holdfast.protocol import (
    delivery,
    fate,
    hook_queue,
    hook_row,
    idempotency,
    lanes,
    outbox,
    reaction,
    schedule,
)
from holdfast.protocol.refusal import REFUSALS, Refusal, Subject

PAGE = Path(__file__).parent.parent / "docs" / "tables.md"
NOTHING = "none"

StateT = TypeVar("StateT", bound=StrEnum)
SignalT = TypeVar("SignalT", bound=StrEnum)

SUBJECTS = {
    Subject.EVENT: "To an event that somebody publishes",
    Subject.READ: "To somebody who reads a queue, the feed or an export",
    Subject.CALL: "To a call over HTTP, or of the library",
    Subject.HOOK: "To a hook event",
    Subject.CONNECTION: "To a connection, which is closed",
    Subject.START: "To a program that starts",
}


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description="Write docs/tables.md from the tables in holdfast.protocol.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is stale")
    parser.add_argument("--file", type=Path, default=PAGE, help="the page (docs/tables.md)")
    options = parser.parse_args()
    if not options.check:
        options.file.write_text(page(), encoding="utf-8")
        return 0
    if options.file.exists() and options.file.read_text(encoding="utf-8") == page():
        return 0
    print(f"{options.file} is stale: run python tools/tables.py", file=sys.stderr)
    return 1


def page() -> str:
    """The whole page."""
    sections: tuple[Callable[[], Iterable[str]], ...] = (
        refusals,
        outbox_rows,
        requeues,
        answers,
        duplicates,
        reactions,
        lanes_of_outbox,
        facts,
        delivery_rows,
        hook_rows,
        hook_classes,
        hook_verdicts,
        waits,
        ages,
    )
    opening = (
        "<!-- written by tools/tables.py; edit the tables in src/holdfast/protocol instead -->",
        "# Decisions",
        (
            "Everything that Holdfast decides is a table in `src/holdfast/protocol`, and this page is printed from them."
            " A decision table has a row for every case. In a table of moves, an empty cell is something that cannot"
            " happen; code that tries it stops."
        ),
    )
    return "\n\n".join((*opening, *(block for section in sections for block in section()))) + "\n"


def refusals() -> Iterable[str]:
    yield "## Refusals"
    yield (
        "A refusal is a deliberate no. Its code is the same in an HTTP problem document (`code`), in a NIP-01 message"
        " (after the prefix), in a close reason, in the log and in the history. After a *temporary* one the same bytes"
        " may be taken later; after a *permanent* one, offering the same bytes again does not help."
    )
    for subject, title in SUBJECTS.items():
        closes = ("close",) if subject is Subject.CONNECTION else ()
        yield f"### {title}"
        yield table(
            ("code", "lasting", "HTTP", "prefix", *closes, "what to do"),
            (
                (
                    f"`{refusal}`",
                    row.lasting,
                    row.http_status,
                    f"`{row.prefix}: `",
                    *((row.close_code,) if closes else ()),
                    row.sentence,
                )
                for refusal, row in REFUSALS.items()
                if row.subject is subject
            ),
        )


def outbox_rows() -> Iterable[str]:
    yield "## A row of the outbox"
    yield (
        "From the moment the daemon accepts a send, its row lives through these states. A row is never deleted. `done`"
        " is confirmed by the relay, `dead` was given up, `aborted` was requeued under a new id."
    )
    yield diagram(outbox.TRANSITIONS, outbox.Status.PENDING)
    yield moves(outbox.TRANSITIONS, outbox.Status, outbox.Signal)
    yield (
        "Attempts decide how long a row waits before the next one. Only a signal to a row in flight ends an attempt: a"
        " late yes answers one that was counted when it ended."
    )
    yield table(
        ("signal", "counts as an attempt"),
        ((code(signal), yes(counts)) for signal, counts in outbox.COUNTS.items()),
    )


def requeues() -> Iterable[str]:
    yield "## What a requeue does"
    yield (
        "An operator may give the content of a stuck row to a new one. A row that was offered before may have been taken"
        " without our knowing, whether it waits or was given up, so the relay is asked first whether it has these bytes."
        " A row that was never offered needs no asking, and one that carries the relay's id counts as committed."
        " What the relay does not have, because it was restored, recipients may have: their signed receipts show it."
    )
    yield table(
        ("row", "the relay says, or receipts", "signal to the row", "refusal to the operator", "`--force`"),
        (
            (
                status,
                words(word),
                code(act.signal),
                code(act.refusal),
                "requeues all the same" if act.force_helps else "of no use",
            )
            for (status, word), act in outbox.REQUEUES.items()
        ),
    )


def answers() -> Iterable[str]:
    yield "## What the daemon answers to a send"
    yield (
        "`POST /v1/send` looks for a row with the same `client_message_id` and compares fingerprints. Every answer has"
        f" the `client_message_id`; every 409 is an `{Refusal.IDEMPOTENCY_KEY_REUSED}`."
    )
    yield table(
        ("existing row", "fingerprint", "HTTP", "status", "`conflict`", "carries", "inserts a row"),
        (
            (
                existing or NOTHING,
                words(compared),
                answer.http_status,
                answer.status or NOTHING,
                code(answer.conflict),
                listed(answer.carries),
                yes(answer.inserts),
            )
            for (existing, compared), answer in idempotency.ANSWERS.items()
        ),
    )


def duplicates() -> Iterable[str]:
    yield "## What the relay answers to an id it has seen"
    yield (
        "The relay looks for the sender's own id before anything may refuse the event, so that a retry of something"
        " committed always hears so. The bytes of an event never change, so its id tells a repetition from a reuse."
    )
    yield table(
        ("seen under this id", "history kept", "HTTP", "then", "`conflict`", "carries"),
        (
            (
                words(earlier),
                yes(kept),
                answer.http_status,
                "the accept goes on" if answer.goes_on else f"`{answer.refusal}`" if answer.refusal else "it ends here",
                code(answer.conflict),
                listed(answer.carries),
            )
            for (earlier, kept), answer in idempotency.DUPLICATES.items()
        ),
    )


def reactions() -> Iterable[str]:
    yield "## What the sender does with each answer"
    yield (
        "Refusals of the same treatment share a row. Only a permanent no to the event itself ends a row; a no to the"
        " connection, or no answer at all, leaves it waiting. A row whose attempt does not count is due again at once:"
        " the row before it holds its destination, and they leave together."
    )
    groups: dict[reaction.Reaction, dict[str, None]] = {}
    for answer, act in reaction.REACTIONS.items():
        about_event = not isinstance(answer, Refusal) or REFUSALS[answer].subject is Subject.EVENT
        groups.setdefault(act, {})[f"`{answer}`" if about_event else "any refusal of something else"] = None
    yield table(
        ("answer", "signal to the row", "row becomes", "counts", "log", "heeds Retry-After", "seals anew"),
        (
            (
                ", ".join(said),
                code(act.signal),
                act.status,
                yes(act.counts),
                act.level.upper(),
                yes(act.heeds_retry_after),
                yes(act.reseals),
            )
            for act, said in groups.items()
        ),
    )


def lanes_of_outbox() -> Iterable[str]:
    yield "## What is sent next"
    yield (
        "A lane is one destination, with its receipts in a lane of their own. Inside a lane sequence order holds, and a"
        " waiting first row holds its lane and no other. Lanes go in the order of the most urgent row that would leave"
        f" with them, then of their first sequence; a request takes up to {lanes.BATCH_ROWS_MAX} rows, and a lane has"
        " one batch in flight at most."
    )
    yield table(("priority", "goes"), ((priority, rank + 1) for priority, rank in lanes.URGENCY.items()))


def facts() -> Iterable[str]:
    yield "## Which fact is shown"
    yield (
        "Several facts may be known of one message and one recipient; the first of this list that is known is shown."
        f" The ladder is {' → '.join(f'`{rung}`' for rung in fate.LADDER)}; everything else but the receipts is a side"
        " exit. Who stood nearer to the recipient knows better, so a receipt, which the recipient signed, overrides what"
        " relay and sender had made of it. A restored relay that had lost a message and accepts it anew withdraws"
        f" `{fate.Fact.ROLLED_BACK}`."
    )
    yield table(
        ("", "fact", "shown as"),
        (
            (place, code(fact), code(fate.shown(frozenset({fact}))))
            for place, fact in enumerate(fate.PRECEDENCE, start=1)
        ),
    )
    yield (
        "A receipt says what became of the message. Only a message that the recipient stored is shown as delivered; one"
        " that it could not open, or did not keep because it has another message under the same id, is shown as that."
    )
    yield table(
        ("receipt says", "fact", "shown as"),
        ((code(status), code(fact), code(fate.shown(frozenset({fact})))) for status, fact in fate.RECEIPTS.items()),
    )


def delivery_rows() -> Iterable[str]:
    yield "## A delivery row at the relay"
    yield (
        "One message for one recipient. It closes once, with one entry of that name in the history; acknowledging a"
        " closed row succeeds and changes nothing."
    )
    yield diagram(delivery.TRANSITIONS, delivery.State.OPEN)
    yield moves(delivery.TRANSITIONS, delivery.State, delivery.Signal)


def hook_rows() -> Iterable[str]:
    yield "## A row of the hook outbox"
    yield (
        "From the receiver's one durable row to a handler's work. An attempt is counted before the handler runs, so that"
        " one that takes the whole process down counts too. A row that has failed, or lost its worker,"
        f" {hook_row.ATTEMPTS_MAX} times is dead, and its session goes on."
    )
    yield diagram(hook_row.TRANSITIONS, hook_row.HookStatus.PENDING)
    yield moves(hook_row.TRANSITIONS, hook_row.HookStatus, hook_row.HookSignal)
    yield table(
        ("signal", "counts as an attempt"),
        ((code(signal), yes(counts)) for signal, counts in hook_row.COUNTS.items()),
    )
    yield "A handler's failure ends the row at once if its type and text are among these; any other is tried again."
    yield table(
        ("failure", "whose text has"),
        ((f"`{kind.__name__}`", f"`{text}`") for kind, text in hook_row.NON_RETRYABLE),
    )


def hook_classes() -> Iterable[str]:
    yield "## Classes of hook events"
    yield (
        f"A session's queue holds {hook_queue.PENDING_MAX} events. Critical ones are never dropped; bursty ones, and all"
        " types that are not listed, are worth only their latest."
    )
    yield table(("event type", "class"), ((code(kind), found) for kind, found in hook_queue.CLASSES.items()))


def hook_verdicts() -> Iterable[str]:
    yield "## What becomes of a hook event that is offered to its session's queue"
    yield (
        "A row that does not stay with the worker is either coalesced, which ends it with the label"
        f" `{hook_queue.COALESCED_LABEL}<type>`, or sent back with `{hook_queue.SENT_BACK_ERROR}`, to be fetched again"
        f" after {hook_queue.SENT_BACK_WAIT_S} s. A row that went back holds up all later ones of its session until it is"
        " here again or has ended."
    )
    yield table(
        ("verdict", "stays with the worker"),
        ((code(verdict), yes(stays)) for verdict, stays in hook_queue.STAYS.items()),
    )


def waits() -> Iterable[str]:
    yield "## Waits between attempts"
    yield (
        f"In seconds. The sender takes up to {schedule.SEND_JITTER_PERCENT} % off at random, and waits longer if the"
        f" relay says so with Retry-After, up to {schedule.RETRY_AFTER_S_MAX} s."
    )
    yield table(
        ("after attempt", "sender", "hooks"),
        (
            (attempts, seconds(schedule.send_wait(attempts, 0.0)), seconds(schedule.hook_wait(attempts)))
            for attempts in range(1, 9)
        ),
    )


def ages() -> Iterable[str]:
    yield "## How old a row may get"
    yield (
        "A row that would reach the relay after the relay has forgotten its id is not offered any more: it dies unsent."
        f" A relay must remember ids for {schedule.DEDUPE_DAYS_MIN} days at least. One that remembers them for ever is"
        f" offered rows up to {schedule.MAX_AGE_HOURS_DEFAULT} hours old, a default that may be raised to"
        f" {schedule.MAX_AGE_HOURS_CAP}; an explicit override has no limit there."
    )
    scoped = schedule.DedupeMode.RETENTION_SCOPED
    yield table(
        (
            "relay remembers (days)",
            "margin (hours)",
            "rows die after (hours)",
            "a setting may say up to (hours)",
        ),
        (
            (
                days,
                schedule.margin_hours(days),
                schedule.max_age_hours(scoped, days),
                schedule.override_hours_max(days),
            )
            for days in (7, 10, 14, 30, 90, 365)
        ),
    )


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = (header, ["---"] * len(header), *rows)
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def moves(transitions: Mapping[tuple[StateT, SignalT], StateT], states: type[StateT], signals: type[SignalT]) -> str:
    """A transition table with a column for each state; empty where nothing can happen."""
    return table(
        ("", *(f"`{state}`" for state in states)),
        ((code(signal), *(transitions.get((state, signal), "") for state in states)) for signal in signals),
    )


def diagram(transitions: Mapping[tuple[StateT, SignalT], StateT], first: StateT) -> str:
    """The same as a picture, without the signals that change nothing; a state that nothing leaves is an end."""
    arrows: dict[tuple[StateT, StateT], list[str]] = {}
    for (state, signal), after in transitions.items():
        if state is not after:
            arrows.setdefault((state, after), []).append(words(signal))
    leaving = {state for state, _ in arrows}
    lines = (
        "stateDiagram-v2",
        f"[*] --> {first}",
        *(f"{state} --> {after}: {', '.join(signals)}" for (state, after), signals in arrows.items()),
        *(f"{after} --> [*]" for after in dict.fromkeys(after for _, after in arrows) if after not in leaving),
    )
    return "```mermaid\n" + "\n    ".join(lines) + "\n```"


def code(value: str | None) -> str:
    return f"`{value}`" if value else NOTHING


def listed(values: Iterable[str]) -> str:
    return ", ".join(f"`{value}`" for value in values) or NOTHING


def words(value: str) -> str:
    return value.replace("_", " ")


def yes(value: bool) -> str:
    return "yes" if value else "no"


def seconds(microseconds: int) -> str:
    return f"{microseconds / schedule.SECOND:g}"


if __name__ == "__main__":
    sys.exit(main())
