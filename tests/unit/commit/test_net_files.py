"""An entry lists the changes of each table.

A publication from these changes has the same result as one without them.
"""

from hypothesis import given
from hypothesis import strategies as st

from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.commit.live_files import are_shown, changed_files, each_once
from checkpointing.commit.net_files import with_changes
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.metadata.record import VertexRecord
from tests.unit.commit.large_rows import STATE, SUMS, TOTALS, keyed, large_record, numbered

_TABLES = (Table(STATE, TableMode.STATE), Table(TOTALS, TableMode.UPSERT))
_GRAPH = JobGraph((Vertex(SUMS, VertexKind.KEYED, 3, _TABLES),), ())
_PARENT_VERSION = 2
"""The version of each table at the parent's cut.

`large_record` records it in the entry that it makes with this number.
"""


def _said(now, before, **parent):
    then = _once(large_record(before, before, _PARENT_VERSION - 1)).model_copy(update=parent)
    record = _once(large_record(now, now, _PARENT_VERSION))
    return {each.table: each for each in with_changes(_GRAPH, record, then, ())}


def _once(record):
    tables = [each.model_copy(update={"files": tuple(dict.fromkeys(each.files))}) for each in record.tables]
    return record.model_copy(update={"tables": tuple(tables)})


def test_nobody_says_the_changes_of_the_first_checkpoint_or_of_a_table_that_the_parent_did_not_publish():
    """With such a parent, it is not known whether each file is in only one list."""
    record = large_record(numbered(3, 2), numbered(3, 2), _PARENT_VERSION)
    alone = with_changes(_GRAPH, record, None, ())
    assert [None, None] == [each.changes for each in alone]
    unpublished = _said(numbered(3, 2), numbered(3, 2), tables=())
    assert [None, None] == [each.changes for each in unpublished.values()]


def test_nobody_says_the_changes_of_a_renamed_table():
    """The log under the new name shows nothing of the parent's cut."""
    then = large_record(numbered(3, 2), numbered(3, 2), 1)
    record = large_record(numbered(3, 2), numbered(3, 2), _PARENT_VERSION)
    said = {each.table: each for each in with_changes(_GRAPH, record, then, {TOTALS})}
    assert said[TOTALS].changes is None
    assert said[STATE].changes is not None


# ------------------------------------------------------------------
# The files of an upsert or state table at a cut: each file once, and only if they differ from the cut before.


_STATE = Table(STATE, TableMode.STATE)
_FILES = [keyed(number) for number in range(6)]
_lists = st.lists(st.lists(st.sampled_from(_FILES), max_size=3, unique=True).map(tuple), max_size=3)


def _vertex(lists: list[tuple]) -> VertexRecord:
    subtasks = tuple(SubtaskSnapshot(state=files) for files in lists)
    return VertexRecord(vertex=SUMS, micro_batch=1, subtasks=subtasks)


@given(owners=st.lists(st.integers(0, 3), min_size=12, max_size=12), kept=st.sets(st.integers(0, 2)))
def test_files_that_lists_did_not_share_are_found_by_the_changed_lists_alone(owners: list[int], kept: set[int]) -> None:
    """Files come, go, stay and move to another list. The result is the same as without the files of before."""
    before = [tuple(each for each, owner in zip(_FILES, owners, strict=False) if owner == at) for at in range(3)]
    after = [tuple(each for each, owner in zip(_FILES, owners[6:], strict=True) if owner == at) for at in range(3)]
    stay = {each for at in kept for each in before[at]}
    now = [before[at] if at in kept else tuple(each for each in after[at] if each not in stay) for at in range(3)]
    record, then = _vertex(now), _vertex(before)
    assert changed_files(_STATE, record, then) == changed_files(_STATE, record, then, each_once(before))


@given(lists=_lists, others=_lists)
def test_files_are_shown_if_they_are_those_of_the_lists_each_once(lists: list[tuple], others: list[tuple]) -> None:
    assert are_shown(each_once(lists), lists)
    assert are_shown(each_once(others), lists) is (each_once(others) == each_once(lists))
