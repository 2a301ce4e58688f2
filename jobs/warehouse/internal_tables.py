"""Opens `checkpoints` and `cuts`, into which only Tidemark may write, and finds changes by other writers.

Rows that others append are ignored, and Tidemark's next commit removes them. OPTIMIZE keeps Tidemark's rows in a new
file. If another writer removes Tidemark's files, entries are lost. Then no tick begins until somebody undoes the
removal.
"""

from itertools import takewhile

from jobs.engine_paths import typed
from jobs.warehouse.cut_check import damaged_log
from jobs.warehouse.delta_log import DeltaLog
from jobs.warehouse.log_entries import file_actions, newest_entries
from jobs.warehouse.row_files import is_own
from jobs.warehouse.table_snapshot import KnownTable
from jobs.warehouse.warehouse import Warehouse


class OwnTableChangedError(Exception):
    """Another writer removed Tidemark's own files from `checkpoints` or `cuts`. `what` names the commit."""

    def __init__(self, what: str, way_out: str) -> None:
        super().__init__(f"{what}: {way_out}")
        self.what = what
        self.way_out = way_out


def opened(warehouse: Warehouse, log: DeltaLog, name: str) -> KnownTable:
    """Return the table as of a look since `DeltaLog.look_anew`. Check that no other writer has removed anything.

    Raises TableLogDamagedError, which names the missing or damaged log entry, and OwnTableChangedError.
    """
    try:
        table = log.looked_at()
    except Exception as error:
        raise damaged_log(warehouse, name, error) from error
    if log.sound_at == table.version():
        return table
    foreign = list(
        takewhile(lambda entry: entry.ours is None and entry.version > 0, newest_entries(log.folder, table.version()))
    )
    lost: set[str] = set()
    for entry in reversed([each for each in foreign if each.operation != "OPTIMIZE"]):
        for action, path in file_actions(log.folder, entry.version):
            if is_own(path):
                lost = lost | {path} if action == "remove" else lost - {path}
    if lost:
        before = foreign[-1].version - 1
        undo = f"from deltalake import DeltaTable; DeltaTable({str(log.folder)!r}).restore({before})"
        raise OwnTableChangedError(
            f"somebody else's commit ({foreign[-1]}) removed {len(lost)} of Tidemark's own files from {name} in "
            f"{warehouse.root}, where nobody but Tidemark may write",
            f"undo it with python -c {typed(undo)}, and start again",
        )
    log.sound_at = table.version()
    return table
