"""Tests restores. A cut is refused exactly if the pipeline has no place for some part of it (G2, D3, B4).

A step restores the cut into a changed pipeline, spreads its files over subtasks, or checks which splits have ended. The
references follow the guides.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.graph import JobGraph, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import Generation, SplitId, SubtaskId, VertexId
from checkpointing.job.operator_run import LiveFiles
from checkpointing.job.restoring import (
    CutDoesNotFitError,
    channel_now,
    check_fits,
    ended_splits,
    in_flight,
    live_files,
    positions,
)
from checkpointing.metadata.record import VertexRecord
from spec.fitting import KEY_GROUPS, Case, cases, cut, pipeline
from spec.machines.judging import expect

FIT: Final = "cuts-fit"
"""A cut is refused exactly if something in it would get lost. Otherwise each subtask gets its own part of it."""
_CASES: Final = tuple(cases())
_SOURCE: Final = VertexId("orders")
_group = st.integers(0, KEY_GROUPS - 1)
_files = st.lists(st.tuples(_group, _group, st.integers(1, 3), st.sets(st.integers(0, 2), max_size=2)), max_size=6)
_SPLITS: Final = tuple(map(SplitId, ("a1", "a2", "b1", "b2")))


class RestoresMachine(RuleBasedStateMachine):
    """Restores one cut again and again. Keeps nothing in between."""

    runs_short = True

    @rule(case=st.sampled_from(_CASES), allowed=st.booleans())
    def restore(self, case: Case, *, allowed: bool) -> None:
        """Restore the cut into a changed pipeline."""
        why = ""
        try:
            check_fits(case.graph, case.record, case.max_parallelism, allow_non_restored_state=allowed)
        except CutDoesNotFitError as error:
            why = str(error)
        due = case.reason(allowed=allowed)
        fits = due in why if due else not why
        expect(fits, FIT, f"{case.what}, allowed {allowed}: {why or 'it fits'}, due is {due or 'that it fits'}")
        if not why:
            _judge_positions(case.graph)

    @rule(parallelism=st.integers(1, KEY_GROUPS), name=st.sampled_from(["totals", "sums", "newest", "rows"]))
    def spread(self, parallelism: int, name: str) -> None:
        """Spread the files of a vertex over its subtasks: each has those of its key groups, and all broadcast state."""
        record, vertex = cut(), pipeline().vertex(VertexId(name))
        keyed = vertex.kind is VertexKind.KEYED
        vertex = replace(vertex, parallelism=parallelism if keyed else 1)
        live = live_files(vertex, record, KEY_GROUPS)
        expect(len(live) == vertex.parallelism, FIT, f"{name} has {len(live)} subtasks")
        was = next(each for each in record.vertices if each.vertex == name)
        for index, own in enumerate(live):
            groups = {group for group in range(KEY_GROUPS) if group * parallelism // KEY_GROUPS == index}
            state = _paths(snapshot.state for snapshot in was.subtasks) if keyed else {}
            due = {path for path, of in state.items() if groups & of}
            expect({each.file.path for each in own.state} == due, FIT, f"{name} {index} of {parallelism}: {own.state}")
            tables = {each.table: {file.file.path for file in each.files} for each in own.ranges}
            once = len(tables) == len(own.ranges)
            right = once and tables == _ranges(vertex, was, groups)
            expect(right, FIT, f"{name} {index} of {parallelism}: {own.ranges}")

    @rule(files=_files, parallelism=st.integers(1, KEY_GROUPS))
    def take_apart(self, files: list[tuple[int, int, int, set[int]]], parallelism: int) -> None:
        """Some subtasks share files since an earlier restore, and others have written newer ones."""
        made = {
            KeyedFile(
                FileHandle(f"state-{number}", 1, 1, 1),
                KeyedFileKind.DELTA,
                min(one, other),
                max(one, other),
                Version(Generation(generation), number),
            ): owners
            for number, (one, other, generation, owners) in enumerate(files)
        }
        was = tuple(SubtaskSnapshot(state=tuple(each for each, of in made.items() if own in of)) for own in (2, 1, 0))
        entry = VertexRecord(vertex=VertexId("totals"), micro_batch=9, subtasks=was)
        vertex = replace(pipeline().vertex(VertexId("totals")), parallelism=parallelism)
        live = live_files(vertex, cut().model_copy(update={"vertices": (entry,)}), KEY_GROUPS)
        for index, own in enumerate(live):
            groups = {group for group in range(KEY_GROUPS) if group * parallelism // KEY_GROUPS == index}
            of = {
                each: {*range(each.first_key_group, each.last_key_group + 1)} for each, owners in made.items() if owners
            }
            held = [each for each, covers in of.items() if groups & covers]
            due = sorted(held, key=lambda each: (each.version.generation, each.version.micro_batch))
            expect([*own.state] == due, FIT, f"subtask {index} of {parallelism} has {own.state}, due are {due}")

    @rule(writes=st.booleans(), parallelism=st.integers(1, 3))
    def leave(self, *, writes: bool, parallelism: int) -> None:
        """A new vertex begins without files. What a vertex no longer writes is left behind."""
        record, was = cut(), pipeline().vertex(VertexId("totals"))
        new = replace(was, id=VertexId("new"), parallelism=parallelism)
        expect(_bare(live_files(new, record, KEY_GROUPS)) == [0] * parallelism, FIT, "a new vertex has files")
        kept = replace(was, tables=was.tables if writes else was.tables[1:2], parallelism=parallelism)
        found = {entry.table for own in live_files(kept, record, KEY_GROUPS) for entry in own.ranges}
        due = {entry.table for entry in record.vertices[2].subtasks[0].ranges} if writes else set()
        expect(found == due, FIT, f"a vertex that writes {due} has files of {found}")
        newest = pipeline().vertex(VertexId("newest"))
        plain = replace(newest, tables=(*newest.tables, pipeline().vertex(VertexId("rows")).tables[0]))
        (own,) = live_files(plain, record, KEY_GROUPS)
        expect(len(own.ranges) == 1, FIT, f"a vertex with one overwrite table has {own.ranges}")

    @rule(finished=st.lists(st.booleans(), min_size=4, max_size=4), bounded=st.booleans(), parted=st.booleans())
    def end(self, finished: list[bool], *, bounded: bool, parted: bool) -> None:
        """A split that has ended is not read again.

        A split that appears in a part that has ended is not read either.
        """
        later = SplitId("a3")
        parts = ("a", "b") if parted else ()
        source = Vertex(_SOURCE, VertexKind.SOURCE, 5, splits=(*reversed(_SPLITS), later), bounded=bounded, parts=parts)
        subtasks = tuple(SubtaskSnapshot(position="1", finished=each) for each in finished)
        was = VertexRecord(vertex=_SOURCE, micro_batch=0, subtasks=subtasks, splits=_SPLITS)
        found = ended_splits(JobGraph((source,), ()), cut().model_copy(update={"vertices": (was,)}))
        over = dict(zip(_SPLITS, finished, strict=True))
        due = set()
        for index, split in enumerate(source.splits):
            alike = [each for each in over if not parted or each[0] == split[0]]
            has_an_end = bounded or (parted and split[0] == "a")
            if has_an_end and (over.get(split) or all(over[each] for each in alike)):
                due.add(SubtaskId(_SOURCE, index))
        expect(found == due, FIT, f"{over}, bounded {bounded}, parts {parts}: {found} have ended, due are {due}")

    @rule(parallelism=st.integers(1, 3))
    def give_back(self, parallelism: int) -> None:
        """Rows in flight come back on a channel that the new pipeline has."""
        graph = pipeline()
        vertices = tuple(
            replace(each, parallelism=parallelism) if each.id == _SOURCE else each for each in graph.vertices
        )
        (held,) = in_flight(cut())
        channel = channel_now(replace(graph, vertices=vertices), held[0])
        there = channel.edge == held[0].edge and channel.subtask < parallelism
        expect(there and held[1].rows == 1, FIT, f"{held[1]} comes back on {channel}, of {parallelism}")


def _bare(live: list[LiveFiles]) -> list[int]:
    """Return the number of file lists for each subtask."""
    return [len(own.state) + len(own.ranges) for own in live]


def _judge_positions(graph: JobGraph) -> None:
    """Raise unless each split that the cut knows goes on at its position, and each other split begins at its start."""
    known = {"a": "1", "b": "2"}
    for source in graph.sources():
        found = positions(graph, cut())
        due = {SubtaskId(source.id, index): known.get(split) for index, split in enumerate(source.splits)}
        expect(found == due, FIT, f"the splits go on at {found}, due is {due}")


def _paths(lists: Iterable[Iterable[KeyedFile]]) -> dict[str, set[int]]:
    """Return the files of these lists, each with its key groups."""
    return {
        each.file.path: set(range(each.first_key_group, each.last_key_group + 1)) for files in lists for each in files
    }


def _ranges(vertex: Vertex, was: VertexRecord, groups: set[int]) -> dict[str, set[str]]:
    """Return the files of each table that a subtask with these key groups has."""
    found: dict[str, set[str]] = {}
    for entry in (each for snapshot in was.subtasks for each in snapshot.ranges):
        table = next(each for each in vertex.tables if each.name == entry.table)
        whole = table.broadcast or vertex.kind is not VertexKind.KEYED
        files = _paths([entry.files]).items()
        found.setdefault(entry.table, set()).update(path for path, of in files if whole or groups & of)
    return found
