"""The TLA+ specification holds in small worlds, every property of it can fail, and it names the code that it models."""

import importlib
import re

import pytest

from spec.tla import tlc
from spec.tla.__main__ import main
from spec.tla.planted import PLANTED
from spec.tla.tlc import MODULES, TlcError, literal, modules
from spec.tla.worlds import LIVENESS, SAFETY, STEPWISE, WORLDS

SPECIFICATION = (MODULES / "CommitProtocol.tla").read_text(encoding="utf-8")
ENVIRONMENT = {"Crash", "Lose"}
"""Actions of the machine and the network, which no function of ours carries out."""


def named(name):
    """Return what a dotted name stands for: a module, a class, a function or a method."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise AttributeError(name)


def test_a_small_world_holds_to_its_end(capsys):
    """Two checkpoints, one crash: all invariants, and under fairness all that must come about."""
    assert 0 == main(["check", "crash"])
    said = capsys.readouterr().out
    assert int(re.search(r"crash: ([\d,]+) distinct", said)[1].replace(",", "")) > 2_000
    assert "holds" in said
    assert all(name in said for name in (*SAFETY, *STEPWISE, *LIVENESS))


def test_an_error_in_the_specification_is_told_with_the_way_to_it(monkeypatch, capsys):
    """A property that does not hold fails the command, which shows the places of all processes step by step."""
    error = PLANTED["a cut is recorded before all its tables are published"]
    ((old, new),) = error.changes.items()
    wrong = {name: text.replace(old, new) for name, text in modules().items()}
    monkeypatch.setattr("spec.tla.worlds.modules", lambda: wrong)
    assert 1 == main(["check", "crash"])
    said = capsys.readouterr().out
    assert re.search(r"crash: .*, (CutsAreWhole|TablesShowTheNewest) is violated", said)
    assert re.search(r"1 off \| off\n(.*\n)+.*recording", said)
    assert "1 failed" in said


@pytest.mark.matrix
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_error_is_found(name):
    """TLC finds it by the one property that it is to break."""
    assert PLANTED[name].hunt().violated


def test_every_property_can_fail():
    """Each invariant and each other property is broken by a planted error."""
    assert {*SAFETY, *STEPWISE, *LIVENESS, "JobsDoNotDisturb"} == {error.breaks for error in PLANTED.values()}


def test_every_planted_error_can_be_planted():
    """What it changes stands in the specification, exactly once."""
    wrong = {name: old for name, error in PLANTED.items() for old in error.changes if SPECIFICATION.count(old) != 1}
    assert {} == wrong


def test_every_action_names_the_functions_that_it_models():
    """A function that has moved is named anew, above the action in `CommitProtocol.tla`."""
    actions = set(
        re.findall(r"(\w+)\((?:p|r)(?:, \w+)*\)", SPECIFICATION.partition("Works ==")[2].partition("Next ==")[0])
    )
    actions -= {"Progress", "Chance", "Rows"}
    models = {
        name: re.findall(r"models: (\S+)", comment)
        for comment, name in re.findall(r"((?:^\\\*.*\n)+)(\w+)(?:\([\w, ]*\))? ==", SPECIFICATION, re.MULTILINE)
    }
    assert {"Claim", "Publish", "RecordCut", "GatherLogs", *ENVIRONMENT} <= actions
    assert ENVIRONMENT == {action for action in actions if not models.get(action)}
    missing = []
    for action, names in models.items():
        for name in names:
            try:
                named(name)
            except AttributeError:
                missing.append(f"{action} models {name}, which is not there")
    assert [] == missing


def test_without_tlc_the_message_says_how_to_get_it(monkeypatch, tmp_path, capsys):
    """Nothing passes because nothing could be checked."""
    monkeypatch.setenv("TIDEMARK_JARS", str(tmp_path))
    assert 1 == main(["check", "crash"])
    assert f"{tmp_path}/{tlc.JAR} is missing: fetch TLC with 'make tla'" in capsys.readouterr().out


def test_a_specification_that_tlc_cannot_read_is_an_error(monkeypatch):
    """TLC's own words come with it."""
    monkeypatch.setattr("spec.tla.worlds.modules", lambda: {"CommitProtocol": "no module"})
    with pytest.raises(TlcError, match=r"(?s)could not check the model.*CommitProtocol"):
        WORLDS["crash"].explore()


def test_a_world_that_is_not_there_is_named(capsys):
    """The message lists the worlds, and comes before the others are explored."""
    assert 1 == main(["check", "faults", "nowhere"])
    assert "there is no world 'nowhere': the worlds are crash, zombie" in capsys.readouterr().out


def test_values_are_written_as_tla_writes_them():
    """Text, numbers, sets of sets, tuples, records, and functions of other names."""
    assert '{{"t", "u"}, {"t"}}' == literal(frozenset({frozenset({"t"}), frozenset({"u", "t"})}))
    assert '<<1, "a">>' == literal((1, "a"))
    assert "[a |-> 1]" == literal({"a": 1})
    with pytest.raises(TypeError, match="has no form in TLA"):
        literal(1.5)
