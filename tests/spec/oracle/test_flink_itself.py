"""Flink's own classes and Tidemark give the same answers to the same random input. The comparison finds slips."""

import importlib
import json

import pytest

from spec.flink.vectors import main as run_vectors
from spec.oracle.__main__ import COMPONENTS, ask, main
from spec.oracle.flink import FlinkError

SEEDS = range(150)

SLIPS = [
    ("aligned_blocking", "checkpointing.gate.aligner:Aligner._block", lambda *_: []),
    ("at_least_once", "checkpointing.gate.tracker:BarrierTracker.cancel", lambda *_: None),
    ("unaligned", "checkpointing.gate.channels:Channel.record", lambda *_: None),
    ("alternating", "checkpointing.gate.channels:Channels.prioritise", lambda *_: None),
    ("alternating", "checkpointing.gate.aligner:_too_old", lambda *_: False),
    ("decider", "checkpointing.coordinator.triggering:RequestDecider._reached", lambda *_: False),
    ("failure_manager", "checkpointing.coordinator.failure_policy:FailurePolicy.succeeded", lambda *_: None),
    ("subsume", "checkpointing.coordinator.completed:CompletedCheckpointStore.would_subsume", lambda *_: ()),
    ("registry", "checkpointing.coordinator.completed:SharedStateRegistry._drop_unused", lambda *_: []),
    ("key_groups", "checkpointing.key_groups:KeyGroupRange.__len__", lambda *_: 1),
    ("keyed_state", "checkpointing.key_groups:KeyGroupRange.intersection", lambda *_: None),
]


@pytest.fixture(scope="module")
def cases():
    return ask(COMPONENTS.values(), SEEDS)


@pytest.mark.parametrize("name", COMPONENTS)
def test_tidemark_answers_like_flink(cases, name):
    """For each component, the cases have a few hundred steps together. In a few cases, Flink itself gives up."""
    assert len(cases[name]) > 0.9 * len(SEEDS)
    assert [] == [outcome for outcome in COMPONENTS[name].judge(cases[name]) if not outcome.passed]


def test_the_cases_meet_every_kind_of_answer(cases):
    """The gate's answers include triggers of both kinds, aborts for each reason, and buffers in flight."""
    told = [tuple(entry) for name in ("unaligned", "alternating") for case in cases[name] for entry in case["expect"]]
    assert {"aligned", "unaligned"} == {entry[2] for entry in told if entry[0] == "trigger" and len(entry) > 2}
    assert any(entry[0] == "inflight" and entry[2] for entry in told)
    assert {
        "CHECKPOINT_DECLINED_SUBSUMED",
        "CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER",
        "CHECKPOINT_DECLINED_INPUT_END_OF_STREAM",
    } == {entry[2] for entry in told if entry[0] == "abort"}


@pytest.mark.parametrize(("name", "place", "slip"), SLIPS, ids=[f"{name} {place}" for name, place, _ in SLIPS])
def test_a_slip_is_found(cases, monkeypatch, name, place, slip):
    """Each component, with a planted slip, answers differently from Flink."""
    module, _, path = place.partition(":")
    *owners, attribute = path.split(".")
    owner = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    monkeypatch.setattr(owner, attribute, slip)
    assert any(not outcome.passed for outcome in COMPONENTS[name].judge(cases[name]))


def test_each_component_has_a_slip():
    """A comparison proves something only if it can fail."""
    assert set(COMPONENTS) == {name for name, _, _ in SLIPS}


def test_the_command_says_how_many_differ_and_keeps_them(tmp_path, monkeypatch, capsys):
    """Each difference is written as a file of vectors, and running that file gives the same verdict."""
    assert 0 == main(["decider", "--seeds", "0:20", "--keep", str(tmp_path)])
    assert "decider: 20 cases, 0 answered differently" in capsys.readouterr().out
    assert [] == list(tmp_path.iterdir())
    monkeypatch.setattr("checkpointing.coordinator.triggering.RequestDecider._reached", lambda *_: False)
    assert 1 == main(["decider", "--seeds", "0:20", "--keep", str(tmp_path)])
    kept = tmp_path / "decider.json"
    assert len(json.loads(kept.read_text())["cases"]) > 0
    assert 1 == run_vectors([str(kept)])
    monkeypatch.undo()
    assert 0 == run_vectors([str(kept)])


def test_a_component_that_does_not_exist_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["gate"])
    assert "there is no component 'gate': the components are aligned_blocking" in capsys.readouterr().err


def test_a_missing_jar_is_named_with_the_way_out(monkeypatch, tmp_path):
    """Without Flink's classes, there is no comparison, and the command fails."""
    monkeypatch.setenv("TIDEMARK_JARS", str(tmp_path))
    with pytest.raises(FlinkError, match=r"flink-core-2\.3\.0\.jar is missing: .* 'make flink-oracle'"):
        ask([COMPONENTS["decider"]], range(1))
