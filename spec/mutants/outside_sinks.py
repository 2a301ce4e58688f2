"""Plants bugs in what outside sinks get, and when."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from checkpointing.commit import outside, recovery, two_phase
from checkpointing.commit.behind import Doubt
from checkpointing.commit.two_phase import CommitEffect, TwoPhaseCommit
from checkpointing.graph import TableMode
from checkpointing.identifiers import TableName
from checkpointing.messages import Publication, PublishTable, TablesChecked
from checkpointing.metadata.record import CheckpointRecord, RowKind
from checkpointing.tick import recovering
from checkpointing.tick.asking import Steps
from checkpointing.tick.claiming import Held
from checkpointing.tick.errand import Terms
from spec.mutants.judges import COMMIT, OUTSIDE, REPAIRS, directed
from spec.mutants.planting import Patch, mutant
from spec.mutants.scenes import an_emptied_sink_gets_all_rows

_Parent = CheckpointRecord | None


def _nothing(record: CheckpointRecord, parent: _Parent) -> tuple[Publication, ...]:
    del record, parent
    return ()


@mutant("outside-follows", OUTSIDE)
def rows_go_outside_before_the_commit_point(patch: Patch) -> None:
    real = TwoPhaseCommit._checked

    def checked(self: TwoPhaseCommit, fact: TablesChecked) -> tuple[CommitEffect, ...]:
        effects = real(self, fact)
        record = self._record
        if record is None:
            return effects
        due = outside.outside_publications(record, self._parent)
        return (*(PublishTable(record.checkpoint, each) for each in due), *effects)

    patch.put(TwoPhaseCommit, "_checked", checked)


@mutant("outside-last", OUTSIDE)
def outside_sinks_are_published_before_the_tables(patch: Patch) -> None:
    real = TwoPhaseCommit._publish

    def publish(self: TwoPhaseCommit, tables: tuple[Publication, ...] = ()) -> tuple[CommitEffect, ...]:
        if tables and self._outside:
            first, self._outside = self._outside, tables
            todo = real(self, first)
            self._outside = tables
            return todo
        return real(self, tables)

    patch.put(TwoPhaseCommit, "_publish", publish)


@mutant("outside-last", OUTSIDE)
def roll_forward_publishes_outside_sinks_first(patch: Patch) -> None:
    real = recovery.publications

    def first(record: CheckpointRecord) -> tuple[Publication, ...]:
        return (*outside.outside_publications(record, None), *real(record))

    patch.put(recovering, "publications", first)
    patch.put(recovering, "outside_publications", _nothing)


@mutant("outside-completely", OUTSIDE)
def a_cut_does_not_wait_for_outside_sinks(patch: Patch) -> None:
    patch.put(two_phase, "outside_publications", _nothing)


@mutant("outside-completely", OUTSIDE)
def roll_forward_forgets_outside_sinks(patch: Patch) -> None:
    patch.put(recovering, "outside_publications", _nothing)


@mutant("outside-follows", OUTSIDE)
def outside_sinks_miss_a_file(patch: Patch) -> None:
    real = outside.outside_publications

    def fewer(record: CheckpointRecord, parent: _Parent) -> tuple[Publication, ...]:
        return tuple(replace(each, adds=each.adds[1:]) for each in real(record, parent))

    patch.function(outside, "outside_publications", fewer)


@mutant("outside-follows", OUTSIDE)
def a_table_without_a_sink_goes_outside_too(patch: Patch) -> None:
    real = outside.outside_publications

    def all_tables(record: CheckpointRecord, parent: _Parent) -> tuple[Publication, ...]:
        return real(record.model_copy(update={"outside": tuple(table.table for table in record.tables)}), parent)

    patch.function(outside, "outside_publications", all_tables)


@mutant("outside-completely", OUTSIDE)
def a_cut_waits_for_the_first_outside_sink_only(patch: Patch) -> None:
    real = outside.outside_publications
    patch.put(two_phase, "outside_publications", lambda record, parent: real(record, parent)[:1])


@mutant("outside-exact", COMMIT)
def roll_forward_leaves_the_rows_of_a_dead_coordinator_inside(patch: Patch) -> None:
    patch.put(recovering, "outside_publications", _nothing)


@mutant("outside-exact", COMMIT)
def a_commit_leaves_its_rows_inside(patch: Patch) -> None:
    patch.put(two_phase, "outside_publications", _nothing)


@mutant("outside-exact", COMMIT)
def a_sink_gets_the_newest_file_of_a_checkpoint_only(patch: Patch) -> None:
    real = outside.outside_publications

    def newest(record: CheckpointRecord, parent: _Parent) -> tuple[Publication, ...]:
        return tuple(replace(each, adds=each.adds[-1:]) for each in real(record, parent))

    patch.function(outside, "outside_publications", newest)


@mutant("repaired", REPAIRS)
def a_lost_cut_is_rebuilt_although_a_sink_may_lack_its_rows(patch: Patch) -> None:
    def given_to_sinks(terms: Terms, held: Held, doubt: Doubt) -> Steps[None]:
        del terms, held, doubt
        yield from ()

    patch.put(recovering, "given_to_sinks", given_to_sinks)


# ------------------------------------------------------------------ sinks of upsert tables


def _upserts(patch: Patch, bent: Callable[[Publication], Publication]) -> None:
    """Bend what the sinks of upsert tables get."""
    real = outside.outside_publications

    def publications(record: CheckpointRecord, parent: _Parent) -> tuple[Publication, ...]:
        found = real(record, parent)
        return tuple(bent(each) if each.mode is TableMode.UPSERT else each for each in found)

    patch.function(outside, "outside_publications", publications)


@mutant("outside-follows", OUTSIDE)
def an_upserting_sink_keeps_what_left_the_table(patch: Patch) -> None:
    _upserts(patch, lambda each: replace(each, files=tuple(dict.fromkeys((*each.before, *each.files)))))


@mutant("outside-follows", OUTSIDE)
def an_upserting_sink_does_not_hear_what_it_had(patch: Patch) -> None:
    _upserts(patch, lambda each: replace(each, before=()))


@mutant("outside-exact", COMMIT)
def an_upserting_sink_hears_of_no_change(patch: Patch) -> None:
    _upserts(patch, lambda each: replace(each, before=each.files))


def _without(patch: Patch, left_out: Callable[[Publication, CheckpointRecord], bool]) -> None:
    """Leave out publications into sinks of upsert tables."""
    real = outside.outside_publications

    def publications(record: CheckpointRecord, parent: _Parent) -> tuple[Publication, ...]:
        found = real(record, parent)
        return tuple(each for each in found if each.mode is TableMode.APPEND or not left_out(each, record))

    patch.function(outside, "outside_publications", publications)


@mutant("outside-exact", COMMIT)
def a_table_that_became_empty_stays_full_outside(patch: Patch) -> None:
    _without(patch, lambda each, _: not each.files)


@mutant("outside-completely", OUTSIDE)
def an_upserting_sink_misses_what_leaves_its_table_as_it_is(patch: Patch) -> None:
    _without(patch, lambda each, record: each.table not in {table.table for table in record.tables})


@mutant("outside-completely", OUTSIDE)
def a_rollback_forgets_the_sinks_of_upsert_tables(patch: Patch) -> None:
    _without(patch, lambda _, record: record.kind is RowKind.ROLLBACK)


def _sinks_after(
    patch: Patch, bent: Callable[[CheckpointRecord, tuple[TableName, ...]], tuple[TableName, ...]]
) -> None:
    real = outside.sinks_after

    def sinks_after(
        rows: Iterable[CheckpointRecord], target: CheckpointRecord, *, leave_outside: bool
    ) -> tuple[TableName, ...]:
        return bent(target, real(tuple(rows), target, leave_outside=leave_outside))

    patch.function(outside, "sinks_after", sinks_after)


@mutant("outside-follows", OUTSIDE)
def a_rollback_has_the_sinks_of_its_target(patch: Patch) -> None:
    _sinks_after(patch, lambda target, _: target.outside)


@mutant("outside-follows", OUTSIDE)
def a_rollback_gives_every_sink_up(patch: Patch) -> None:
    _sinks_after(patch, lambda _, __: ())


@mutant("outside-follows", OUTSIDE)
def a_rollback_takes_sinks_along_that_are_to_stay(patch: Patch) -> None:
    real = outside.sinks_after

    def sinks_after(
        rows: Iterable[CheckpointRecord], target: CheckpointRecord, *, leave_outside: bool
    ) -> tuple[TableName, ...]:
        return real(rows, target, leave_outside=False)

    patch.function(outside, "sinks_after", sinks_after)


@mutant("outside-follows", directed(an_emptied_sink_gets_all_rows, "outside-follows"))
def a_sink_is_thought_to_have_a_table_that_was_renamed_since_a_rollback_emptied_it(patch: Patch) -> None:
    patch.function(outside, "_shown_outside", outside._files_of)
