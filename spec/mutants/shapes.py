"""Plants bugs in pipelines whose shape changes between ticks: other splits, vertices that come and go (G2)."""

from collections.abc import Mapping
from typing import Any

from checkpointing.commit import net
from checkpointing.graph import JobGraph, Vertex
from checkpointing.identifiers import SubtaskId, TableName
from checkpointing.job import restoring
from checkpointing.metadata.record import CheckpointRecord, TableRecord
from spec.mutants.judges import SHAPES
from spec.mutants.planting import Patch, mutant

_Renamed = Mapping[TableName, net.Renamed]
_Positions = dict[SubtaskId, str | None]


@mutant("cut-is-exact", SHAPES)
def splits_are_found_by_their_place(patch: Patch) -> None:
    def positions(graph: JobGraph, record: CheckpointRecord | None) -> _Positions:
        return {
            SubtaskId(source.id, index): dict(enumerate(_stood_at(source, record))).get(index)
            for source in graph.sources()
            for index in range(source.parallelism)
        }

    patch.function(restoring, "positions", positions)


@mutant("caught-up-is-committed", SHAPES)
def a_new_split_begins_where_the_first_one_stands(patch: Patch) -> None:
    real = restoring.positions

    def positions(graph: JobGraph, record: CheckpointRecord | None) -> _Positions:
        found = real(graph, record)
        first = {source.id: next(iter(_stood_at(source, record)), None) for source in graph.sources()}
        return {subtask: at if at is not None else first[subtask.vertex] for subtask, at in found.items()}

    patch.function(restoring, "positions", positions)


@mutant("new-tables-begin-empty", SHAPES)
def a_new_table_keeps_the_files_of_an_older_table_of_its_name(patch: Patch) -> None:
    _publishing(patch, lambda first: not first.files)


@mutant("new-tables-begin-empty", SHAPES)
def a_new_table_is_published_when_rows_come(patch: Patch) -> None:
    """The first checkpoint does not know which tables begin empty."""
    _publishing(patch, lambda first: not first.files, whole=False)


@mutant("new-tables-begin-empty", SHAPES)
def a_new_table_loses_only_the_first_file_that_its_name_had(patch: Patch) -> None:
    _publishing(patch, lambda first: not first.files, keep=1)


def _stood_at(source: Vertex, record: CheckpointRecord | None) -> list[str | None]:
    was = next((each for each in record.vertices if each.vertex == source.id), None) if record else None
    return [subtask.position for subtask in was.subtasks] if was else []


def _publishing(patch: Patch, is_new: Any, *, whole: bool = True, keep: int = 0) -> None:  # noqa: ANN401
    """Let a new table remove only some of the files of an earlier table with its name."""
    real = net.net_tables

    def net_tables(*told: Any, renamed: _Renamed) -> tuple[TableRecord, ...]:  # noqa: ANN401 - passed on
        bent = {
            table: net.Renamed(each.files, each.removes[:keep], each.columns) if is_new(each) else each
            for table, each in renamed.items()
            if whole or not is_new(each)
        }
        return real(*told, renamed=bent)

    patch.function(net, "net_tables", net_tables)
