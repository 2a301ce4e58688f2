"""The TLA+ specification holds in small worlds, each of its properties can fail, and it names the modelled code."""

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
"""Actions of the machine and the network. No function of Tidemark carries them out."""


def named(name):
    """Return the module, class, function or method of a dotted name."""
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
    """With two checkpoints and one crash, all invariants hold. Under fairness, so do all liveness properties."""
    assert 0 == main(["check", "crash"])
    said = capsys.readouterr().out
    assert int(re.search(r"crash: ([\d,]+) distinct", said)[1].replace(",", "")) > 2_000
    assert "holds" in said
    assert all(name in said for name in (*SAFETY, *STEPWISE, *LIVENESS))


def test_an_error_in_the_specification_is_shown_with_its_steps(monkeypatch, capsys):
    """A property that does not hold fails the command. The output shows the places of all processes, step by step."""
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
    """TLC finds the error by the one property that the error must break."""
    assert PLANTED[name].hunt().violated


def test_every_property_can_fail():
    """For each invariant and each other property, there is a planted error that breaks it."""
    assert {*SAFETY, *STEPWISE, *LIVENESS, "JobsDoNotDisturb"} == {error.breaks for error in PLANTED.values()}


def test_every_planted_error_can_be_planted():
    """The text that the error replaces is in the specification exactly once."""
    wrong = {name: old for name, error in PLANTED.items() for old in error.changes if SPECIFICATION.count(old) != 1}
    assert {} == wrong


def test_every_action_names_the_functions_that_it_models():
    """If a function moves, the comment above its action in `CommitProtocol.tla` must follow."""
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
    """If nothing could be checked, the command does not pass."""
    monkeypatch.setenv("TIDEMARK_JARS", str(tmp_path))
    assert 1 == main(["check", "crash"])
    assert f"{tmp_path}/{tlc.JAR} is missing: fetch TLC with 'make tla'" in capsys.readouterr().out


def test_a_specification_that_tlc_cannot_read_is_an_error(monkeypatch):
    """The message contains TLC's own words."""
    monkeypatch.setattr("spec.tla.worlds.modules", lambda: {"CommitProtocol": "no module"})
    with pytest.raises(TlcError, match=r"(?s)could not check the model.*CommitProtocol"):
        WORLDS["crash"].explore()


def test_an_unknown_world_is_named(capsys):
    """The message lists the worlds, and comes before any world is explored."""
    assert 1 == main(["check", "faults", "nowhere"])
    assert "there is no world 'nowhere': the worlds are crash, zombie" in capsys.readouterr().out


def test_values_are_written_as_tla_writes_them():
    """The values are text, numbers, sets of sets, tuples, records, and functions with other names."""
    assert '{{"t", "u"}, {"t"}}' == literal(frozenset({frozenset({"t"}), frozenset({"u", "t"})}))
    assert '<<1, "a">>' == literal((1, "a"))
    assert "[a |-> 1]" == literal({"a": 1})
    with pytest.raises(TypeError, match="has no form in TLA"):
        literal(1.5)
