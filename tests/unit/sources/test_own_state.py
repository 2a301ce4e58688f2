"""Tests the state that sources have besides their positions: gathered from all layers and parts, and handed out."""

import pytest

from checkpointing.coordinator.messages import (
    AskOperatorCoordinator,
    OperatorCoordinatorAnswered,
    OperatorCoordinatorFailed,
    ResetOperatorCoordinator,
)
from checkpointing.messages import CoordinatorReset, CoordinatorResetFailed
from jobs.sources.generator import GeneratorSource
from jobs.sources.hybrid import HybridSource
from jobs.sources.port import OwnState, SourceError, WrappedSource, keeps_state
from jobs.tick.effects import CoordinatorCalls


class Remembering(WrappedSource):
    """A source that counts how often it was asked."""

    def __init__(self, source, name):
        super().__init__(source)
        self.name, self.asked, self.given = name, 0, []

    def snapshot_state(self):
        self.asked += 1
        return f"{self.name} {self.asked}"

    def restore_state(self, checkpoint, state):
        if state == "broken":
            raise SourceError("'broken' is no state of mine")
        self.given.append((checkpoint, state))


def remembering(name):
    return Remembering(GeneratorSource(10, bounded=True), name)


def test_the_states_of_layers_and_parts_come_in_their_order_and_go_back():
    """A source without state among them changes nothing."""
    one, two = remembering("one"), remembering("two")
    hybrid = HybridSource(WrappedSource(one), two)
    assert keeps_state(hybrid)
    assert not keeps_state(GeneratorSource(10, bounded=True))
    text = OwnState(hybrid).snapshot()
    OwnState(hybrid).restore(7, text)
    OwnState(hybrid).restore(8, None)
    OwnState(hybrid).restore(None, None)
    assert [(7, "one 1"), (8, None), (None, None)] == one.given
    assert [(7, "two 1"), (8, None), (None, None)] == two.given


@pytest.mark.parametrize("text", ['["a","b"]', '{"a":1}', "[1]", "[]"])
def test_the_state_of_another_source_is_refused(text):
    """The message offers a new id."""
    with pytest.raises(SourceError, match="an id of its own"):
        OwnState(remembering("one")).restore(7, text)


def test_a_tick_asks_and_restores_by_facts_and_errors_name_the_source():
    """A SourceError is passed on as it is."""
    source = remembering("one")
    calls = CoordinatorCalls({"orders": source})
    assert CoordinatorReset("orders") == calls.carry_out(ResetOperatorCoordinator("orders", None))
    assert OperatorCoordinatorAnswered("orders", 3, '["one 1"]') == calls.carry_out(AskOperatorCoordinator("orders", 3))
    failed = calls.carry_out(ResetOperatorCoordinator("orders", 3, '["broken"]'))
    said = "source orders could not take its own state back: 'broken' is no state of mine"
    assert CoordinatorResetFailed("orders", said) == failed
    source.snapshot_state = None
    failed = calls.carry_out(AskOperatorCoordinator("orders", 4))
    assert isinstance(failed, OperatorCoordinatorFailed)
    assert failed.message.startswith("source orders could not give its own state: TypeError")
