"""Models partitioned tables: where their files lie, how a rename changes them, and which cuts are restored.

The model calls the product's functions. It knows only the files and the values of their rows.
"""

import re
from itertools import product
from random import Random
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from checkpointing import partitions
from checkpointing.channel_items import ChannelState, RangeFiles, StagedSegment, SubtaskSnapshot
from checkpointing.columns import TableColumn, TableColumns
from checkpointing.commit.cleanup import Referenced, is_unreferenced
from checkpointing.coordinator.messages import CommitCheckpoint
from checkpointing.coordinator.properties import CHECKPOINT
from checkpointing.coordinator.task import AcknowledgedState
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, StagedFile, Version
from checkpointing.identifiers import (
    NO_CHECKPOINT,
    ChannelId,
    CheckpointId,
    EdgeId,
    Generation,
    JobName,
    SubtaskId,
    TableName,
    VertexId,
)
from checkpointing.job import renaming, restoring
from checkpointing.job.drafts import Drafts
from checkpointing.metadata import paths
from checkpointing.metadata.codec import decode, encode
from checkpointing.metadata.paths import ProtocolPaths, StagedName
from checkpointing.metadata.record import CheckpointRecord, Statistics, TableKeys, TableRecord, VertexRecord
from checkpointing.partitions import Value
from spec.machines.judging import expect
from tests.unit.full_entry import plain_entry

LAID_OUT: Final = "partitions-are-kept"
"""Each file of a partitioned table has the values of its rows in its path, under every name of the table."""
LAYOUT_STAYS: Final = "layout-stays"
"""A cut is restored only if its files are laid out by the columns that the pipeline declares."""
MODE_STAYS: Final = "mode-stays"
"""A cut is restored only if its table has the same mode as before, and an overwrite table the same version column."""

_JOB: Final = JobName("model")
_TOTALS: Final = VertexId("totals")
_TABLE: Final = TableName("gold/totals")
_NEW: Final = TableName("gold/sums")
_SPECIAL: Final = re.compile(r"[^A-Za-z0-9_.%=/-]")
_VALUES: Final = (None, "null", "a/b", "a", "A", "=", "!", "!41", "%41", "..", ".", " ", "ö", "\n", "a=b")
_COLUMNS: Final = ("day", "city", "a b", "größe", "a=b")


def files_keep_their_partition(seed: int) -> bool:
    """Return whether files of random partitions keep their values and stay apart, also in a renamed table."""
    chance = Random(seed)  # noqa: S311 - a model, no secret
    columns = tuple(chance.sample(_COLUMNS, chance.randint(1, 3)))
    wanted: list[tuple[Value, ...]] = [
        tuple((column, chance.choice(_VALUES)) for column in columns) for _ in range(chance.randint(2, 12))
    ]
    files = [_file(number, values) for number, values in enumerate(wanted)]
    moved, links = renaming.relocated_files(files, _JOB, {_TABLE: _NEW}, Generation(4))
    return (
        all(_is_laid_out(file, values) for file, values in zip(files, wanted, strict=True))
        and all(_is_laid_out(file, values) for file, values in zip(moved, wanted, strict=True))
        and len(links) == len(files)
        and _apart(files) == _apart(wanted)
    )


def _is_laid_out(file: FileHandle, values: tuple[Value, ...]) -> bool:
    """Return whether the file's path is plain, belongs to its table, is known to clean-up, and has these values."""
    table = _NEW if file.path.startswith(f"{_NEW}/") else _TABLE
    name = paths.staged_name_in(file.path)
    inside = paths.relative_to_table(table, file.path)
    if name is None or inside is None or paths.staging_folder(file.path) != table or not inside.isascii():
        return False
    generation = Generation(4 if table == _NEW else 3)
    dead = is_unreferenced(file.path, name, generation, current=Generation(9), by=_NOTHING)
    return dead and not _SPECIAL.search(inside) and values == paths.partition_of(file.path)


def _apart(of: list[FileHandle] | list[tuple[Value, ...]]) -> int:
    """Return how many partitions there are, counted by the files' folders or by the rows' values."""
    return len({each.path.rpartition("/")[0] if isinstance(each, FileHandle) else each for each in of})


def _file(number: int, values: tuple[Value, ...]) -> FileHandle:
    name = StagedName(_TOTALS, number, f"{number:032x}", partitions.folder_of(values))
    return FileHandle(ProtocolPaths(_JOB).staged_file(_TABLE, Generation(3), name), 1, 10, 7)


_NOTHING: Final = Referenced()

# ------------------------------------------------------------------ restores


def layouts_stay() -> bool:
    """Return whether exactly those cuts are restored whose files are laid out as the pipeline declares."""
    laid = {
        (): _file(1, ()),
        ("day",): _file(1, (("day", "1"),)),
        ("city",): _file(1, (("city", "1"),)),
        ("day", "city"): _file(1, (("day", "1"), ("city", None))),
        ("city", "day"): _file(1, (("city", None), ("day", "1"))),
    }
    return all(
        _restores(by, mode, file, as_net=as_net) is (by == was)
        for by in laid
        for was, file in laid.items()
        for mode in (TableMode.APPEND, TableMode.UPSERT)
        for as_net in (False, True)
    )


def _restores(by: tuple[str, ...], mode: TableMode, file: FileHandle, *, as_net: bool) -> bool:
    """Return whether a cut with the file is restored.

    With `as_net`, the entry's table lists the file, else a snapshot.
    """
    keyed = KeyedFile(file, KeyedFileKind.BASE, 0, 3, Version(Generation(3), 1))
    snapshot = SubtaskSnapshot(staged=(StagedFile(_TABLE, file, CheckpointId(2)),))
    if mode is TableMode.UPSERT:
        snapshot = SubtaskSnapshot(ranges=(RangeFiles(_TABLE, (keyed,)),))
    listed = TableRecord(table=_TABLE, mode=mode, parent_version=0)
    listed = listed.model_copy(update={"adds" if mode is TableMode.APPEND else "files": (file,)})
    was = VertexRecord(vertex=_TOTALS, micro_batch=1, subtasks=() if as_net else (snapshot,))
    return _is_restored(Table(_TABLE, mode, partitioned_by=by), was, tables=(listed,) if as_net else ())


def modes_stay() -> bool:
    """Return whether exactly those cuts are restored whose table has the pipeline's mode and version column."""
    columns = (TableColumn("k", "long"), TableColumn("v", "long"))
    ways = (
        (TableMode.APPEND, ()),
        (TableMode.UPSERT, ("k",)),
        (TableMode.OVERWRITE, ("k",)),
        (TableMode.OVERWRITE, ("v",)),
    )

    def restores(was: tuple[TableMode, tuple[str, ...]], now: tuple[TableMode, tuple[str, ...]]) -> bool:
        keys = (TableKeys(table=_TABLE, mode=was[0], columns=was[1]),) if was[1] else ()
        vertex = VertexRecord(vertex=_TOTALS, micro_batch=1, subtasks=(), table_keys=keys)
        return _is_restored(Table(_TABLE, *now, columns=columns), vertex, columns=(TableColumns(_TABLE, columns),))

    return all(restores(was, now) is (was == now) for was in ways for now in ways)


def _is_restored(
    table: Table, was: VertexRecord, *, tables: tuple[TableRecord, ...] = (), columns: tuple[TableColumns, ...] = ()
) -> bool:
    vertex = Vertex(_TOTALS, VertexKind.KEYED, 1, (table,))
    source = Vertex(VertexId("source"), VertexKind.SOURCE, 0)
    graph = JobGraph((source, vertex), (EdgeId(source.id, vertex.id),))
    entry = plain_entry(
        job=_JOB,
        checkpoint=CheckpointId(3),
        parent=NO_CHECKPOINT,
        generation=Generation(3),
        nonce="3",
        max_parallelism=4,
        vertices=(was,),
        tables=tables,
        columns=columns,
    )
    try:
        restoring.check_fits(graph, entry, entry.max_parallelism)
    except restoring.CutDoesNotFitError:
        return False
    return True


# ------------------------------------------------------------------
# The model of inputs that read named outputs: a cut with rows in flight is restored only if these rows are still read.
# The rows in flight of an input are in files of all outputs of its upstream vertex. The input reads the rows of its own
# output, and skips the rows of other outputs. The product composes the entry for the earlier graph, and checks it as at
# the start of a tick.


READ_ON: Final = "outputs-are-read-on"
"""A cut is refused exactly if an input with rows in flight reads another output than at the cut.

An entry that does not list which output was read is restored."""

_SORT: Final = VertexId("sort")
_READER: Final = VertexId("reader")
_INPUTS: Final = 2
_OUTPUTS: Final = (None, "odd", "seen")
_CHOICES: Final = tuple(product(_OUTPUTS, repeat=_INPUTS))


def outputs_are_read_on() -> bool:
    """Return whether exactly those cuts are restored in which each input with rows in flight still reads its output."""
    for then, now in product(_CHOICES, repeat=2):
        for flying in ((), (0,), (1,), (0, 1)):
            entry = _entry(_graph(then), flying)
            fits = all(then[each] == now[each] for each in flying)
            if _restores_of_reading_outputs(_graph(now), entry) is not fits or not _restores_of_reading_outputs(
                _graph(now), _older(entry)
            ):
                return False
    return True


def _graph(outputs: tuple[str | None, ...]) -> JobGraph:
    """Return the graph of a vertex that reads these outputs of another vertex, each through an input of its own."""
    read = outputs if any(outputs) else ()
    sort = Vertex(_SORT, VertexKind.KEYED, 1)
    reader = Vertex(_READER, VertexKind.KEYED, 1, outputs_read=read)
    return JobGraph((sort, reader), tuple(EdgeId(_SORT, _READER, number) for number in range(_INPUTS)))


def _entry(graph: JobGraph, flying: tuple[int, ...]) -> CheckpointRecord:
    """Return the entry that a tick of this pipeline writes, as a later tick reads it."""
    held = tuple(ChannelState(ChannelId(EdgeId(_SORT, _READER, each), 0), (_SEGMENT,)) for each in flying)
    effect = CommitCheckpoint(
        checkpoint=CheckpointId(3),
        properties=CHECKPOINT,
        triggered_ms=0,
        states={
            SubtaskId(_SORT, 0): AcknowledgedState(payload=SubtaskSnapshot()),
            SubtaskId(_READER, 0): AcknowledgedState(payload=SubtaskSnapshot(in_flight=held)),
        },
    )
    statistics = Statistics(triggered_ms=0, committed_ms=0, rows=0)
    entry = plain_entry(
        job=_JOB,
        checkpoint=effect.checkpoint,
        parent=NO_CHECKPOINT,
        nonce="3",
        max_parallelism=4,
        vertices=Drafts(graph).compose(effect, statistics, {}).vertices,
        statistics=statistics,
    )
    read = decode(encode(entry, writer="spec"))
    if not isinstance(read, CheckpointRecord):
        raise TypeError(f"{read!r} is no checkpoint's entry")
    return read


def _older(entry: CheckpointRecord) -> CheckpointRecord:
    """Return the entry as an older release wrote it, without a record of which outputs were read."""
    vertices = tuple(was.model_copy(update={"outputs_read": None}) for was in entry.vertices)
    return entry.model_copy(update={"vertices": vertices})


def _file_of_reading_outputs() -> FileHandle:
    paths = ProtocolPaths(_JOB)
    return FileHandle(paths.staged_file(paths.channel(_SORT), Generation(1), StagedName(_SORT, 1, "0" * 32)), 1, 10, 7)


_SEGMENT: Final = StagedSegment((_file_of_reading_outputs(),))


def _restores_of_reading_outputs(graph: JobGraph, entry: CheckpointRecord) -> bool:
    try:
        restoring.check_fits(graph, entry, entry.max_parallelism)
    except restoring.CutDoesNotFitError:
        return False
    return True


@settings(max_examples=max(1, settings.default.max_examples // 2))
@given(seed=st.integers(0, 9_999))
def test_files_keep_the_values_of_their_partition(seed):
    """Their folders say the values, also after a rename, and partitions lie apart."""
    expect(files_keep_their_partition(seed), LAID_OUT)


def test_a_cut_of_another_layout_is_not_restored():
    """The check covers staged files, ranges, and the files that the entry itself lists."""
    expect(layouts_stay(), LAYOUT_STAYS)


def test_a_cut_of_another_mode_is_not_restored():
    """A restore is refused if a table's mode or an overwrite table's version column changes."""
    expect(modes_stay(), MODE_STAYS)


def test_a_cut_is_refused_exactly_if_rows_in_flight_would_be_passed_over():
    """The test tries all combinations of the outputs that two inputs read at the cut and at the restore.

    In each combination, rows are in flight to no input, to one input, or to both.
    """
    expect(outputs_are_read_on(), READ_ON)
