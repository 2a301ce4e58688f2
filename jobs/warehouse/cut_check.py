"""Collects the facts by which `commit.lost_publications` decides whether tables show what recorded cuts say.

A normal start reads one log entry for each table and recorded cut. The whole log of a table is read only in doubt.
"""

from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace

from checkpointing.commit.lost_publications import Cuts, LogSeen, Standing, in_doubt
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.metadata.record import CheckpointRecord, Row
from jobs.engine_paths import typed
from jobs.storage.place import together
from jobs.warehouse.log_entries import broken_entry, log_versions
from jobs.warehouse.tables import Left, TableLogs
from jobs.warehouse.warehouse import Warehouse


class TableLogDamagedError(Exception):
    """No engine can load a table. `what` names the broken log entry."""

    def __init__(self, table: TableName, what: str, way_out: str) -> None:
        super().__init__(f"{what}: {way_out}")
        self.table = table
        self.what = what
        self.way_out = way_out


def observe_standing(
    warehouse: Warehouse,
    logs: TableLogs,
    rows: Iterable[Row],
    cuts: Cuts,
    tables: Collection[TableName] | None,
    *,
    whole: bool = False,
) -> Standing:
    """Return the facts in the logs of a job's tables about its entries and recorded cuts.

    With `tables`, only these tables are read. With `whole`, each log is read as a whole. For a log that cannot be
    loaded, raises TableLogDamagedError, which names the log entry.
    """
    known = [row for row in rows if isinstance(row, CheckpointRecord)]
    versions: dict[TableName, set[int]] = {}
    for cut in cuts.values():
        for table, version in cut.items():
            versions.setdefault(table, set()).add(version)
    for row in known:
        for each in row.tables:
            versions.setdefault(each.table, set())
    wanted = {table: at for table, at in versions.items() if tables is None or table in tables}

    def looks(asked: Iterable[tuple[TableName, AbstractSet[int] | None]]) -> dict[TableName, LogSeen]:
        found = together(warehouse.storage, lambda each: (each[0], _look_at(warehouse, logs, *each)), asked)
        return dict(found)

    looked = looks([(table, None if whole else at) for table, at in wanted.items()])
    seen = Standing(warehouse.paths.job, tuple(known), cuts, looked)
    doubtful = frozenset() if whole else in_doubt(seen)
    return replace(seen, logs=looked | looks([(table, None) for table in doubtful]))


def _look_at(warehouse: Warehouse, logs: TableLogs, table: TableName, versions: AbstractSet[int] | None) -> LogSeen:
    """Return the facts in a table's log at these versions, or at all versions (None). Raise TableLogDamagedError."""
    log = logs.log(table)
    try:
        left = logs.left(table, versions) if versions else None
        if left is None:
            loaded = log.looked_at()
            left = Left(loaded.version(), CheckpointId(logs.shown(loaded, table)))
    except Exception as error:
        if not log_versions(log.folder):
            return LogSeen(None)
        raise damaged_log(warehouse, table, error) from error
    there = log_versions(log.folder) if versions is None else []
    asked = sorted(versions) if versions is not None else there
    entries = together(warehouse.storage, lambda version: (version, logs.published_at(table, version)), asked)
    published = {version: entry for version, entry in entries if entry is not None}
    if not there and not published.keys() >= {*asked} - {0}:
        there = log_versions(log.folder)  # one version has no log entry, which may have been dropped as too old
    oldest = there[0] if there else 0
    return LogSeen(left.version, left.shows, published, oldest)


def damaged_log(warehouse: Warehouse, name: str, error: Exception) -> TableLogDamagedError:
    """Return the error for a log that cannot be loaded: a missing or damaged log entry, or else the reader's error."""
    table, folder = TableName(name), warehouse.place(name)
    way_out = f"restore {folder} from a backup of the warehouse"
    broken = broken_entry(folder)
    if broken is None:
        what = f"its log cannot be loaded ({type(error).__name__}: {(str(error).splitlines() or [''])[0]})"
    elif broken.missing:
        what = f"entry {broken.place.last} is missing from its log, with later ones there"
    elif not broken.newest:
        what = f"entry {broken.place.last} of its log is cut off, with later ones there"
    else:
        what = f"{broken.place.last}, the newest entry of its log, is cut off"
        there = str(broken.place)
        move = f"mv {typed(there)} {typed(there.removesuffix('.json') + '.cut-off')}"
        way_out = (
            f"if no other program is writing to the table now, move the entry away ('{move}') and start again; the "
            "start publishes again what it held, or says what it cannot bring back"
        )
    return TableLogDamagedError(table, f"table {table}: {what}", way_out)
