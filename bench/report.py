"""Writes the figures into files: `results.json` for programs, and `results.md` for people."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.nexmark import figures as nexmark
from bench.rows import Figures, Row

NEXMARK: Final = "P40"
"""The row that has the figures of each Nexmark query."""
FRESH: Final = "P47"
"""The row with the freshness of each Nexmark query."""
_DIGITS = 4


def write(folder: Path, rows: Sequence[Row], found: Mapping[str, Figures], about: Mapping[str, Any]) -> None:
    """Write both files.

    A row that was not measured this time keeps its earlier figures, and a missing peer keeps its version.
    """
    path = folder / "results.json"
    earlier = _earlier(path)
    figures = {**earlier.get("rows", {}), **{name: _rounded(one) for name, one in found.items()}}
    about = {**about, "versions": {**earlier.get("versions", {}), **about["versions"]}}
    kept = {row.id: figures[row.id] for row in rows if row.id in figures}
    path.write_text(json.dumps({"rows": kept, **about}, indent=2) + "\n")
    (folder / "results.md").write_text(markdown(rows, kept, about))
    if "by_query" in kept.get(NEXMARK, {}):
        (folder.parent / "docs" / "images" / "nexmark.svg").write_text(nexmark.picture(kept[NEXMARK]))


def markdown(rows: Sequence[Row], figures: Mapping[str, Figures], about: Mapping[str, Any]) -> str:
    """Return a table of all figures and their bars, with the machine and the versions below it."""
    lines = [
        "# What was measured",
        "",
        "Written by `make bench`: medians of programs that ran in turn on one machine (docs/performance.md says how).",
        "Times are seconds. Ratios are what travels to another machine, the seconds do not.",
        "",
        "| row | work | bar | ratio | ours | peer | reached |",
        "|---|---|---|---|---|---|---|",
        *(_line(row, figures[row.id]) for row in rows if row.id in figures),
        "",
        *(nexmark.markdown(figures[NEXMARK]) if "by_query" in figures.get(NEXMARK, {}) else ()),
        *(nexmark.of_freshness(figures[FRESH]) if FRESH in figures else ()),
    ]
    for title in ("versions", "machine"):
        lines += [f"## {title.capitalize()}", "", *(f"- {name}: {value}" for name, value in about[title].items()), ""]
    return "\n".join(lines)


def reached(row: Row, figures: Figures) -> str:
    """Return in a word whether the row's bar was reached."""
    return "yes" if row.reached(figures) else "**no**"


def _line(row: Row, figures: Figures) -> str:
    cells = [
        row.id,
        row.work,
        row.bar,
        _ratios(figures),
        _number(figures.get("ours_s")),
        _number(figures.get("peer_s")),
    ]
    return "| " + " | ".join([*cells, reached(row, figures)]) + " |"


def _ratios(figures: Figures) -> str:
    if "per_second" in figures:
        return f"{figures['per_second']:,.0f}/s"
    for beside in ("hashmap", "any_size", "recent", "kafka", "flink"):
        if beside in figures:
            return f"{figures['ratio']:.2f} / {figures[beside]['ratio']:.2f}"
    if "spread_s" in figures:
        return f"spread {figures['spread_s']:.3f}"
    if "sequential" in figures:
        return f"{figures['sequential']:.0f} in turn, on {figures['server']}"
    if "cpu_s_per_million_rows" in figures:
        return f"{figures['cpu_s_per_million_rows']:.2f} CPU s a million rows, {figures['jobs']:.1f} jobs an epoch"
    if "more_s" in figures:
        return f"{figures['more_s']:+.3f} s"
    return f"{figures['ratio']:.2f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _rounded(value: Any) -> Any:  # noqa: ANN401 - any value of JSON
    match value:
        case float():
            return round(value, _DIGITS)
        case Mapping():
            return {name: _rounded(each) for name, each in value.items()}
        case list() | tuple():
            return [_rounded(each) for each in value]
        case _:
            return value


def _earlier(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    earlier: dict[str, Any] = json.loads(path.read_text())
    return earlier
