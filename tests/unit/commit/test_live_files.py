"""The files of an upsert or state table at a cut: each once, and only if they are others than at the cut before."""

from hypothesis import given
from hypothesis import strategies as st

from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.commit.live_files import are_shown, changed_files, each_once
from checkpointing.graph import Table, TableMode
from checkpointing.metadata.record import VertexRecord
from tests.unit.commit.large_rows import STATE, SUMS, keyed

_STATE = Table(STATE, TableMode.STATE)
_FILES = [keyed(number) for number in range(6)]
_lists = st.lists(st.lists(st.sampled_from(_FILES), max_size=3, unique=True).map(tuple), max_size=3)


def _vertex(lists: list[tuple]) -> VertexRecord:
    subtasks = tuple(SubtaskSnapshot(state=files) for files in lists)
    return VertexRecord(vertex=SUMS, micro_batch=1, subtasks=subtasks)


def _paths(lists: list[tuple]) -> set[str]:
    return {each.file.path for files in lists for each in files}


@given(now=_lists, before=_lists, kept=st.sets(st.integers(0, 2)))
def test_a_table_has_changed_files_exactly_if_it_has_others_than_before(
    now: list[tuple], before: list[tuple], kept: set[int]
) -> None:
    """Files may move to another subtask, and several subtasks may share one. Some lists stay the same objects.

    It makes no difference whether the entry before names the files of its cut.
    """
    now = [before[at] if at in kept and at < len(before) else files for at, files in enumerate(now)]
    for shown in ((), each_once(before)):
        changed = changed_files(_STATE, _vertex(now), _vertex(before), shown)
        assert (changed is None) is (_paths(now) == _paths(before))
        if changed is not None:
            assert each_once(now) == changed


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
    """Lists that share a file show it once."""
    assert are_shown(each_once(lists), lists)
    assert are_shown(each_once(others), lists) is (each_once(others) == each_once(lists))
