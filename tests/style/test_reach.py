"""The core has no code that only tests can reach: a run of `jobs`, `orchestration` or `tidemark` reaches all of it.

The walk is in `reach`. WAITING must name code that the walk does not find, with the feature that will need it, and the
code's own docstring must say so. Code that only Flink's test cases need lives in `spec/flink`.
"""

import ast
import re

import pytest

from tests.style.reach import CORE, USERS, Definition, Reach
from tests.style.test_features import QUOTED
from tests.style.test_features import ROWS as FEATURES
from tests.style.test_flink_map import ROWS as MAP
from tests.style.test_style import imported, module, sources

ALPHABETS = {"channel_items", "messages"}
"""The modules whose classes are facts, effects and messages."""

ENDED_CHANNELS = "channels that end one by one (C3)"

WAITING = {
    "checkpointing.channel_items.EndOfChannel": ENDED_CHANNELS,
    "checkpointing.gate.messages.DeliverEnd": ENDED_CHANNELS,
}
"""Code that no run reaches yet, and the feature that will reach it. A module's name stands for the whole module."""

FOR_SPEC = {
    "checkpointing.trace.read": "`python -m spec.traces` reads what a tick wrote; the format is kept in one module",
}
"""Code that reads a run's output and that no run calls."""

JUDGED = ("snapshot", "blocked", "pending")
"""Methods of a gate that its judges call: the gate's machine and Flink's cases compare its states."""

UNHEARD = {
    "checkpointing.gate.messages.BlockChannel": "done by the gate itself, and told to those who judge it",
    "checkpointing.gate.messages.ResumeChannel": "done by the gate itself, and told to those who judge it",
    "checkpointing.gate.messages.PutAside": "done by the gate itself, and told to those who judge it",
    "checkpointing.gate.messages.Ignored": "done by the gate itself, and told to those who judge it",
    "checkpointing.gate.messages.AnnouncementReceived": "done by the gate itself, and told to those who judge it",
}
"""Effects that a run may cause and that nothing carries out, with the reason."""


@pytest.fixture(scope="module")
def reach() -> Reach:
    """Return the walk."""
    return Reach(uses=JUDGED)


def reached_modules() -> set[str]:
    """Return the modules that a run can load."""
    modules = {module(path): path for path in sources(*USERS, CORE)}
    found: set[str] = set()
    open_ends = [name for name in modules if name.startswith(USERS)]
    while open_ends:
        name = open_ends.pop()
        if name in found:
            continue
        found.add(name)
        for full in imported(modules[name]):
            parts = full.split(".")
            prefixes = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
            open_ends.extend(prefix for prefix in prefixes if prefix in modules)
    return found


def named(definition: Definition, names: dict[str, str]) -> str | None:
    """Return the name under which a definition is listed: its own, its class's, or that of a package above it."""
    parts = str(definition).split(".")
    prefixes = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return next((prefix for prefix in prefixes if prefix in names), None)


def is_message(definition: Definition, node: ast.AST) -> bool:
    """Return whether a class is a message of an alphabet. Enumerations are no messages."""
    if not isinstance(node, ast.ClassDef) or definition.module.split(".")[-1] not in ALPHABETS:
        return False
    return not any(ast.unparse(base) == "Enum" for base in node.bases)


def unreached(reach: Reach) -> list[Definition]:
    """Return what a run does not reach, and the messages that it does not construct."""
    return [
        definition
        for definition, node in reach.definitions()
        if definition not in (reach.constructed if is_message(definition, node) else reach.reached)
    ]


def test_every_module_of_the_core_is_reached_by_a_run():
    """A module that no module of a run imports is listed as waiting."""
    unloaded = {module(path) for path in sources(CORE)} - reached_modules()
    listed = {name for name in unloaded if any(each.startswith(name) for each in WAITING) or named_module(name)}
    assert [] == sorted(unloaded - listed)


def named_module(name: str) -> bool:
    """Return whether a module lies in a package that is listed."""
    return any(name.startswith(f"{each}.") for each in WAITING)


def test_a_run_reaches_every_function_and_class_of_the_core(reach):
    """A run also constructs every fact, effect and message. Code that no run reaches is listed, with its feature."""
    listed = {**WAITING, **FOR_SPEC}
    assert [] == [str(found) for found in unreached(reach) if named(found, listed) is None]


def test_nothing_is_listed_that_a_run_reaches(reach):
    """A change that makes a run reach something must remove it from the list."""
    listed = {**WAITING, **FOR_SPEC}
    assert [] == sorted({*listed} - {named(found, listed) for found in unreached(reach)})


def test_what_waits_says_so_where_it_stands(reach):
    """The docstring of listed code, or of its class or module, says `No run reaches` and names the feature."""
    silent = []
    texts = reach.docstrings()
    for name, feature in WAITING.items():
        letter = feature[feature.index("(") + 1 : -1]
        parts = name.split(".")
        own = [texts.get(".".join(parts[:count]), "") for count in range(2, len(parts) + 1)]
        if not any("No run reaches" in text and letter in text for text in own):
            silent.append(f"{name}: no docstring says that it waits for {feature}")
    assert [] == silent


def test_somebody_carries_out_every_effect(reach):
    """Each effect that a run may cause has an arm in code that a run reaches, or is listed with the reason."""
    effects = {found for found in reach.effects() if found in reach.constructed}
    assert sorted(UNHEARD) == sorted(str(found) for found in effects - reach.heard)


def test_the_walk_tells_construction_from_mention():
    """A fact that is only matched, or only named in an annotation, is not constructed, and its arm is not reached."""
    run = "from checkpointing.b import Door, Matched, Told\ndef run(door: Door, never: Matched): Door().step(Told())"
    core = """
class Told: ...
class Matched: ...
class Door:
    def step(self, fact):
        match fact:
            case Told(): self.told()
            case Matched(): self.matched()
    def told(self): ...
    def matched(self): other()
def other(): ...
"""
    code = {"jobs.a": run, "checkpointing.b": core}
    walk = Reach({name: ast.parse(text) for name, text in code.items()})
    assert {"Door", "Told"} == {found.name for found in walk.constructed}
    assert not {"Door.matched", "other"} & {found.name for found in walk.reached}
    assert {"Door", "Door.step", "Door.told", "Told"} <= {found.name for found in walk.reached}


def test_a_feature_that_runs_waits_for_nothing(reach):
    """FEATURES says `runs` only of features that a run reaches completely, in modules that it loads and uses.

    A part that waits makes its feature `in part` or `core only`. The map from Flink's classes names a feature's files.
    """
    runs = {feature for row in FEATURES if row[2].startswith("runs") for feature in row[0].split(", ")}
    texts = reach.docstrings()
    waiting = {found for name, why in WAITING.items() for found in quoted(f"{why} {texts.get(name, '')}")}
    assert set() == waiting & runs
    used = {definition.module for definition in reach.reached}
    files = {feature: re.findall(r"`(checkpointing/[a-z_/]+\.py)`", MAP[feature][2]) for feature in runs & MAP.keys()}
    unused = [(feature, path) for feature in files for path in files[feature] if dotted(path) not in used]
    assert [] == unused


def quoted(text: str) -> set[str]:
    """Return the features that a text quotes in brackets."""
    return {feature for found in QUOTED.findall(text) for feature in found.split(", ")}


def dotted(path: str) -> str:
    """Return the module of a file."""
    return path.removesuffix(".py").replace("/", ".")
