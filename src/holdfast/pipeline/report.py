"""The report: one self-contained HTML page, or the same as data."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from holdfast.pipeline import balance
from holdfast.pipeline.findings import Count
from holdfast.pipeline.latency import QUANTILES, quantiles
from holdfast.pipeline.shelf import Shelf

FINDINGS_SHOWN_MAX = 1_000

_FINDING = ("kind", "key", "detail", "is_violation", "origin", "seq", "table")

_WIDTH, _HEIGHT, _MARGIN = 720, 180, 44
_LABEL_HEIGHT = 12  # of one line of a label, so that equal quantiles do not hide each other


def gather(shelf: Shelf) -> dict[str, Any]:
    """The data of the report."""
    last = shelf.last_run()
    certified = shelf.certificate(last.number)
    said = None if certified is None else certified.said
    removed = shelf.removed(last.versions)
    versions = {name: version for name, version in last.versions.items() if name not in removed}
    findings = shelf.findings(versions)
    first, left = findings.first(FINDINGS_SHOWN_MAX), findings.count()
    count = Count(said["findings"]["violations"], said["findings"]["kinds"]) if said and removed else left
    return {
        "batch": last.number,
        "at": last.at,
        "scope": said["scope"] if said else None,
        "uncompared": [] if certified is None else certified.uncompared,
        "balance": said["balance"] if said else balance.zero(),
        "balance_holds": said["balance_holds"] if said else True,
        "certificate": None if certified is None else certified.hash,
        "pubkey": None if certified is None else certified.pubkey,
        "logs": said["heads"] if said else [],
        "devices": said["devices"] if said else [],
        "violations": count.violations,
        "findings": [{name: one[name] for name in _FINDING} for one in first],
        "findings_more": left.all - len(first),
        "findings_removed": count.all - left.all,  # certified findings whose files have been removed since
        "latency": _latency(shelf, versions),
        "removed": sorted(removed),
        "tables": [
            {"table": name, "version": version, "rows": None if name in removed else shelf.rows(name, version)}
            for name, version in sorted(last.versions.items())
        ],
    }


def _latency(shelf: Shelf, versions: Mapping[str, int]) -> list[dict[str, Any]]:
    """Percentiles of the time to delivery, per hour, from exact counts in logarithmic buckets."""
    if "delivery_slo" not in shelf.tables:
        return []
    sql = (
        "SELECT epoch_us(accepted_hour) AS hour, bucket, sum(count)::BIGINT AS count "
        "FROM {rows} GROUP BY ALL ORDER BY hour, bucket"
    )
    hours: dict[int, list[tuple[int, int]]] = {}
    for row in shelf.query("delivery_slo", versions.get("delivery_slo"), sql):
        hours.setdefault(row["hour"], []).append((row["bucket"], row["count"]))
    return [{"hour": hour, "count": sum(n for _, n in found), **quantiles(found)} for hour, found in hours.items()]


def page(told: Mapping[str, Any], show_time: Any) -> str:
    """The report as HTML."""
    verdict = _verdict(told)
    parts = [
        f"<h1>Holdfast: batch {told['batch']}</h1>",
        f"<p class='{verdict[0]}'>{escape(verdict[1])}</p>",
        (
            f"<p>Up to {escape(show_time(told['at']))}, {escape(str(told['scope']))}. Certificate <code>{escape(str(told['certificate']))}</code>, "
            f"signed by <code>{escape(str(told['pubkey']))}</code>.</p>"
        ),
        _removed(told["removed"]),
        "<h2>The balance</h2>",
        _balance(told["balance"], holds=told["balance_holds"]),
        "<h2>Time to delivery</h2>",
        _GONE if "delivery_slo" in told["removed"] else _plot(told["latency"], show_time),
        "<h2>Findings</h2>",
        _findings(told["findings"], told["findings_more"], told["findings_removed"]),
        "<h2>Logs</h2>",
        _table(("origin", "log", "up to"), [(log["origin"], log["log_id"], log["seq"]) for log in told["logs"]]),
        "<h2>Tables</h2>",
        _table(("table", "version", "rows"), [(one["table"], one["version"], _rows(one)) for one in told["tables"]]),
    ]
    return _PAGE.replace("{{body}}", "\n".join(parts))


def _verdict(told: Mapping[str, Any]) -> tuple[str, str]:
    if told["violations"]:
        return "bad", f"{told['violations']} violations were found."
    if not told["balance_holds"]:
        return "bad", "The balance does not hold."
    if told["uncompared"]:
        return (
            "good",
            f"No rule is broken so far. Not compared yet with what is there now: {', '.join(told['uncompared'])}.",
        )
    return "good", "Every recipient of every message is accounted for, and no rule is broken."


def _removed(tables: Sequence[str]) -> str:
    if not tables:
        return ""
    return f"<p>This report is not complete: files of these tables have been removed since: {escape(', '.join(tables))}.</p>"


def _rows(one: Mapping[str, Any]) -> str:
    return "removed" if one["rows"] is None else str(one["rows"])


def _balance(balance: Mapping[str, int], *, holds: bool) -> str:
    rows = [(name, f"{count:,}") for name, count in balance.items() if name != "recipients"]
    sign = "=" if holds else "≠"
    return f"<p>{balance['recipients']:,} recipients {sign}</p>" + _table(("outcome", "count"), rows)


def _findings(findings: Sequence[Mapping[str, Any]], more: int, removed: int) -> str:
    gone = f"<p>{removed:,} were certified whose files have been removed since.</p>" if removed else ""
    if not findings:
        return gone or "<p>None.</p>"
    rows = [
        ("violation" if one["is_violation"] else "to know", one["kind"], one["key"], one["detail"]) for one in findings
    ]
    return _table(("", "kind", "key", "detail"), rows) + (f"<p>… and {more:,} more.</p>" if more else "") + gone


def _table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _plot(latency: Sequence[Mapping[str, Any]], show_time: Any) -> str:
    """Lines of the quantiles over the hours, seconds on a logarithmic scale."""
    if not latency:
        return "<p>Nothing was delivered yet.</p>"
    from math import log10

    names = [f"p{quantile * 100:g}" for quantile in QUANTILES]
    values = [hour[name] for hour in latency for name in names]
    low, high = log10(min(values)) - 0.1, log10(max(values)) + 0.1

    drawn = latency if len(latency) > 1 else [latency[0], latency[0]]  # a line of one point would not show

    def x(index: int) -> float:
        return _MARGIN + (_WIDTH - 2 * _MARGIN) * (index / (len(drawn) - 1))

    def y(value: float) -> float:
        return _HEIGHT - _MARGIN / 2 - (_HEIGHT - _MARGIN) * ((log10(value) - low) / (high - low))

    lines = []
    label_y = float(_HEIGHT)
    for name in names:  # the least first, which is the lowest
        points = " ".join(f"{x(index):.1f},{y(hour[name]):.1f}" for index, hour in enumerate(drawn))
        lines.append(f"<polyline class='{name}' points='{points}'/>")
        last = latency[-1][name]
        label_y = min(y(last) + 4, label_y - _LABEL_HEIGHT)
        lines.append(f"<text x='{_WIDTH - _MARGIN + 3}' y='{label_y:.1f}'>{name} {last:.3g} s</text>")
    first, last_hour = escape(show_time(latency[0]["hour"])), escape(show_time(latency[-1]["hour"]))
    return (
        f"<svg viewBox='0 0 {_WIDTH + 60} {_HEIGHT + 20}' role='img' aria-label='time to delivery'>{''.join(lines)}"
        f"<text x='{_MARGIN}' y='{_HEIGHT + 14}'>{first}</text><text x='{_WIDTH - _MARGIN}' y='{_HEIGHT + 14}' text-anchor='end'>{last_hour}</text></svg>"
    )


_GONE = "<p>The files with these times have been removed since.</p>"

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Holdfast report</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1c2733; background: #fff }
table { border-collapse: collapse; margin: .5rem 0 1.5rem } td, th { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; overflow-wrap: anywhere }
tbody tr { border-top: 1px solid #d8dee4 } code { font-size: .8rem; overflow-wrap: anywhere }
.good { color: #14662e; font-weight: 600 } .bad { color: #a3120a; font-weight: 600 }
svg { width: 100%; font-size: 11px } polyline { fill: none; stroke-width: 2 } .p50 { stroke: #2f7d4f } .p90 { stroke: #c27c0e } .p99 { stroke: #b3261e }
</style></head><body>
{{body}}
</body></html>
"""
