"""Each field of an entry is checked at its bounds, a valid entry is read unchanged, and its files are known (H1)."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from checkpointing.channel_items import ChannelState, RangeFiles, StagedSegment, SubtaskSnapshot
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, StagedFile, Version
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId, Generation, TableName, VertexId
from checkpointing.metadata.codec import UnknownFormatError, UnreadableRowError, decode, decode_stored, encode
from checkpointing.metadata.files import files_of, handles_to_restore
from checkpointing.metadata.record import CheckpointRecord, FileCompaction, RowKind, TableRecord, VertexRecord
from spec.machines.judging import expect
from spec.world.entry_texts import OLDEST, PRESENT, read_otherwise, written
from tests.unit.full_entry import (
    KEY_GROUPS,
    OWN,
    Fields,
    claim,
    full_entry,
    handle,
    plain_entry,
    release,
    staged,
)

# ------------------------------------------------------------------
# Lists, for each field of an entry, values that Tidemark may have written, and values that it cannot have written (H1).
#
# The values come from the documentation of the entries. This module shares no code with the checks of the product.


_EXACT: Final = 2**53
"""From this number on, some JSON readers round whole numbers."""
_YEAR_10000_MS: Final = 253_402_300_800_000


class Values(NamedTuple):
    """The outermost values that a field may have, and the first values beyond these."""

    true: tuple[Any, ...]
    false: tuple[Any, ...]


NAME: Final = Values(("a", "b" * 63, "c_9"), ("", "b" * 64, "A", "1a", "a-b", "a/b", "a\n"))
SPLIT: Final = Values(("Z", "d" * 128, "0.=-_"), ("", "d" * 129, ".d", "a/b", "a b", "a\n"))
TABLE: Final = Values(
    ("e/f", f"{'g' * 63}/{'h' * 63}", f"{OWN}/state/other"),
    ("e", "e/f/g", "e/F", "../f", "e/", f"e/{'h' * 64}", "_tidemark/large/state/other", f"{OWN}/state/A", f"{OWN}/e"),
)
COLUMN: Final = Values(("i", "Of any ü/\n", "j" * 1_024), ("", "j" * 1_025))
TEXT: Final = Values(("k" * 1_024, "", "of any ü"), ("k" * 1_025, "k\n", "\x7f", "\x9f"))
MESSAGE: Final = Values(("", "n" * 4_000, "two\nlines"), ("n" * 4_001, "n\x00"))
NUMBER: Final = Values((0, _EXACT - 1), (-1, _EXACT))
TIME: Final = Values((0, _YEAR_10000_MS - 1), (-1, _YEAR_10000_MS))
DURATION: Final = Values((0, 1 - _EXACT, _EXACT - 1, None), (_EXACT, -_EXACT))
SURE_DURATION: Final = Values(DURATION.true[:3], DURATION.false)
MOMENT: Final = Values((-(2**63), 0, 2**63 - 1), (-(2**63) - 1, 2**63))
CHECKSUM: Final = Values((-1, 0, 2**32 - 1), (-2, 2**32))
OBJECT: Final = Values(("{}", '{"a":[]}'), ("", "[]", "1", "{", '{"a":"' + "l" * 4 * 1_024 * 1_024 + '"}'))
STATE: Final = Values(
    ('"m"', "[1, 2]", "null", f'"{"m" * (1_024 * 1_024 - 2)}"'), ("", "{", "m", f'"{"m" * (1_024 * 1_024 - 1)}"')
)
TYPE: Final = Values(
    ("long", "decimal(38,0)", '{"type":"struct","fields":[{"name":"n","type":"date","nullable":true}]}'),
    ("bigint", "", "decimal(39,0)", '{"type":"struct"}', '{"type":"map","keyType":"long","valueType":"long"}'),
)
HOLDER_PROCESS: Final = Values((0, 2**32 - 1), (-1, 2**32))

_FIELDS: Final[Mapping[str, Values]] = {
    "nonce": TEXT,
    "generation": NUMBER,
    "at_ms": TIME,
    "next_id": NUMBER,
    "holder.host": TEXT,
    "holder.pid": HOLDER_PROCESS,
    "holder.started": TEXT,
    "holder.dagster_run": TEXT,
    "ended.outcome": Values(("a", "of_two", "o" * 40), ("", "A", "a1", "o" * 41, "a\n")),
    "ended.message": MESSAGE,
    "ended.failed.checkpoint": NUMBER,
    "ended.failed.at_ms": TIME,
    "ended.failed.message": MESSAGE,
    "job": Values((), NAME.false),
    "first_id": Values((0, 30), (-1, 31, _EXACT)),
    "last_id": Values((9, _EXACT - 1), (8, -1, _EXACT)),
    "checkpoint": Values((12, _EXACT - 1), (11, -1, _EXACT)),
    "parent": Values((0, 11), (-1, 12, _EXACT)),
    "max_parallelism": Values((KEY_GROUPS, 32_768), (0, KEY_GROUPS - 1, 32_769)),
    "vertices.vertex": NAME,
    "vertices.micro_batch": NUMBER,
    "vertices.splits": SPLIT,
    "vertices.outputs_read": NAME,
    "vertices.coordinator": STATE,
    "barriers.checkpoint": NUMBER,
    "barriers.clock_ms": TIME,
    "barriers.positions.source": NAME,
    "barriers.positions.split": SPLIT,
    "barriers.watermarks.vertex": NAME,
    "barriers.watermarks.watermark_ms": MOMENT,
    "vertices.time.inputs.input": NUMBER,
    "vertices.time.inputs.upstream": NAME,
    "vertices.time.inputs.split": Values(("", *SPLIT.true), SPLIT.false[1:]),
    "vertices.time.inputs.active_ms": Values((*TIME.true, None), TIME.false),
    "vertices.time.inputs.watermark_ms": MOMENT,
    "vertices.time.inputs.delay_ms": Values((0, _EXACT - 1, None), (-1, _EXACT)),
    "vertices.time.inputs.idle_after_ms": Values((0, _EXACT - 1, None), (-1, _EXACT)),
    "vertices.time.inputs.close_after_ms": Values((0, _EXACT - 1, None), (-1, _EXACT)),
    "vertices.time.watermark_ms": MOMENT,
    "vertices.time.rows_ms": Values((*MOMENT.true, None), MOMENT.false),
    "vertices.time.tables": TABLE,
    "vertices.time.behind_ms": NUMBER,
    "vertices.expiry.ttl_ms": NUMBER,
    "vertices.expiry.now_ms": Values((*MOMENT.true, None), MOMENT.false),
    "vertices.subtasks.due_ms": Values((*MOMENT.true, None), MOMENT.false),
    "vertices.subtasks.state.touched_ms": Values((*MOMENT.true, None), MOMENT.false),
    "vertices.subtasks.ranges.files.touched_ms": Values((*MOMENT.true, None), MOMENT.false),
    "vertices.meanings.version": Values((0, _EXACT - 1, None), (-1, _EXACT)),
    "vertices.table_keys.table": TABLE,
    "vertices.subtasks.staged.after": NUMBER,
    "vertices.subtasks.in_flight.channel.edge.upstream": NAME,
    "vertices.subtasks.in_flight.channel.edge.downstream": NAME,
    "vertices.subtasks.in_flight.channel.edge.input": NUMBER,
    "vertices.subtasks.in_flight.channel.subtask": NUMBER,
    "vertices.subtasks.in_flight.segments.source": NAME,
    "vertices.subtasks.in_flight.segments.split": SPLIT,
    "vertices.subtasks.in_flight.segments.rows": NUMBER,
    "vertices.subtasks.in_flight.segments.bytes": NUMBER,
    "vertices.subtasks.in_flight.segments.offered_ms": TIME,
    "tables.parent_version": NUMBER,
    "tables.planned_on": Values((0, _EXACT - 1, None), (-1, _EXACT)),
    "tables.renamed": COLUMN,
    "columns.columns.name": COLUMN,
    "columns.columns.type": TYPE,
    "columns.columns.after": NUMBER,
    "columns.columns.first": Values(("", *COLUMN.true), COLUMN.false[1:]),
    "columns.dropped": COLUMN,
    "columns.table": TABLE,
    "outside": TABLE,
    "hooks.hook": NAME,
    "hooks.state": STATE,
    "statistics.triggered_ms": TIME,
    "statistics.committed_ms": TIME,
    "statistics.rows": NUMBER,
    "statistics.rows_estimated": NUMBER,
    "statistics.failed.checkpoint": NUMBER,
    "statistics.failed.at_ms": TIME,
    "statistics.failed.message": MESSAGE,
    "statistics.vertices.vertex": NAME,
    "statistics.vertices.barriers.channel": TEXT,
    "statistics.vertices.barriers.at_ms": TIME,
    "statistics.vertices.aligned_ms": TIME,
    "statistics.vertices.acknowledged_ms": TIME,
    "statistics.vertices.alignment_ms": SURE_DURATION,
    "statistics.vertices.busy_ms": SURE_DURATION,
    "statistics.vertices.start_delay_ms": DURATION,
    "statistics.vertices.bytes_processed": DURATION,
    "statistics.vertices.async_ms": DURATION,
}
_COUNTS: Final = ("total", "in_progress", "completed", "failed", "restored")
_VERTEX_COUNTS: Final = ("bytes_held", "micro_batches", "rows_in", "rows_out", "bytes_out")
_COLUMNS: Final = ("task_ms", "sync_ms", "rows_in", "rows_out", "bytes_out", "checkpointed_bytes")
_OF_FILES: Final[Mapping[str, Values]] = {
    "rows": NUMBER,
    "bytes": NUMBER,
    "crc32": CHECKSUM,
    "stats": OBJECT,
    "first_key_group": Values((), (-1, KEY_GROUPS)),
    "last_key_group": Values((KEY_GROUPS - 1,), (KEY_GROUPS, -1)),
    "version.generation": NUMBER,
    "version.micro_batch": NUMBER,
}
VALUES_BY_FIELD: Final[Mapping[str, Values]] = {
    **_FIELDS,
    **{f"statistics.counts.{name}": NUMBER for name in _COUNTS},
    **{f"statistics.vertices.{name}": NUMBER for name in _VERTEX_COUNTS},
    **{f"statistics.vertices.subtasks.{name}": Values((0, _EXACT - 1, None), (-1, _EXACT)) for name in _COLUMNS},
}


class Place(NamedTuple):
    """A field of an entry: the object or list that contains the field, its key there, and its values."""

    owner: Any
    key: Any
    values: Values
    pattern: str
    """The names of the fields that lead to this field."""
    where: str
    """The place of the containing object, as messages name it."""


def places(row: Fields) -> Iterator[Place]:
    """Yield the fields of an entry whose values depend on no other field, or on few of them."""
    yield from _places(row, "", "")


def _places(found: Any, pattern: str, where: str) -> Iterator[Place]:
    items = found.items() if isinstance(found, dict) else enumerate(found)
    for key, inner in items:
        own, at = pattern, f"{where}[{key}]"
        if isinstance(found, dict):
            own, at = (f"{outer}.{key}".lstrip(".") for outer in (pattern, where))
        values = _values(found, own)
        if isinstance(inner, dict | list):
            yield from _places(inner, own, at)
        elif values is not None:
            yield Place(found, key, values, own, where)


def _values(owner: Any, pattern: str) -> Values | None:
    name = pattern.rpartition(".")[2]
    if pattern in VALUES_BY_FIELD or not isinstance(owner, dict):
        return VALUES_BY_FIELD.get(pattern)
    if owner.get("inline") and name == "bytes":
        return Values((), (2, 4))
    if name == "path":
        return _paths(owner[name], pattern)
    return next((values for field, values in _OF_FILES.items() if pattern.endswith(f".{field}")), None)


def _paths(path: str, pattern: str) -> Values:
    """Return valid and invalid paths for a file.

    The file's folder belongs to a table, to an operator's state, or to a channel.
    """
    inside = path.index("/_data/") if "/_data/" in path else path.index("/", path.index("/") + 1)
    folder = path[:inside]
    true, unstaged, false = _true_paths(folder), _unstaged_paths(folder), _false_paths(folder)
    elsewhere = (staged("other/table", "totals", 9),)
    if pattern in ("tables.adds.path", "erased.path", "erased.into.path"):  # in a copy, others may have written them
        too_long, foreign = f"{folder}/{'o' * 256}", f"{folder}/{'o' * 255}"
        return Values((*true, *unstaged, foreign), (*false, *elsewhere, too_long, f"{folder}/back\\slash"))
    if "in_flight" in pattern:  # a file of any table may be sent on
        return Values((*true, *elsewhere), (*false, *unstaged))
    return Values(true, (*false, *unstaged, *elsewhere))


def _false_paths(folder: str) -> tuple[str, ...]:
    """Return paths that no file of this folder can have, in any list of files."""
    name = f"totals-7-{9:032x}.parquet"
    return (
        f"../{folder}/_data/3/{name}",
        f"/{folder}/_data/3/{name}",
        f"{folder}/../{folder}/_data/3/{name}",
        f"{folder}//_data/3/{name}",
        f"{folder}/_delta_log/{name}",
        f"{folder}/s3:x/_data/3/{name}"[len(folder) + 1 :],
        f"{folder}/_data/3/day=\n/{name}",
        staged("Other/table", "totals", 9),
        staged("_tidemark/large/state/totals", "totals", 9),
        staged(f"{OWN}/state/another/one", "totals", 9),
    )


def _unstaged_paths(folder: str) -> tuple[str, ...]:
    """Return paths of files in this folder that no micro-batch writes."""
    name = f"totals-7-{9:032x}.parquet"
    return (
        f"{folder}/part-0.parquet",
        f"{folder}/_data/0/{name}",
        f"{folder}/_data/03/{name}",
        f"{folder}/_data/{name}",
        f"{folder}/_data/3/{name}.crc",
        f"{folder}/_data/3/Totals-7-{9:032x}.parquet",
        f"{folder}/_data/3/totals-x-{9:032x}.parquet",
        f"{folder}/_data/3/totals-7-{9:031x}.parquet",
        f"{folder}/_data/3/day=a%2fb/{name}",
        f"{folder}/_data/3/day%41=1/{name}",
        f"{folder}/_data/3/day=1/version.text.a%2fb/{name}",
        f"{folder}/_data/3/others-{9:032x}.parquet",
    )


def _true_paths(folder: str) -> tuple[str, ...]:
    """Return paths of files that micro-batches write into this folder."""
    return (
        staged(folder, "totals", 9),
        staged(folder, "a" * 63, 9, "day=a%2Fb/x=__HIVE_DEFAULT_PARTITION__/"),
        staged(folder, "totals", 9, "day=1/version.text.a%2Fb.c/"),
        staged(folder, "totals", 9, "version.number.-5/"),
    )


# ------------------------------------------------------------------
# Changes an entry in fields that must agree, and tells whether Tidemark may have written the result (H1). Most changes
# make the entry invalid. Each change that leaves it valid is close to a change that makes it invalid.


_COMPACTED_MOST: Final = 1_000


class Told(NamedTuple):
    """An entry, and whether Tidemark may have written it."""

    what: str
    envelope: Fields
    is_true: bool
    newer: bool = False
    """True if a newer version wrote the entry. Its `writer` names the version that a user must install."""
    stored: bool = False
    """True if the entry is read in its stored form, in which manifests may hold its files."""


Change = Callable[[Fields], None]


def told() -> Iterator[Told]:
    """Yield the changed entries."""
    for what, change in {**_twice(), **_false()}.items():
        yield _told(what, change, is_true=False)
    for what, change in _true().items():
        yield _told(what, change, is_true=True)
    for entry in (full_entry(), claim(), release()):
        yield Told(f"a {entry['kind']} as it is", entry, is_true=True)
        yield from _without(entry)
    yield from _kinds()
    yield from _of_others()
    yield from _in_manifests()


def _told(what: str, change: Change, *, is_true: bool) -> Told:
    envelope = full_entry()
    change(envelope["row"])
    return Told(what, envelope, is_true)


def _without(entry: Fields) -> Iterator[Told]:
    """Leave out a field of the envelope or a field that every format has, or add a field that no format has."""
    may_lack = {
        "format",
        "kind",
        "pinned",
        "abandoned",
        "columns",
        "renames",
        "hooks",
        "outside",
        "manifests",
        "erased",
        "barriers",
        "ended",
    }
    row = entry["row"]
    for name in entry:
        yield Told(
            f"a {entry['kind']} with no {name} outside",
            {key: entry[key] for key in entry if key != name},
            is_true=False,
        )
    for name in row:
        less = {key: row[key] for key in row if key != name}
        pinned = {key: less[key] for key in less if key != "pinned"}
        yield Told(
            f"no {name} in a {entry['kind']}", entry | {"row": less if name != "kind" else pinned}, name in may_lack
        )
    yield Told(
        f"a {entry['kind']} with a field that this version does not know",
        entry | {"row": row | {"colour": "blue"}},
        is_true=False,
        newer=True,
    )
    yield Told(
        f"a {entry['kind']} of an older format with such a field",
        entry | {"row": row | {"colour": "blue"}, "format": PRESENT - 1},
        is_true=False,
    )
    yield Told(
        f"a {entry['kind']} with such a field and a wrong one",
        entry | {"row": row | {"colour": "blue", "generation": "three"}},
        is_true=False,
    )
    yield Told(f"a {entry['kind']} with a truth for a format", entry | {"format": True}, is_true=False)
    yield Told(f"a {entry['kind']} with a falsehood for a format", entry | {"format": False}, is_true=False)
    yield Told(f"a {entry['kind']} with a number for a writer", entry | {"writer": 6}, is_true=False)


def _kinds() -> Iterator[Told]:
    """Change the kind in the envelope, in the entry, or in both."""
    cuts = ("checkpoint", "savepoint", "rollback", "reset", "forget", "held")
    for kind in cuts:
        entry = full_entry()
        entry["row"]["kind"] = kind
        yield Told(f"a {kind} that calls itself a checkpoint outside", entry, kind == "checkpoint")
        yield Told(f"a {kind}", entry | {"kind": kind}, is_true=True)
    for kind in ("claim", "release"):
        yield Told(f"a checkpoint that calls itself a {kind} outside", full_entry() | {"kind": kind}, is_true=False)
    for entry, kind in ((claim(), "release"), (release(), "claim"), (claim(), "checkpoint")):
        yield Told(f"a {entry['kind']} that calls itself a {kind} outside", entry | {"kind": kind}, is_true=False)


def _of_others() -> Iterator[Told]:
    """Give the entry a format or a kind that this version does not know."""
    for number in (PRESENT + 1, PRESENT + 2):
        yield Told(f"format {number}", full_entry() | {"format": number}, is_true=False, newer=True)
    for kind in ("barrier", ""):
        yield Told(f"kind {kind!r}", full_entry() | {"kind": kind}, is_true=False, newer=True)
    yield Told(
        "a kind of a newer format", claim() | {"kind": "barrier", "format": PRESENT + 1}, is_true=False, newer=True
    )


def _in_manifests() -> Iterator[Told]:
    """Let manifests hold the files. Each reference to a manifest has a generation, a digest and a number of handles."""
    for false in ({}, {"generation": 0}, {"digest": "1"}, {"handles": 0}, {"left_out": "0"}, {"left_out": "x"}):
        entry = full_entry()
        entry["row"]["manifests"] = [_manifest() | false]
        yield Told(f"a manifest with {false}", entry, not false, stored=True)
    entry = full_entry()
    entry["row"]["tables"][1]["of_snapshots"] = True
    yield Told("files that only snapshots name, in a stored form", entry, is_true=True, stored=True)


def _twice() -> dict[str, Change]:
    """Let a list name one thing twice."""
    lists: dict[str, Callable[[Fields], list[Any]]] = {
        "vertices": lambda row: row["vertices"],
        "tables": lambda row: row["tables"],
        "tables with columns": lambda row: row["columns"],
        "hooks": lambda row: row["hooks"],
        "erased files": lambda row: row["erased"],
        "columns": lambda row: row["columns"][0]["columns"],
        "compacted files": lambda row: row["tables"][0]["compactions"][0]["of"],
    }

    def again(of: Callable[[Fields], list[Any]]) -> Change:
        return lambda row: of(row).append(of(row)[0])

    return {f"{what} twice": again(of) for what, of in lists.items()}


def _false() -> dict[str, Change]:
    """Return changes after which two fields contradict each other."""
    return {
        "one split twice": lambda row: row["vertices"][0].update(splits=["a", "a"]),
        "a split too few": lambda row: row["vertices"][0]["splits"].pop(),
        "a split too many": lambda row: row["vertices"][0]["splits"].append("c"),
        "measurements of a subtask too few": lambda row: _measured(row).update(task_ms=[6]),
        "measurements of a subtask too many": lambda row: _measured(row).update(rows_in=[6, 6, 6]),
        "a renamed column of no vertex": lambda row: row["renames"][2].update(vertex=""),
        "a renamed column of a wrong name": lambda row: row["renames"][2].update(vertex="A"),
        "a renamed column without a name": lambda row: row["renames"][2].update(was=""),
        "a renamed vertex of a vertex": lambda row: row["renames"][0].update(vertex="totals"),
        "a renamed table of a vertex": lambda row: row["renames"][1].update(vertex="totals"),
        "a vertex that was called as no vertex": lambda row: row["renames"][0].update(was="Older"),
        "a vertex that is called as a table": lambda row: row["renames"][0].update(now="gold/newer"),
        "a table that was called as a vertex": lambda row: row["renames"][1].update(was="older"),
        "a table that is called as no table": lambda row: row["renames"][1].update(now="gold/newer/x"),
        "too many compacted files": lambda row: _compact(row, _COMPACTED_MOST + 1),
        "a file compacted into itself": lambda row: _compaction(row)["of"].append(_compaction(row)["into"]["path"]),
        "a compacted file of others": lambda row: _compaction(row)["of"].append("silver/rows/part-0.parquet"),
        "a compacted file of another table": lambda row: _compaction(row)["of"].append(staged("a/b", "silver", 1)),
        "a compaction in an upsert table": _compact_upserts,
        "content of an output's file": lambda row: row["tables"][1]["files"][0].update(bytes=3, inline="QUJD"),
        "content of a file that was added": lambda row: row["tables"][0]["adds"][0].update(bytes=3, inline="QUJD"),
        "content of a staged file": lambda row: _subtask(row)["staged"][0]["file"].update(bytes=3, inline="QUJD"),
        "content of a file of a range": lambda row: _range(row)["file"].update(bytes=3, inline="QUJD"),
        "content that is no base64": lambda row: _subtask(row)["state"][1]["file"].update(inline="QU!JD"),
        "key groups that end before they begin": lambda row: _subtask(row)["state"][0].update(
            first_key_group=3, last_key_group=2
        ),
        "a range of another table": lambda row: _subtask(row)["ranges"][0].update(table="gold/other"),
        "a range of no table": lambda row: _subtask(row)["ranges"][1].update(table="gold"),
        "a staged file of another table": lambda row: _subtask(row)["staged"][0].update(table="gold/other"),
        "a staged file of no table": lambda row: _false_table(row["vertices"][1]["subtasks"][0]["staged"][0]),
        "an erased file of no table": lambda row: row["erased"][0].update(table="gold", path="gold/part-1.parquet"),
        "a table with files of another one": lambda row: row["tables"][1].update(table="gold/other"),
        "a table of no name": lambda row: row["tables"].append(_empty_table(row, "gold")),
        "a table of another job": lambda row: row["tables"].append(_empty_table(row, "_tidemark/large/state/totals")),
        "state in a table's folder": lambda row: _subtask(row)["state"][0]["file"].update(
            path=staged("gold/totals", "totals", 9)
        ),
        "state in a channel's folder": lambda row: _subtask(row)["state"][0]["file"].update(
            path=staged(f"{OWN}/channels/totals", "totals", 9)
        ),
        "files in manifests": lambda row: row.update(manifests=[_manifest()]),
        "files that only snapshots name": lambda row: row["tables"][1].update(of_snapshots=True),
        "manifests in which it was held": lambda row: row.update(held_in=["a"]),
    }


def _true() -> dict[str, Change]:
    """Return changes that leave the entry valid. Each is close to a change that makes the entry invalid."""
    return {
        "no splits": lambda row: row["vertices"][0].update(splits=[]),
        "no measurements": lambda row: _measured(row).update(task_ms=[], rows_in=[]),
        "measurements of a vertex that left": lambda row: row["statistics"]["vertices"][1].update(vertex="left"),
        "as many compacted files as may be": lambda row: _compact(row, _COMPACTED_MOST),
        "key groups that are one": lambda row: _subtask(row)["state"][0].update(first_key_group=3, last_key_group=3),
        "a job of one key group": _in_one_key_group,
        "a range of another table without files": lambda row: _subtask(row)["ranges"][1].update(table="gold/other"),
        "a state table's range": lambda row: _subtask(row)["ranges"][1].update(table=f"{OWN}/state/totals"),
        "a table without files": lambda row: row["tables"].append(_empty_table(row, "gold/other")),
        "content of a successor": lambda row: row["erased"][1]["into"].update(bytes=3, inline="QUJD"),
        "a state file without content": lambda row: _subtask(row)["state"][1]["file"].update(inline=""),
        "no name of what an input reads": lambda row: row["vertices"][1].update(outputs_read=None),
        "no meanings": lambda row: row["vertices"][2].update(meanings=None),
        "no counts": lambda row: row["statistics"].update(counts=None),
        "no state of a coordinator": lambda row: row["vertices"][0].update(coordinator=None),
    }


def _subtask(row: Fields) -> Fields:
    found: Fields = row["vertices"][2]["subtasks"][1]
    return found


def _range(row: Fields) -> Fields:
    found: Fields = _subtask(row)["ranges"][0]["files"][0]
    return found


def _measured(row: Fields) -> Fields:
    found: Fields = row["statistics"]["vertices"][1]["subtasks"]
    return found


def _compaction(row: Fields) -> Fields:
    found: Fields = row["tables"][0]["compactions"][0]
    return found


def _compact(row: Fields, files: int) -> None:
    _compaction(row)["of"] = [staged("silver/rows", "silver", 100 + number) for number in range(files)]


def _in_one_key_group(row: Fields) -> None:
    row["max_parallelism"] = 1
    for subtask in row["vertices"][2]["subtasks"]:
        for keyed in (*subtask["state"], *subtask["ranges"][0]["files"]):
            keyed.update(first_key_group=0, last_key_group=0)


def _compact_upserts(row: Fields) -> None:
    into = handle(staged("gold/totals", "totals", 9))
    row["tables"][1]["compactions"] = [{"into": into, "of": [staged("gold/totals", "totals", 60)]}]


def _false_table(entry: Fields) -> None:
    """Let a file be staged for a table of another job, in that table's folder."""
    table = "_tidemark/large/state/totals"
    entry.update(table=table, file=handle(staged(table, "silver", 1)))


def _empty_table(row: Fields, name: str) -> Fields:
    return {**row["tables"][1], "table": name, "files": []}


def _manifest() -> Fields:
    return {"generation": 3, "digest": f"{1:064x}", "handles": 4, "left_out": "a"}


FIELDS: Final = "entries-are-checked"
"""An entry is accepted exactly if Tidemark may have written it. It is then read back unchanged."""
NAMED: Final = "entries-name-files"
"""All files of an entry are found, and those that a restore needs. So no clean-up deletes one, and copies have all.
"""
_KINDS: Final = frozenset(each.value for each in RowKind)
_ENTRIES: Final = {"checkpoint": full_entry, "claim": claim, "release": release}


_TABLE: Final = TableName("gold/sums")


class Older(NamedTuple):
    """An entry as a version with this older format wrote it."""

    kind: str
    format: int


class OfPattern(NamedTuple):
    """All fields of an entry to which these names lead."""

    kind: str
    pattern: str


_PATTERNS: Final = tuple(
    OfPattern(kind, pattern)
    for kind, make in _ENTRIES.items()
    for pattern in dict.fromkeys(place.pattern for place in places(make()["row"]))
)
_OLDER: Final = tuple(Older(kind, number) for kind in _ENTRIES for number in range(OLDEST, PRESENT + 1))
_RESTORED: Final = ("state", "ranges", "in_flight")
_PLACES: Final = (*_RESTORED, "staged", "adds", "files", "compacted")
_numbers = st.lists(st.integers(0, 2), max_size=3)
_files = st.fixed_dictionaries(dict.fromkeys(_PLACES, _numbers))
_EVERYTHING: Final[tuple[OfPattern | Told | Older, ...]] = (*_PATTERNS, *told(), *_OLDER)


def test_entries_read():
    """Read every changed entry."""
    for case in _EVERYTHING:
        match case:
            case OfPattern() as pattern:
                _change(pattern)
            case Older() as older:
                _read_older(older)
            case Told() as changed:
                _judge(changed)


@given(numbers=_files)
def test_entries_name_files(numbers):
    """An entry has so many files in each list of each of its places."""
    files = {
        place: [[FileHandle(f"{place}-{at}-{one}", 1, 1, 1) for one in range(many)] for at, many in enumerate(lists)]
        for place, lists in numbers.items()
    }
    record, paths = (
        _entry_of(files),
        {place: {one.path for each in files[place] for one in each} for place in files},
    )
    due = set().union(*paths.values())
    expect(files_of(record) == due, NAMED, f"{sorted(files_of(record) ^ due)} of {sorted(due)}")
    needed = {each.path for each in handles_to_restore(record)}
    due = set().union(*(paths[place] for place in _RESTORED))
    expect(needed == due, NAMED, f"a restore needs {sorted(due)}, and not {sorted(needed)}")


def _entry_of(files: dict[str, list[list[FileHandle]]]) -> CheckpointRecord:
    """Return an entry of two subtasks and one table, with these files."""

    def keyed(found: list[FileHandle]) -> tuple[KeyedFile, ...]:
        return tuple(KeyedFile(each, KeyedFileKind.BASE, 0, 7, Version(Generation(1), 1)) for each in found)

    def flat(place: str) -> list[FileHandle]:
        return [each for found in files[place] for each in found]

    channel = ChannelId(EdgeId(VertexId("rows"), VertexId("sums")), 0)
    held = ChannelState(channel, tuple(StagedSegment(tuple(found)) for found in files["in_flight"]))
    first = SubtaskSnapshot(state=keyed(flat("state")), in_flight=(held,))
    second = SubtaskSnapshot(
        ranges=tuple(RangeFiles(_TABLE, keyed(found)) for found in files["ranges"]),
        staged=tuple(StagedFile(_TABLE, each, CheckpointId(3)) for each in flat("staged")),
    )
    table = TableRecord(
        table=_TABLE,
        mode=TableMode.APPEND,
        adds=tuple(flat("adds")),
        files=tuple(flat("files")),
        compactions=tuple(FileCompaction(into=each, of=("small",)) for each in flat("compacted")),
        parent_version=0,
    )
    sums = VertexRecord(vertex=VertexId("sums"), micro_batch=1, subtasks=(first, second))
    return plain_entry(vertices=(sums,), tables=(table,))


def _change(case: OfPattern) -> None:
    """Give each of these fields each of its values in turn, and judge the entry."""
    entry = _ENTRIES[case.kind]()
    for place in [place for place in places(entry["row"]) if place.pattern == case.pattern]:
        before = place.owner[place.key]
        for is_true, values in ((True, place.values.true), (False, place.values.false)):
            for value in values:
                place.owner[place.key] = value
                _judge(Told(f"{case.pattern} {str(value)[:80]!r}", entry, is_true), place.where)
        place.owner[place.key] = before


def _read_older(case: Older) -> None:
    row = decode(json.dumps(_ENTRIES[case.kind]()))
    envelope, meant, _ = written(row, case.format)
    try:
        differs = read_otherwise(meant, decode(json.dumps(envelope)))
    except ValueError as error:
        differs = str(error)
    expect(not differs, FIELDS, f"a {case.kind} of format {case.format} is read otherwise: {differs}")


def _judge(case: Told, where: str = "") -> None:
    """Raise if an invalid entry is accepted, a valid one is refused, or its fields are read with other values.

    A refusal must name the place of the wrong field, or the version that wrote an entry that this version cannot read.
    """
    read = decode_stored if case.stored else decode
    try:
        row = read(json.dumps(case.envelope))
    except UnknownFormatError as error:
        kind, number = case.envelope["kind"], case.envelope["format"]
        other = f"in kind {kind!r}" if kind not in _KINDS else "newer than this version"
        why = f"in format {number}" if number > PRESENT else other
        named = why in str(error) and "by spec" in str(error) and "install spec or newer" in str(error)
        expect(case.newer and named, FIELDS, f"{case.what}: {error}")
        return
    except UnreadableRowError as error:
        expect(not case.is_true and not case.newer, FIELDS, f"{case.what} is refused: {error}")
        named = where in str(error) or "row." in str(error)
        expect(named, FIELDS, f"{case.what} is refused without naming {where}: {error}")
        expect("(and 0 more)" not in str(error), FIELDS, f"{case.what} is refused with more than is wrong: {error}")
        return
    expect(case.is_true, FIELDS, f"{case.what} is believed")
    again: Fields = json.loads(encode(row, writer="spec"))
    for name, said in case.envelope["row"].items():
        expect(again["row"][name] == said, FIELDS, f"{case.what}: {name} is read otherwise")
    expect(again["kind"] == case.envelope["kind"], FIELDS, f"{case.what} is written as {again['kind']}")


def test_true_and_false_entries_are_told():
    """All changed entries have different names. Many are valid, and many are invalid."""
    cases = [*told()]
    assert len(cases) == len({case.what for case in cases})
    assert min(sum(case.is_true for case in cases), sum(not case.is_true for case in cases)) > 20
