"""Plants bugs in the outputs that a vertex reads: how an entry says them, and which cuts are restored."""

from collections.abc import Mapping
from dataclasses import replace

from checkpointing.commit.draft import Draft
from checkpointing.coordinator import messages as told
from checkpointing.graph import JobGraph
from checkpointing.job import restoring
from checkpointing.job.drafts import Drafts
from checkpointing.metadata.record import CheckpointRecord, Statistics
from spec.mutants.judges import directed
from spec.mutants.planting import Patch, mutant
from spec.reading_outputs import READ_ON, outputs_are_read_on

_CUTS = directed(outputs_are_read_on, READ_ON)

_Outputs = tuple[str | None, ...]


@mutant(READ_ON, _CUTS)
def any_output_may_be_read_on(patch: Patch) -> None:
    def check(graph: JobGraph, record: CheckpointRecord) -> None:
        del graph, record

    patch.put(restoring, "_check_outputs", check)


@mutant(READ_ON, _CUTS)
def a_named_output_may_become_the_main_output(patch: Patch) -> None:
    real = restoring._output_of

    def output_of(outputs: _Outputs, number: int) -> str | None:
        return real(outputs, number) or "odd"

    patch.put(restoring, "_output_of", output_of)


@mutant(READ_ON, _CUTS)
def every_input_is_taken_for_the_first(patch: Patch) -> None:
    real = restoring._output_of

    def output_of(outputs: _Outputs, number: int) -> str | None:
        return real(outputs, number * 0)

    patch.put(restoring, "_output_of", output_of)


@mutant(READ_ON, _CUTS)
def inputs_without_rows_in_flight_are_held_to_their_output(patch: Patch) -> None:
    """A pipeline may not change then although nothing would be lost."""
    real = restoring._output_of

    def output_of(outputs: _Outputs, number: int) -> str | None:
        del number
        return str([real(outputs, each) for each in range(2)])

    patch.put(restoring, "_output_of", output_of)


def _composing(patch: Patch, outputs: Mapping[bool, _Outputs | None]) -> None:
    """Let an entry say this of vertices that read a named output (True), and of those that read none (False)."""
    real = Drafts.compose

    def compose(self: Drafts, effect: told.CommitCheckpoint, statistics: Statistics, own: Mapping[str, str]) -> Draft:
        draft = real(self, effect, statistics, own)
        vertices = (
            vertex.model_copy(update={"outputs_read": outputs.get(bool(vertex.outputs_read), vertex.outputs_read)})
            for vertex in draft.vertices
        )
        return replace(draft, vertices=tuple(vertices))

    patch.put(Drafts, "compose", compose)


@mutant(READ_ON, _CUTS)
def an_entry_does_not_say_which_output_was_read(patch: Patch) -> None:
    _composing(patch, {True: ()})


@mutant(READ_ON, _CUTS)
def an_entry_of_main_outputs_looks_like_an_older_one(patch: Patch) -> None:
    _composing(patch, {False: None})
