"""After an erasure, no version of a table and no entry has erased rows, and everything else stays (K6, ADR 24)."""

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.commit.erasure import NOT_KEPT, forgotten
from checkpointing.failures import CheckpointFailureReason
from checkpointing.handles import FileHandle
from checkpointing.metadata.codec import decode, encode
from checkpointing.metadata.record import CheckpointFailure, ErasedFile, Release, Statistics, TickEnd
from jobs.storage.folder import Folder
from jobs.storage.place import StoragePlace
from jobs.warehouse.log_rewriting import rewrite_log
from spec.machines.judging import expect
from tests.unit.full_entry import Fields, full_entry, handle, plain_entry

REWRITTEN: Final = "rewritten-logs-hold"
"""While a log is rewritten, and after any number of crashes, each version shows each remaining row once.

An erased row is shown once or not at all, and at the end no version shows it."""

GONE: Final = "forgotten-is-gone"
_FILES: Final = 6
_ROWS: Final = 3
"""The number of rows in each file. If a file is chosen for erasure, its first row is erased."""


def rows_of(path: str) -> set[tuple[int, int]]:
    """Return the rows of a file, or of its successor."""
    number = int(path.strip("fs"))
    return {(number, row) for row in range(1 if path.startswith("s") else 0, _ROWS)}


def add(path: str) -> Fields:
    bounds = {"numRecords": _ROWS, "minValues": {"n": f"least of {path}"}, "maxValues": {"n": f"most of {path}"}}
    return {"add": {"path": path, "partitionValues": {}, "size": 1, "dataChange": True, "stats": json.dumps(bounds)}}


@st.composite
def logs(draw: st.DrawFn) -> list[list[Fields]]:
    """Draw the entries of a log: files are added and removed, and may be added again."""
    entries, active = list[list[Fields]](), set[str]()
    for _ in range(draw(st.integers(1, 5))):
        changed = draw(st.sets(st.integers(0, _FILES - 1), max_size=3))
        actions: list[Fields] = [{"commitInfo": {"operation": "WRITE", "tidemark": {"checkpoint": len(entries)}}}]
        for path in (f"f{number}" for number in sorted(changed)):
            if path in active and draw(st.booleans()):
                actions.append(add(path))  # the same file once more, with other properties
            elif path in active:
                actions.append({"remove": {"path": path, "dataChange": True}})
                active.discard(path)
            else:
                actions.append(add(path))
                active.add(path)
        entries.append(actions)
    return entries


def shown(log: Path, version: int) -> Counter[tuple[int, int]]:
    """Return the rows of a table at a version, each as often as a reader by Delta's protocol sees it."""
    active: set[str] = set()
    for at in range(version + 1):
        lines = [json.loads(line) for line in (log / f"{at:020d}.json").read_text().splitlines()]
        removes = {each["remove"]["path"] for each in lines if "remove" in each}
        adds = {each["add"]["path"] for each in lines if "add" in each}
        expect(
            removes.isdisjoint(adds), REWRITTEN, f"version {at} adds and removes one file, which the protocol forbids"
        )
        active = (active - removes) | adds
    return Counter(row for path in active for row in rows_of(path))


class _Quick(Folder):
    """A folder that syncs nothing."""

    def replace(
        self, name: str, content: bytes | memoryview, *, unchanged: str | None = None, durable: bool = True
    ) -> None:
        del durable
        super().replace(name, content, unchanged=unchanged, durable=False)


class _DiedError(Exception):
    """The process has died."""


@given(entries=logs(), erased=st.sets(st.integers(0, _FILES - 1), min_size=1), deaths=st.lists(st.integers(0, 9)))
def test_each_version_keeps_all_other_rows_at_any_moment(entries, erased, deaths):
    into: Mapping[str, Any] = {f"f{number}": FileHandle(f"s{number}", _ROWS - 1, 1, 0) for number in erased}
    with TemporaryDirectory() as name:
        folder = Path(name)
        log = folder / "_delta_log"
        log.mkdir()
        for version, actions in enumerate(entries):
            text = "".join(f"{json.dumps(action)}\n" for action in actions)
            (log / f"{version:020d}.json").write_text(text)
        before = [shown(log, version) for version in range(len(entries))]
        gone = {(number, 0) for number in erased}
        adds = [sum("add" in each for each in actions) for actions in entries]
        for dies_at in (*deaths, None):
            steps = iter(range(100))

            def step(steps: Iterator[int] = steps, dies_at: int | None = dies_at) -> None:
                look(log, before, gone)
                if next(steps) == dies_at:
                    raise _DiedError

            with contextlib.suppress(_DiedError):
                rewrite_log(StoragePlace(_Quick(folder), "."), into, lambda path: path != "f0", step)
            look(log, before, gone)
        for version, was in enumerate(before):
            expect(shown(log, version) == Counter(was.keys() - gone), REWRITTEN, f"version {version}")
            text = (log / f"{version:020d}.json").read_text()
            expect(not any(f'"{path}"' in text for path in into), REWRITTEN, f"version {version} names an erased file")
            expect(text.count('"add"') == adds[version], REWRITTEN, f"version {version} has another number of adds")
            expect("most of f0" not in text, REWRITTEN, f"version {version} has the bounds of a file that is gone")


def look(log: Path, before: list[Counter[tuple[int, int]]], gone: set[tuple[int, int]]) -> None:
    for version, was in enumerate(before):
        found = shown(log, version)
        expect(
            all(found[row] == 1 for row in was if row not in gone), REWRITTEN, f"version {version} lost or doubled rows"
        )
        expect(
            all(found[row] <= 1 for row in gone) and found.keys() <= was.keys(),
            REWRITTEN,
            f"version {version} shows more",
        )


def handles_in(document: Any) -> Iterator[Fields]:
    """Yield each file in a JSON document. A file is recognised by the fields that every file has."""
    if isinstance(document, dict):
        if {"path", "crc32"} <= document.keys():
            yield document
        for each in document.values():
            yield from handles_in(each)
    elif isinstance(document, list):
        for each in document:
            yield from handles_in(each)


@given(drawn=st.sets(st.integers(0, 40), max_size=12), keeps=st.booleans())
def test_an_entry_names_successors_and_says_nothing_else_anew(drawn, keeps):
    """Without a successor, the file alone leaves the entry."""
    row = decode(json.dumps(full_entry()))
    document = json.loads(encode(row, writer="spec"))["row"]
    paths = sorted({each["path"] for each in handles_in(document)})
    chosen = [paths[number % len(paths)] for number in sorted(drawn)]
    successors = {path: handle(f"{path}-again", rows=1) for path in chosen}
    erased = tuple(
        ErasedFile(table="silver/rows", path=path, into=FileHandle(**successors[path]) if keeps else None)
        for path in chosen
    )
    found = json.loads(encode(forgotten(row, erased), writer="spec"))["row"]
    statistics = document["statistics"]
    expect(found["statistics"]["verdicts"] == [], GONE, "samples of values in a verdict")
    expect("too few" not in json.dumps(found), GONE, "a message with samples of values")
    for told in (document, found):
        told["statistics"] = {name: statistics[name] for name in ("rows", "triggered_ms")}
    for each in document["tables"]:
        each["compactions"] = [_compacted(told, successors, keeps=keeps) for told in each["compactions"]]
        each["compactions"] = [told for told in each["compactions"] if told is not None]
    wanted = _replaced(document, successors if keeps else dict.fromkeys(chosen))
    expect(found == wanted, GONE, f"{found}\nis not\n{wanted}")
    left = {each["path"] for each in handles_in(found)}
    expect(left.isdisjoint(chosen), GONE, "an erased file")


@pytest.mark.parametrize(("message", "left"), [("too few: 7, 8", NOT_KEPT), ("", "")])
def test_messages_of_failures_go_because_they_may_show_values(message, left):
    """In an entry and in the release of a failed tick, a text says that a message was removed."""
    reason = CheckpointFailureReason.QUALITY
    failed = (CheckpointFailure(checkpoint=1, reason=reason, message=message, at_ms=1),)
    ended = TickEnd(outcome="failed", reason=reason, message=message, failed=failed)
    entry = plain_entry(statistics=Statistics(triggered_ms=1, committed_ms=1, rows=1, failed=failed))
    release = forgotten(Release(generation=1, next_id=2, at_ms=1, nonce="r", ended=ended), ()).ended
    told = (release, *release.failed, *forgotten(entry, ()).statistics.failed)
    assert [left] * 3 == [each.message for each in told]


def _compacted(told: Fields, successors: Mapping[str, Fields], *, keeps: bool) -> Fields | None:
    if not keeps and told["into"]["path"] in successors:
        return None
    of = [successors[path]["path"] if path in successors else path for path in told["of"]]
    return told | {"of": of if keeps else [path for path in told["of"] if path not in successors]}


_OUT: Final = object()


def _replaced(document: Any, successors: Mapping[str, Fields | None]) -> Any:
    """Return the document with the successors of files. A file without a successor is removed with its object."""
    if isinstance(document, dict):
        if {"path", "crc32"} <= document.keys() and document["path"] in successors:
            new = successors[document["path"]]
            return _OUT if new is None else new
        made = {name: _replaced(each, successors) for name, each in document.items()}
        if "into" in made and "table" in made:
            return {name: None if each is _OUT else each for name, each in made.items()}
        return _OUT if _OUT in made.values() else made
    if isinstance(document, list):
        return [each for each in (_replaced(each, successors) for each in document) if each is not _OUT]
    return document
