"""Opens a small table of an object store with two requests one after the other, instead of a dozen.

delta-rs reads a Delta log checkpoint by eight or nine ranges, one after the other, and each log entry twice. For a
table whose whole state has a few kB, that is most of a tick's start. So the files that delta-rs needs are copied into
a folder of this machine, all at the same time, and delta-rs reads them there.
"""

from deltalake import DeltaTable

from jobs.storage.local import scratch_folder
from jobs.storage.place import StoragePlace
from jobs.storage.together import together
from jobs.stores.log_entries import ENTRY, LOG_CHECKPOINT, log_of


def copied(folder: StoragePlace) -> tuple[DeltaTable, int]:
    """Return the table as its log says now, and the version of its newest Delta log checkpoint, or -1.

    The table cannot be updated, and its address is not that of `folder`. Raises OSError, and what delta-rs raises for
    a log that it cannot load. It may fail where delta-rs itself succeeds: if the log is shortened at this moment, or if
    its Delta log checkpoint consists of several files.
    """
    names = [each.name for each in log_of(folder).entries()]
    start = max((int(match[1]) for match in map(LOG_CHECKPOINT.fullmatch, names) if match), default=-1)
    entries = (match for match in map(ENTRY.fullmatch, names) if match)
    needed = [match[0] for match in entries if int(match[1]) > start]
    if start >= 0:
        needed.append(f"{start:020d}.checkpoint.parquet")
    contents = together(folder.storage, lambda name: (log_of(folder) / name).read(), needed)
    with scratch_folder() as scratch:
        for name, content in zip(needed, contents, strict=True):
            (log_of(scratch) / name).write(content, durable=False)
        return DeltaTable(str(scratch)), start
