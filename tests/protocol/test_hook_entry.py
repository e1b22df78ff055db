"""Entries about hook events, and how late these are handled."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol import hook_entry
from holdfast.protocol.history import Kind
from holdfast.protocol.hook_entry import HookDetail
from holdfast.protocol.hook_lag import Lag, lag
from holdfast.protocol.hook_row import ATTEMPTS_MAX, HookStatus

TEXTS = st.text(max_size=20)
DETAILS = st.builds(
    HookDetail,
    agent=TEXTS,
    session_id=TEXTS,
    event_type=TEXTS,
    event_name=TEXTS,
    received_at=st.integers(-(2**63), 2**63 - 1),
    attempts=st.integers(0, 2**31),
    error=TEXTS,
)


@given(DETAILS)
def test_a_detail_is_what_it_was_before_it_was_bytes(detail: HookDetail) -> None:
    assert HookDetail.decode(detail.encode()) == detail


def test_the_bytes_of_a_detail_are_as_the_data_model_has_them() -> None:
    detail = HookDetail(
        agent="a", session_id="é", event_type="", event_name="N", received_at=258, attempts=3, error="no"
    )
    assert detail.encode().hex() == (
        "000000016100000002c3a900000000000000014e00000000000001020000000000000003000000026e6f"
    )


def test_every_end_has_its_kind_and_only_death_has_a_reason() -> None:
    detail = HookDetail(agent="a", session_id="s", event_type="t", event_name="n", received_at=1, attempts=1, error="e")
    worn_out = HookDetail(
        agent="a", session_id="s", event_type="t", event_name="n", received_at=1, attempts=ATTEMPTS_MAX
    )
    ends = {status: hook_entry.ended("ab" * 16, status, detail) for status in hook_entry.ENDINGS}
    assert {status.value: (str(draft.kind), draft.reason) for status, draft in ends.items()} == {
        "done": ("hook_done", None),
        "dead": ("hook_dead", "unprocessable"),
        "coalesced": ("hook_coalesced", None),
    }
    assert hook_entry.ended("ab" * 16, HookStatus.DEAD, worn_out).reason == "exhausted"
    begun = hook_entry.received("ab" * 16, 9, detail)
    assert (begun.kind, begun.size, begun.event_id) == (Kind.HOOK_RECEIVED, 9, b"\xab" * 16)
    assert HookDetail.decode(begun.detail).attempts == 0


def test_percentiles_are_of_the_nearest_rank() -> None:
    assert lag([]) == Lag(0, 0, 0)
    assert lag([5]) == Lag(1, 5, 5)
    assert lag(list(range(100, 0, -1))) == Lag(100, 95, 99)
