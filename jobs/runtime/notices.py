"""Notifies a pipeline's own listeners and sources that a checkpoint is complete or was aborted (F1, F2).

If one raises, the error is logged and shown, and the others and the tick go on. Notices come from one thread, in the
order of the checkpoints, so a slow listener delays only later notices.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial

import structlog

from checkpointing.identifiers import CheckpointId, SplitId, VertexId
from checkpointing.messages import NotifyAborted, NotifyComplete
from jobs.pipeline.ports import CheckpointListener
from jobs.runtime.listener import NoticeFailed, TickListener
from jobs.sources.port import CommitsPositions, Source, layers
from jobs.sources.upstream_job import UpstreamHolds
from jobs.user_code import message_of

_log = structlog.get_logger(__name__)


class Notices:
    """Notifies the sources, then the listeners in the order of their declaration."""

    def __init__(
        self,
        sources: Mapping[VertexId, Source],
        listeners: tuple[CheckpointListener, ...],
        shown_to: TickListener,
        upstream: UpstreamHolds,
    ) -> None:
        """Notify the sources that commit positions, and these listeners; report errors to `shown_to`."""
        self._upstream = upstream
        self._sources = [
            (name, layer)
            for name, source in sources.items()
            for layer in layers(source)
            if isinstance(layer, CommitsPositions)
        ]
        self._listeners = listeners
        self._shown_to = shown_to

    def complete(self, effect: NotifyComplete) -> None:
        """Notify that a checkpoint is complete and published. Each source gets the positions of its splits."""
        checkpoint = effect.checkpoint
        self.stands(checkpoint, [position for _, _, position in effect.positions])
        for name, source in self._sources:
            call = partial(source.notify_checkpoint_complete, checkpoint, _of_source(effect, name))
            self._guarded(f"source {name}", checkpoint, call)
        for listener in self._listeners:
            self._guarded(_name(listener), checkpoint, partial(listener.notify_checkpoint_complete, checkpoint))

    def stands(self, checkpoint: CheckpointId, positions: Collection[str | None]) -> None:
        """Hold the cuts of other jobs at the positions of a checkpoint (A10)."""
        self._guarded("the upstream job", checkpoint, partial(self._upstream.rest_on, positions))

    def aborted(self, effect: NotifyAborted) -> None:
        """Notify the listeners that a checkpoint failed."""
        why = effect.message or effect.reason.message
        for listener in self._listeners:
            call = partial(listener.notify_checkpoint_aborted, effect.checkpoint, why)
            self._guarded(_name(listener), effect.checkpoint, call)

    def _guarded(self, told: str, checkpoint: CheckpointId, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - a user's code, which changes nothing of the checkpoint
            _log.info("not notified", told=told, checkpoint=checkpoint, exc_info=error)
            self._shown_to.progress(NoticeFailed(told, checkpoint, message_of(error)))


def _of_source(effect: NotifyComplete, source: VertexId) -> dict[SplitId, str]:
    return {split: position for vertex, split, position in effect.positions if vertex == source}


def _name(listener: CheckpointListener) -> str:
    return f"listener {type(listener).__name__}"
