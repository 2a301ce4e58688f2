"""One name, one meaning: no two classes of the core, the dataflow and Dagster's layer have the same name."""

import ast
from collections import defaultdict

from tests.style.test_style import module, sources, tree

SHARED = {
    "Column": "a column of a state, of a table's rules, and of a shown statistic: each module is read alone",
    "Deleted": "files of a cancelled job, and of a clean-up: both are counts that one command shows",
    "Problem": "of a setting, and of a table: texts that name the thing",
    "Refused": "a claim that the core refuses, and an append that a store refuses",
    "Standing": "how a table stands to its cut, and how a job stands in Dagster",
}
"""Names that two modules share, and what they mean there."""


def test_a_class_name_has_one_meaning():
    """Public classes of `checkpointing`, `jobs` and `orchestration` have names of their own, or are listed."""
    homes = defaultdict(list)
    for path in sources("checkpointing", "jobs", "orchestration"):
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(module(path))
    twice = {name: places for name, places in homes.items() if len(places) > 1}
    assert {} == {name: places for name, places in twice.items() if name not in SHARED}
    assert sorted(SHARED) == sorted(name for name in SHARED if name in twice)
