"""Calls the coordinators of sources: what a source knows besides its positions is restored, and asked for (A7)."""

from collections.abc import Mapping
from typing import assert_never

from checkpointing.coordinator.messages import (
    AskOperatorCoordinator,
    OperatorCoordinatorAnswered,
    OperatorCoordinatorFailed,
    ResetOperatorCoordinator,
)
from checkpointing.identifiers import VertexId
from checkpointing.messages import CoordinatorReset, CoordinatorResetFailed, Fact
from jobs.holding.boundaries import CoordinatorEffect
from jobs.sources.own_state import OwnState
from jobs.sources.port import Source, SourceError
from jobs.user_code import message_of


class CoordinatorCalls:
    """Calls the coordinators of one tick's sources, from any thread."""

    def __init__(self, sources: Mapping[VertexId, Source]) -> None:
        """Call the coordinators of these sources."""
        self._states = {str(name): OwnState(source) for name, source in sources.items()}

    def carry_out(self, effect: CoordinatorEffect) -> Fact:
        """Return the fact that answers the effect. If the source raises, the fact says so."""
        state = self._states[effect.coordinator]
        match effect:
            case AskOperatorCoordinator():
                try:
                    return OperatorCoordinatorAnswered(effect.coordinator, effect.checkpoint, state.snapshot())
                except Exception as error:  # noqa: BLE001 - a source is a user's code
                    return OperatorCoordinatorFailed(effect.coordinator, effect.checkpoint, _said(effect, error))
            case ResetOperatorCoordinator():
                try:
                    state.restore(effect.checkpoint, effect.state)
                except Exception as error:  # noqa: BLE001 - a source is a user's code
                    return CoordinatorResetFailed(effect.coordinator, _said(effect, error))
                return CoordinatorReset(effect.coordinator)
            case _ as unreachable:
                assert_never(unreachable)


def _said(effect: CoordinatorEffect, error: Exception) -> str:
    what = "give its own state" if isinstance(effect, AskOperatorCoordinator) else "take its own state back"
    why = str(error) if isinstance(error, SourceError) else message_of(error)
    return f"source {effect.coordinator} could not {what}: {why}"
