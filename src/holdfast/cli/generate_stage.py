"""What all of generated traffic shares: the relay whose clock is time, one source of chance, and a send on its way."""

from collections.abc import Iterable
from random import Random

from holdfast.cli.generate_people import Accepted, Send
from holdfast.cli.generate_relay import RelayBook

_FAULTED = 2_000  # of a hundred thousand


class Stage:
    """Where everything happens; `relay.at` is the time."""

    def __init__(self, relay: RelayBook, random: Random) -> None:
        self.relay = relay
        self.random = random
        self.confirmed: list[Accepted] = []

    def wait(self, gap: int) -> None:
        """End the commit under way, and let time pass."""
        homes = any(one.send.sender.home for one in self.confirmed)
        anchor = self.relay.end_commit(sign=homes)
        self.relay.at += max(1, gap)
        for accepted in self.confirmed:
            home = accepted.send.sender.home
            if home is not None and anchor is not None:
                home.relayed(accepted, self.relay.at, anchor)
        self.confirmed.clear()

    def tick(self) -> None:
        self.wait(round(self.random.lognormvariate(9.5, 1.2)))  # about 13 ms

    def happens(self, of_a_hundred_thousand: int) -> bool:
        return self.random.randrange(100_000) < of_a_hundred_thousand

    def enqueue(self, send: Send) -> None:
        if send.sender.home is not None:
            send.sender.home.enqueued(send)

    def attempt(self, send: Send) -> None:
        """An attempt, and sometimes a failed one before it."""
        home = send.sender.home
        if home is None:
            return
        if self.happens(_FAULTED):
            home.attempted(send, self.relay.at)
            reason, detail = self.random.choice(
                [
                    ("unreachable", "connection refused"),
                    ("restarted", "the process that sent it ended before the answer"),
                ]
            )
            home.put_back(send, self.relay.at, reason, detail)
        home.attempted(send, self.relay.at)

    def accept(self, send: Send, recipients: Iterable[tuple[str, str]]) -> Accepted:
        accepted = self.relay.accept(send, tuple(recipients))
        if send.sender.home is not None:
            self.confirmed.append(accepted)
        return accepted
