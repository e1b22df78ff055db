"""The page that a report is."""

import re
from itertools import pairwise
from typing import Any

from holdfast.pipeline import balance, report


def _page(*latency: dict[str, Any]) -> str:
    told: dict[str, Any] = dict.fromkeys(("violations", "findings_more", "findings_removed"), 0)
    told |= dict.fromkeys(("findings", "logs", "tables", "removed", "uncompared"), ())
    told |= {"batch": 1, "at": 1, "scope": "relay", "certificate": "aa", "pubkey": "bb", "latency": latency}
    return report.page({**told, "balance": balance.zero(), "balance_holds": True}, str)


def test_one_hour_is_a_line_that_can_be_seen() -> None:
    lines = re.findall(
        r"<polyline class='\w+' points='([^']*)'", _page({"hour": 1, "p50": 0.1, "p90": 2.0, "p99": 2.0})
    )
    assert len(lines) == 3
    assert all(len(set(line.split())) == 2 for line in lines)


def test_equal_quantiles_do_not_hide_each_others_names() -> None:
    page = _page(*({"hour": hour, "p50": 2.0, "p90": 2.0, "p99": 2.0} for hour in (1, 2)))
    heights = sorted(float(y) for y in re.findall(r"y='([\d.]+)'>p\d\d 2 s<", page))
    assert [later - earlier >= 12 for earlier, later in pairwise(heights)] == [True, True]
