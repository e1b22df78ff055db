"""Those who use the homes of a storm: they send, act on what came, and run agents, and keep books of what they were told."""

import itertools
import subprocess
import threading
import time
from pathlib import Path

from tests.crash.programs import Program
from tests.hook.processes import start

PACE_S = 0.03  # a send of one home, on average, and between two hook events of its agent
BURST = 30  # sends to one destination without a pause: what waits together can be put in a wrong order
SLOW = 5  # times as long where a pipeline is waited for, which takes its time
AGAIN_S = 0.05  # until an unanswered request is repeated
PAGE = 50  # messages that are acted on together
HOOKS_AT_ONCE = 40  # that one process of an agent tells
SESSIONS = 4
TOPIC = "@news"
MARK = "PLANTED-BODY-51c7"  # in everything that only its recipients may read


class Person:
    """Somebody's home, what is done there, and what was said about it."""

    def __init__(self, name: str, home: Path, others: list[str], log: Path, pace_s: float) -> None:
        self._pace_s = pace_s
        self.name = name
        self.home = home
        self.daemon = Program("daemon", "run", "--home", str(home), log=log)
        self.accepted: list[tuple[str, str]] = []  # destination and id, in the order of the calls
        self.applied: list[tuple[str, str]] = []  # sender and id, which the daemon said it has heard
        self.hooked: set[int] = set()  # numbers of hook events that a receiver said are kept
        self.unanswered = 0
        self._destinations = [*others, TOPIC]
        self._log = log.with_suffix(".agents.log")
        self._over = threading.Event()
        self._quiet = threading.Event()
        self._agent: subprocess.Popen[str] | None = None
        self._threads = [threading.Thread(target=act) for act in (self._send, self._act, self._run_agents)]

    def begin(self) -> None:
        for thread in self._threads:
            thread.start()

    def finish_sending(self) -> None:
        """What is new ends here; what came is still acted on."""
        self._over.set()
        self.strike_agent()
        for thread in (self._threads[0], self._threads[2]):
            thread.join()

    def finish(self) -> None:
        self._over.set()
        self._quiet.set()
        self.strike_agent()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def strike_agent(self) -> None:
        agent = self._agent
        if agent is not None:
            agent.kill()

    def _send(self) -> None:
        """Repeat a request until it is answered, as any careful program does."""
        for first in itertools.count(0, BURST):
            for to in self._destinations:
                for number in range(first, first + BURST):
                    if self._over.is_set():
                        return
                    self._send_one(to, f"{self.name}-{to.removeprefix('@')}-{number}")
                time.sleep(BURST * self._pace_s)

    def _send_one(self, to: str, name: str) -> None:
        body = {"to": to, "message": f"{MARK} {name}", "client_message_id": name}
        while (answer := self.daemon.ask("POST", "/v1/send", body)) is None or answer[0] not in (200, 202):
            assert answer is None or answer[0] >= 500, answer
            self.unanswered += 1
            time.sleep(AGAIN_S)
        self.accepted.append((to, name))

    def _act(self) -> None:
        while not self._quiet.is_set():
            answer = self.daemon.ask("GET", f"/v1/inbox?unapplied=true&limit={PAGE}")
            self.unanswered += answer is None
            found = answer[1]["messages"] if answer is not None and answer[0] == 200 else []
            told = self.daemon.ask("POST", "/v1/inbox/ack", {"ids": [one["id"] for one in found]}) if found else None
            if told is not None and told[0] == 200:
                self.applied += [(one["sender_name"], one["client_message_id"]) for one in found]
            time.sleep(AGAIN_S)

    def _run_agents(self) -> None:
        for first in itertools.count(0, HOOKS_AT_ONCE):
            if self._over.is_set():
                return
            with self._log.open("a") as log:
                self._agent = start(
                    *("feeder", self.home, first, HOOKS_AT_ONCE, SESSIONS, self._pace_s),
                    stdout=subprocess.PIPE,
                    stderr=log.fileno(),
                )
            said, _ = self._agent.communicate()
            # Half a line is no word.
            self.hooked |= {int(line.split()[0]) for line in said.splitlines(keepends=True) if line.endswith("\n")}
