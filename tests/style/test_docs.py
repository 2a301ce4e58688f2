"""Links between the documents lead somewhere, and each decision has a number of its own."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")])


@cache
def prose(document):
    return re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(document):
    headings = re.findall(r"^#+ (.+)$", prose(document), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(document):
    """A link within the project names an existing file. If it has an anchor, the file has that heading."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(document)):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert [] == broken


def test_each_decision_has_its_own_number():
    """The number in the name of a decision's file is also in its title, and no two decisions have the same number."""
    decisions = sorted((ROOT / "docs" / "adr").glob("*.md"))
    titles = [int(prose(each).removeprefix("# ").partition(".")[0]) for each in decisions]
    assert titles == [int(each.name[:4]) for each in decisions] == list(range(1, len(decisions) + 1))
