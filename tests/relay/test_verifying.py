"""Signatures checked by a process of their own: as they are checked here, whatever becomes of the process."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from holdfast.protocol.event import Event
from holdfast.relay.screening import verify_here
from holdfast.relay.verifying import HERE_MAX, Verifiers
from tests.people import Person
from tests.relay.running import ANSWER_S

COUNT = HERE_MAX + 5


@pytest.fixture(scope="module")
def events() -> list[Event]:
    """Every other one is not what its author signed."""
    alice, bob = Person("alice"), Person("bob")
    made = [alice.message(bob, b"%d" % number) for number in range(COUNT)]
    return [_forged(event, number) if number % 2 else event for number, event in enumerate(made)]


def _forged(event: Event, number: int) -> Event:
    faults = ({"sig": "0" * 128}, {"pubkey": "f" * 64}, {"id": "0" * 64})
    return msgspec.structs.replace(event, **faults[number // 2 % len(faults)])


@pytest.fixture
def verifiers(events: list[Event]) -> Iterator[Verifiers]:
    found = Verifiers(1)
    _until_ready(found, events)
    yield found
    found.close()


def _until_ready(verifiers: Verifiers, events: list[Event]) -> None:
    """A process that has begun is asked; before, signatures are checked here."""
    ends = time.monotonic() + ANSWER_S
    while not _process(verifiers).is_ready():
        assert time.monotonic() < ends
        assert verifiers.verify(events) == verify_here(events)
        time.sleep(0.01)


def _process(verifiers: Verifiers) -> Any:
    process = verifiers._idle.get(timeout=ANSWER_S)
    verifiers._idle.put(process)
    return process


def _pid(verifiers: Verifiers) -> int:
    return int(_process(verifiers)._process.pid)


def test_it_finds_what_is_found_here(verifiers: Verifiers, events: list[Event]) -> None:
    expected = [number % 2 == 0 for number in range(COUNT)]
    assert verifiers.verify(events) == expected == verify_here(events)


def test_a_few_are_checked_where_they_are(verifiers: Verifiers, events: list[Event]) -> None:
    os.kill(_pid(verifiers), signal.SIGSTOP)  # it would not answer
    assert verifiers.verify(events[:HERE_MAX]) == [number % 2 == 0 for number in range(HERE_MAX)]
    os.kill(_pid(verifiers), signal.SIGCONT)


def test_a_process_that_died_is_made_up_for_and_replaced(verifiers: Verifiers, events: list[Event]) -> None:
    before = _pid(verifiers)
    os.kill(before, signal.SIGKILL)
    assert verifiers.verify(events) == verify_here(events)
    assert _pid(verifiers) != before
    _until_ready(verifiers, events)
    assert verifiers.verify(events) == verify_here(events)


def test_when_it_is_closed_its_process_ends(events: list[Event]) -> None:
    verifiers = Verifiers(1)
    pid = _pid(verifiers)
    verifiers.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
