"""Any sequence of calls, compared with a dictionary that does the same in the most obvious way."""

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast import OperationLog, SequenceTaken
from holdfast.cli.check import inspect

objects = st.sampled_from([bytes([number]) * 32 for number in range(3)])
sequences = st.integers(0, 12)
blobs = st.binary(max_size=20)


class LogAgainstDictionary(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "log"
        self.log = OperationLog(self.path)
        self.expected: dict[int, tuple[bytes, bytes | None, bool]] = {}
        self.epochs = {self.log.epoch}

    @rule(object_id=objects, sequence=sequences, blob=blobs)
    def append(self, object_id: bytes, sequence: int, blob: bytes) -> None:
        holder = self.expected.get(sequence)
        try:
            written = self.log.append(object_id, sequence, blob)
        except SequenceTaken:
            assert holder is not None
            assert holder[0] != object_id
            return
        assert written is (holder is None)
        if holder is None:
            self.expected[sequence] = (object_id, blob, False)
        else:
            assert holder[0] == object_id

    @rule(object_id=objects, blob=blobs)
    def append_next(self, object_id: bytes, blob: bytes) -> None:
        advised = self.log.next_sequence()
        assert self.log.append_next(object_id, blob) == advised == max(self.expected, default=-1) + 1
        self.expected[advised] = (object_id, blob, False)

    @rule(object_id=objects, sequence=sequences)
    def mark_delivered(self, object_id: bytes, sequence: int) -> None:
        known = self.expected.get(sequence)
        due = known is not None and known[0] == object_id and not known[2]
        assert self.log.mark_delivered(object_id, sequence) is due
        if known is not None and due:
            self.expected[sequence] = (object_id, known[1], True)

    @rule(through=sequences)
    def prune_blobs(self, through: int) -> None:
        due = [s for s, (_, blob, done) in self.expected.items() if s <= through and done and blob is not None]
        assert self.log.prune_blobs(through) == len(due)
        for sequence in due:
            self.expected[sequence] = (self.expected[sequence][0], None, True)

    @rule()
    def reopen(self) -> None:
        epoch = self.log.epoch
        self.log.close()
        self.log = OperationLog(self.path)
        assert self.log.epoch == epoch

    @precondition(lambda self: len(self.epochs) < 3)
    @rule()
    def restore(self) -> None:
        copy = self.path.with_name("copy")
        self.log.backup(copy)
        self.log.close()
        self.path.unlink()
        copy.rename(self.path)
        self.log = OperationLog(self.path)
        assert self.log.epoch not in self.epochs
        self.epochs.add(self.log.epoch)

    @invariant()
    def the_log_is_the_dictionary(self) -> None:
        found = {
            entry.sequence: (entry.object_id, entry.blob, entry.delivered)
            for number in range(3)
            for entry in self.log.entries_from(bytes([number]) * 32, 0)
        }
        assert found == self.expected
        waiting = sorted(sequence for sequence, (_, _, done) in self.expected.items() if not done)
        assert [entry.sequence for entry in self.log.outbox()] == waiting
        assert self.log.max_sequence() == max(self.expected, default=None)

    def teardown(self) -> None:
        self.log.close()
        assert inspect(self.path) == ("device", [])
        self.folder.cleanup()


LogAgainstDictionary.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_any_calls_leave_the_log_equal_to_a_dictionary = LogAgainstDictionary.TestCase
