"""The tables and pictures of docs/performance.md, made from bench/results.json: no number in them is written by hand.

    .venv/bin/python -m bench.report

A part of the page between `<!-- figures: NAME -->` and `<!-- end -->` is replaced by what the benchmark NAME found, the part
between `<!-- figures -->` and `<!-- end of figures -->` by what all of them found beside their peers.
"""

import re
from html import escape
from pathlib import Path
from typing import Any

from bench.comparison import table
from bench.results import load

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images"

_PART = re.compile(r"(<!-- figures: ([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)

_COMPARISON = re.compile(r"(<!-- figures -->\n).*?(<!-- end of figures -->)", re.DOTALL)

WIDTH, BAR, GAP, LABEL = 760, 22, 10, 300
OURS, THEIRS = "#2b6cb0", "#a0aec0"


def main() -> None:
    found = load()
    page = _PART.sub(lambda part: part[1] + _figures(part[2], found.get(part[2])) + part[3], PAGE.read_text())
    PAGE.write_text(_COMPARISON.sub(lambda part: part[1] + table(found) + part[2], page))
    for name, figures in found.items():
        if any("median" in one for one in figures.get("contestants", {}).values()):
            (IMAGES / f"bench-{name}.svg").write_text(_picture(figures))
    print(f"{PAGE.relative_to(ROOT)} says what bench/results.json does")


def _figures(name: str, figures: dict[str, Any] | None) -> str:
    if figures is None:
        return f"Not measured yet: `make bench-{name}`.\n"
    parts = [_contestants(figures), _goals(figures), _about(figures)]
    if any("median" in one for one in figures["contestants"].values()):
        parts.insert(0, f"![{figures['title']}](images/bench-{name}.svg)\n")
    return "\n".join(parts)


def _contestants(figures: dict[str, Any]) -> str:
    lines = [
        "| who | median | range | p50 | p99 | syncs an answer | processor, each |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for one in figures["contestants"].values():
        unit = one["unit"]
        rate = f"{one['median']:,} {unit}" if "median" in one else ""
        spread = f"{one['low']:,} to {one['high']:,}" if "low" in one else ""
        version = f" ({one['version']})" if "version" in one else ""
        synced = one.get("syncs_per_answer", one.get("syncs_per_fifty"))
        shown = [_ms(one.get("p50_ms")), _ms(one.get("p99_ms")), "" if synced is None else f"{synced:g}", _us(one)]
        lines.append(f"| {one['name']}{version} | {rate} | {spread} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def _us(one: dict[str, Any]) -> str:
    return f"{one['server_us']:,.0f} µs" if "server_us" in one else ""


def _ms(value: float | None) -> str:
    return f"{value:,.1f} ms" if value else ""


def _goals(figures: dict[str, Any]) -> str:
    lines = ["| goal | found | |", "|---|--:|---|"]
    for goal in figures["goals"]:
        found = "" if goal["value"] is None else f"{goal['value']:,}"
        verdict = {True: "met", False: "**missed**", None: "not measured"}[goal["met"]]
        lines.append(f"| {goal['goal']} | {found} | {verdict} |")
    return "\n".join(lines) + "\n"


def _about(figures: dict[str, Any]) -> str:
    about = figures["about"]
    absent = f" Absent, so not measured: {', '.join(figures['absent'])}." if figures.get("absent") else ""
    memory = [one["memory_mb"] for one in figures["contestants"].values() if "memory_mb" in one]
    held = f" The relay held {memory[0]:,} MB at the end." if memory else ""
    return (
        f"{about['at']}, {about['cores']} cores, {about['system']}, Python {about['python']}; load of the machine when it "
        f"ended {about['load']:g}.{held}{absent}\n"
    )


def _picture(figures: dict[str, Any]) -> str:
    """A bar for each, with the range of its rounds."""
    those = [one for one in figures["contestants"].values() if "median" in one]
    most = max(one["high"] for one in those)
    height = len(those) * (BAR + GAP) + GAP
    room = WIDTH - LABEL - 110
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="13">',
        f"<title>{escape(figures['title'])}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for number, one in enumerate(those):
        top = GAP + number * (BAR + GAP)
        middle, colour = top + BAR / 2, OURS if one["name"].startswith("Holdfast") else THEIRS
        long, low, high = (room * one[key] / most for key in ("median", "low", "high"))
        lines += [
            f'<text x="{LABEL - 8}" y="{middle + 5:.0f}" text-anchor="end" fill="#1a202c">{escape(one["name"])}</text>',
            f'<rect x="{LABEL}" y="{top}" width="{max(long, 1):.1f}" height="{BAR}" fill="{colour}"/>',
            f'<path d="M{LABEL + low:.1f} {middle}H{LABEL + high:.1f}" stroke="#1a202c" stroke-width="2"/>',
            f'<text x="{LABEL + high + 8:.1f}" y="{middle + 5:.0f}" fill="#1a202c">{one["median"]:,} {one["unit"]}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    main()
