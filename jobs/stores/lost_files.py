"""Finds Tidemark's files that another writer removed from an append table, by moving or deleting their rows.

It reads the log's entries, which an output table keeps (`output_tables.CONFIGURATION`). If any writer has added a file
again, the file is not lost.
"""

from collections.abc import Collection
from dataclasses import dataclass

from checkpointing.metadata.paths import STAGED, parse_generation, parse_staged_name
from jobs.storage.place import StoragePlace
from jobs.stores.known_table import KnownTable
from jobs.stores.log_entries import LogEntry, entries_after, file_actions, newest_entries

_PARTS_OF_A_STAGED_PATH = 3


@dataclass(frozen=True, slots=True)
class LostFile:
    """A file of Tidemark that the table no longer has, and the foreign log entry that removed it."""

    path: str
    by: LogEntry


def is_ours(path: str) -> bool:
    """Return True if a path in a table's log is that of a file that a vertex staged."""
    parts = path.split("/", _PARTS_OF_A_STAGED_PATH - 1)
    return (
        len(parts) == _PARTS_OF_A_STAGED_PATH
        and parts[0] == STAGED
        and parse_generation(parts[1]) is not None
        and parse_staged_name(parts[2]) is not None
    )


def lost_files(folder: StoragePlace, newest: int, after: int) -> dict[str, LostFile]:
    """Return Tidemark's files that foreign log entries after version `after`, up to `newest`, removed, by path.

    Files that anybody has added again are left out. Raises OSError if an entry of the log is gone.
    """
    lost: dict[str, LostFile] = {}
    for entry in reversed(list(entries_after(folder, newest, after))):
        for action, path in file_actions(folder, entry.version):
            if action == "add":
                lost.pop(path, None)
            elif entry.ours is None and is_ours(path):
                lost[path] = LostFile(path, entry)
    return lost


def not_removable(table: KnownTable, folder: StoragePlace, leaving: Collection[str]) -> str:
    """Return why these files of Tidemark cannot be removed from an append table, and the way out. Empty if they can.

    Another writer may have moved their rows into other files, or given them deletion vectors. A file that never came
    into the log need not be removed.
    """
    gone = table.without(leaving)
    newest = table.version()
    lost = lost_files(folder, newest, _newest_of_ours(folder, newest)) if gone else {}
    if gone & lost.keys():
        return merged(lost[min(gone & lost.keys())].by, str(folder))
    vectors = table.with_deletion_vectors().intersection(leaving)
    return marked(vectors, str(folder)) if vectors else ""


def _newest_of_ours(folder: StoragePlace, newest: int) -> int:
    return next((entry.version for entry in newest_entries(folder, newest) if entry.ours is not None), 0)


def merged(by: LogEntry, folder: str) -> str:
    """Return the message with the way out if another writer moved rows of Tidemark into other files."""
    return (
        f"foreign {by} removed files of Tidemark and wrote their rows into other files, so the rows that came after "
        f"the checkpoint can't be told apart: undo it (RESTORE TABLE delta.`{folder}` TO VERSION AS OF "
        f"{by.version - 1}), and do the same again"
    )


def marked(paths: Collection[str], folder: str) -> str:
    """Return the message with the way out if files have deletion vectors. A rollback cannot remove such files."""
    return (
        f"a DELETE or UPDATE left deletion vectors on {len(paths)} files of Tidemark ({min(paths)}), which only Spark "
        f"can remove: find its version (DESCRIBE HISTORY delta.`{folder}`), go back to the one before (RESTORE TABLE "
        f"delta.`{folder}` TO VERSION AS OF ...), and do the same again"
    )
