"""Rewrites a table's log in place, so that no version ever showed a file from which rows were erased (K6, ADR 24).

Each such file is replaced by its successor. Versions keep their numbers, so recorded cuts and the positions of
followers stay valid. A log entry keeps its commitInfo, and its number of adds, unless a file has no successor.

Readers can load the table at any moment, and the process can die at any moment and start the rewriting again. So the
order matters:

1. The log entries are rewritten from the newest one back. Each remove of an erased file also removes the successor.
   Each add of an erased file becomes a remove of this file and an add of the successor. Whichever older entries a
   reader finds, it sees each row at most once.
2. When no add of an erased file is left, the removes of erased files are deleted too.

Bounds of files that no longer exist are deleted as well, since bounds contain values of rows. No reader can need such a
file.
"""

import io
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from checkpointing.handles import FileHandle
from jobs.storage.place import StoragePlace
from jobs.warehouse.log_entries import ENTRY, LOG_CHECKPOINT, log_of
from jobs.warehouse.log_writing import logged_path

Action = dict[str, Any]

_WHOLE: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")
_DERIVED: Final = re.compile(r"\d{20}\.crc|\d{20}\.\d{20}\.compacted\.json|_last_checkpoint")
"""Files that only repeat the content of log entries. No reader needs them."""
_PARSED: Final = ("stats_parsed",)


class LogNotRewrittenError(Exception):
    """A log has parts that Tidemark cannot rewrite. The message names the table, the part and the way out."""


def must_be_rewritable(folder: StoragePlace) -> None:
    """Raise LogNotRewrittenError for a log with Delta log checkpoints that are not single Parquet files."""
    for each in log_of(folder).entries():
        if (LOG_CHECKPOINT.fullmatch(each.name) and not _WHOLE.fullmatch(each.name)) or each.name == "_sidecars":
            raise LogNotRewrittenError(
                f"the log of {folder} has {each.name}, a Delta log checkpoint of several files: write a classic one "
                "(delta.checkpointPolicy = 'classic') and let the log forget the older one, then do the same again, or "
                "leave the table out with --except"
            )


def rewrite_log(
    folder: StoragePlace,
    into: Mapping[str, FileHandle | None],
    exists: Callable[[str], bool],
    step: Callable[[], None] = lambda: None,
) -> None:
    """Replace the erased files by their successors in the whole log. A second call changes nothing.

    Paths are relative to the table's folder, also those of the successors. `exists` returns whether a file exists.
    `step` is called before each file of the log is replaced. Raises LogNotRewrittenError, OSError, ValueError and
    ArrowException.
    """
    must_be_rewritable(folder)
    log = log_of(folder)
    names = [each.name for each in log.entries()]
    files = sorted(filter(_is_loaded, names), key=lambda name: (name[:20], name.endswith(".json")), reverse=True)
    changed = False
    for name in files:
        content = (log / name).read()
        new = _first_pass(name, content, into, exists)
        if new != content:
            step()
            (log / name).replace(new)
            changed = True
    for name in filter(ENTRY.fullmatch, files):
        content = (log / name).read()
        new = _text(list(_without_removes(_actions(content), into)), content)
        if new != content:
            step()
            (log / name).replace(new)
            changed = True
    if changed:
        for name in filter(_DERIVED.fullmatch, names):
            (log / name).delete()


def adds_in(folder: StoragePlace) -> Iterator[Action]:
    """Yield every add of a table's log, also those in Delta log checkpoints. Raises OSError, ValueError."""
    log = log_of(folder)
    for name in sorted(each.name for each in log.entries() if _is_loaded(each.name)):
        content = (log / name).read()
        if ENTRY.fullmatch(name):
            yield from (each["add"] for each in _actions(content) if "add" in each)
        else:
            rows = pq.read_table(pa.BufferReader(content), columns=["add"]).column("add").to_pylist()
            for add in rows:
                if add is not None:
                    yield add | {"partitionValues": dict(add.get("partitionValues") or ())}


def has_change_data(folder: StoragePlace) -> bool:
    """Return whether another writer has written changed rows into separate files (Change Data Feed)."""
    log = log_of(folder)
    return any(b'{"cdc"' in (log / each.name).read() for each in log.entries() if ENTRY.fullmatch(each.name))


def path_of(action: Action) -> str:
    """Return the path of an add or a remove inside the table's folder."""
    return unquote(action["path"])


def _is_loaded(name: str) -> bool:
    return bool(ENTRY.fullmatch(name) or _WHOLE.fullmatch(name))


def _first_pass(
    name: str, content: bytes, into: Mapping[str, FileHandle | None], exists: Callable[[str], bool]
) -> bytes:
    if not ENTRY.fullmatch(name):
        return _checkpoint(content, into, exists)
    return _text(list(with_successors(_actions(content), into, exists)), content)


def with_successors(
    actions: Collection[Action], into: Mapping[str, FileHandle | None], exists: Callable[[str], bool]
) -> Iterator[Action]:
    """Yield the actions of one log entry, with successors added and removed in place of the erased files."""
    removed = {path_of(each["remove"]) for each in actions if "remove" in each}
    added = {path_of(each["add"]) for each in actions if "add" in each}
    for each in actions:
        kind = next(iter(each))
        path = path_of(each[kind]) if kind in ("add", "remove") else ""
        if path not in into:
            yield {"add": _without_bounds(each["add"])} if kind == "add" and not exists(path) else each
            continue
        successor = into[path]
        if kind == "remove":
            yield each
            if successor is not None and added.isdisjoint((path, successor.path)) and successor.path not in removed:
                removed.add(successor.path)
                yield {"remove": each["remove"] | {"path": logged_path(successor.path)}}
        else:
            if path not in removed:
                removed.add(path)
                yield {"remove": _removed(each["add"])}
            if successor is not None:
                yield {"add": _replaced(each["add"], successor)}


def _without_removes(actions: Collection[Action], into: Mapping[str, FileHandle | None]) -> Iterator[Action]:
    for each in actions:
        if "remove" not in each or path_of(each["remove"]) not in into or _erases(actions):
            yield each


def _erases(actions: Collection[Action]) -> bool:
    """Return whether these are the actions of the commit after the rewriting.

    Readers with an older snapshot need the removes of this commit, and the clean-up finds in them since when the files
    are not needed.
    """
    infos = (each["commitInfo"].get("tidemark") for each in actions if "commitInfo" in each)
    return any(isinstance(said, dict) and said.get("erases") is True for said in infos)


def _removed(add: Action) -> Action:
    said = {"path": add["path"], "dataChange": add.get("dataChange", True)}
    return said | {"deletionTimestamp": add.get("modificationTime", 0)}


def _replaced(add: Action, successor: FileHandle) -> Action:
    said = {"path": logged_path(successor.path), "size": successor.bytes, "stats": successor.stats}
    return add | said


def _without_bounds(add: Action) -> Action:
    """Return the add of a file that is gone, without the bounds of its values."""
    try:
        known = json.loads(add.get("stats") or "{}")
    except ValueError:
        known = {}
    if not isinstance(known, dict) or not {"minValues", "maxValues"} & known.keys():
        return add
    return add | {"stats": json.dumps({"numRecords": known.get("numRecords")})}


def _checkpoint(content: bytes, into: Mapping[str, FileHandle | None], exists: Callable[[str], bool]) -> bytes:
    """Return a Delta log checkpoint with the successors. It has only adds, so no removes are written."""
    table = pq.read_table(pa.BufferReader(content))
    was = table.to_pylist()
    rows = [new for new in (_row(each, into, exists) for each in was) if new is not None]
    if rows == was:
        return content
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), sink)
    return sink.getvalue()


def _row(row: Action, into: Mapping[str, FileHandle | None], exists: Callable[[str], bool]) -> Action | None:
    """Return a row of a Delta log checkpoint, or None if the row adds a file without a successor."""
    add = row.get("add")
    if add is None:
        return row
    path = path_of(add)
    if path in into:
        successor = into[path]
        return None if successor is None else row | {"add": _parsed_gone(_replaced(add, successor))}
    bare = add if exists(path) else _without_bounds(add)
    return row if bare is add else row | {"add": _parsed_gone(bare)}


def _parsed_gone(add: Action) -> Action:
    return add | {name: None for name in _PARSED if name in add}


def _actions(content: bytes) -> list[Action]:
    return [json.loads(line) for line in content.split(b"\n") if line.strip()]


def _text(actions: list[Action], was: bytes) -> bytes:
    """Return the text of a log entry. The text of an unchanged entry stays the same, byte for byte."""
    if actions == _actions(was):
        return was
    return "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in actions).encode()
