"""Lists for each field of an entry which values Tidemark may have written, and which it cannot have written (H1).

The values come from the documentation of the entries. This module shares no code with the checks of the product.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from spec.full_entry import KEY_GROUPS, OWN, Fields, staged

_EXACT: Final = 2**53
"""From here on, some JSON readers round whole numbers."""
_YEAR_10000_MS: Final = 253_402_300_800_000


class Values(NamedTuple):
    """The last values that a field may have, and the first values that it may not have."""

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
NUMBER: Final = Values((0, _EXACT - 1), (-1, _EXACT))
TIME: Final = Values((0, _YEAR_10000_MS - 1), (-1, _YEAR_10000_MS))
DURATION: Final = Values((0, 1 - _EXACT, _EXACT - 1, None), (_EXACT, -_EXACT))
SURE_DURATION: Final = Values(DURATION.true[:3], DURATION.false)
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
FIELDS: Final[Mapping[str, Values]] = {
    **_FIELDS,
    **{f"statistics.counts.{name}": NUMBER for name in _COUNTS},
    **{f"statistics.vertices.{name}": NUMBER for name in _VERTEX_COUNTS},
    **{f"statistics.vertices.subtasks.{name}": Values((0, _EXACT - 1, None), (-1, _EXACT)) for name in _COLUMNS},
}


class Place(NamedTuple):
    """A field of an entry: the object or list that has it, its key there, and its values."""

    owner: Any
    key: Any
    values: Values
    pattern: str
    """The names of the fields that lead there."""
    where: str
    """The place of the owner, as messages name it."""


def places(row: Fields) -> Iterator[Place]:
    """Yield the fields of an entry whose values do not depend on its other fields, or on few of them."""
    yield from _places(row, "", "")


def _places(found: Any, pattern: str, where: str) -> Iterator[Place]:  # noqa: ANN401 - any JSON
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


def _values(owner: Any, pattern: str) -> Values | None:  # noqa: ANN401 - any JSON
    name = pattern.rpartition(".")[2]
    if pattern in FIELDS or not isinstance(owner, dict):
        return FIELDS.get(pattern)
    if owner.get("inline") and name == "bytes":
        return Values((), (2, 4))
    if name == "path":
        return _paths(owner[name], pattern)
    return next((values for field, values in _OF_FILES.items() if pattern.endswith(f".{field}")), None)


def _paths(path: str, pattern: str) -> Values:
    """Return true and false paths for a file.

    Its folder belongs to a table, to an operator's state, or to a channel.
    """
    inside = path.index("/_data/") if "/_data/" in path else path.index("/", path.index("/") + 1)
    folder = path[:inside]
    true, unstaged, false = _true_paths(folder), _unstaged_paths(folder), _false_paths(folder)
    elsewhere = (staged("other/table", "totals", 9),)
    if pattern == "tables.adds.path":  # in a copy, others may have written them
        too_long, foreign = f"{folder}/{'o' * 256}", f"{folder}/{'o' * 255}"
        return Values((*true, *unstaged, foreign), (*false, *elsewhere, too_long, f"{folder}/back\\slash"))
    if "in_flight" in pattern:  # a file of any table may be sent on
        return Values((*true, *elsewhere), (*false, *unstaged))
    return Values(true, (*false, *unstaged, *elsewhere))


def _false_paths(folder: str) -> tuple[str, ...]:
    """Return paths that no file of this folder can have. This holds for every list of files."""
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
