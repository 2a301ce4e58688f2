"""docs/FEATURES.md names every feature that the project quotes, and tests that exist."""

import re
from pathlib import Path

from tests.style.test_style import EVERYTHING

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "FEATURES.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in TEXT.splitlines() if re.match(r"\| [A-L]\d", line)]
STATES = ("runs", "in part: ", "core only")
QUOTED = re.compile(r"\(([A-L]\d{1,2}(?:, [A-L]\d{1,2})*)\)")


def test_every_feature_that_is_quoted_has_a_row():
    """`(D6)` in a docstring, a test or a document leads to a row."""
    known = {feature for row in ROWS for feature in row[0].split(", ")}
    files = [*EVERYTHING, *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    quoted = {
        (feature, str(path.relative_to(ROOT)))
        for path in files
        for found in QUOTED.findall(path.read_text(encoding="utf-8"))
        for feature in found.split(", ")
    }
    assert [] == sorted((feature, path) for feature, path in quoted if feature not in known)


def test_every_feature_has_one_row_and_a_state():
    """Each state is one that the page explains, and the row names the missing parts."""
    assert len(ROWS) == len({row[0] for row in ROWS})
    assert [] == [row[0] for row in ROWS if not row[2].startswith(STATES)]


def test_every_test_that_the_page_names_exists():
    """Paths are relative to `tests/`."""
    named = re.findall(r"`([a-z_/0-9]+(?:\.py)?)`", "\n".join(row[3] for row in ROWS if len(row) > 3))
    assert named
    assert [] == [path for path in named if not (ROOT / "tests" / path).exists()]
