"""Plants bugs in rollbacks: the line that a rollback leaves, the line that it begins, and what it brings back (K2)."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from checkpointing.commit import fencing, line, recovery
from checkpointing.commit.fencing import HolderObserved, MayClaim, Refused
from checkpointing.commit.line import Turn
from checkpointing.graph import TableMode
from checkpointing.identifiers import CheckpointId
from checkpointing.messages import Publication
from checkpointing.metadata.record import CheckpointRecord, Row, RowKind
from spec.machines.turning import WAY_BACK
from spec.mutants.judges import LINES, ROLLBACKS
from spec.mutants.parents import build_on_the_row_before
from spec.mutants.planting import Patch, mutant

# ------------------------------------------------------------------ the line of entries


@mutant("line", ROLLBACKS)
def the_rows_that_a_rollback_leaves_behind_stay(patch: Patch) -> None:
    real = line.turn_back

    def turn_back(rows: Iterable[CheckpointRecord], to: CheckpointRecord) -> Turn:
        return replace(real(rows, to), dropped=())

    patch.function(line, "turn_back", turn_back)


@mutant("line", ROLLBACKS)
def a_rollback_drops_savepoints_too(patch: Patch) -> None:
    real = line.turn_back

    def turn_back(rows: Iterable[CheckpointRecord], to: CheckpointRecord) -> Turn:
        turn = real(rows, to)
        return replace(turn, dropped=(*turn.dropped, *turn.abandoned), abandoned=())

    patch.function(line, "turn_back", turn_back)


@mutant(WAY_BACK, LINES)
def a_rollback_drops_the_checkpoint_that_a_savepoint_stands_on(patch: Patch) -> None:
    real = line.turn_back

    def turn_back(rows: Iterable[CheckpointRecord], to: CheckpointRecord) -> Turn:
        known = tuple(rows)
        turn, own = real(known, to), {row.checkpoint for row in known if not row.is_savepoint}
        left = tuple(each for each in turn.abandoned if each not in own)
        return replace(turn, dropped=(*turn.dropped, *own.intersection(turn.abandoned)), abandoned=left)

    patch.function(line, "turn_back", turn_back)


@mutant(WAY_BACK, LINES)
def an_abandoned_checkpoint_outlives_its_savepoint(patch: Patch) -> None:
    patch.function(line, "disposed_with", lambda gone, _: (gone.checkpoint,))


@mutant("line", ROLLBACKS)
def a_rollback_drops_only_the_newest_entry(patch: Patch) -> None:
    real = line.turn_back

    def turn_back(rows: Iterable[CheckpointRecord], to: CheckpointRecord) -> Turn:
        turn = real(rows, to)
        return replace(turn, dropped=turn.dropped[-1:])

    patch.function(line, "turn_back", turn_back)


@mutant("line", ROLLBACKS)
def a_tick_begins_from_the_target_of_a_rollback(patch: Patch) -> None:
    def newest_checkpoint(rows: tuple[Row, ...]) -> CheckpointRecord | None:
        taken = [row for row in rows if isinstance(row, CheckpointRecord) and row.kind is RowKind.CHECKPOINT]
        return max(taken, key=lambda record: (record.generation, record.checkpoint), default=None)

    patch.function(fencing, "newest_checkpoint", newest_checkpoint)


@mutant("parent-line", ROLLBACKS)
def the_entry_after_a_rollback_builds_on_the_target(patch: Patch) -> None:
    build_on_the_row_before(patch, RowKind.ROLLBACK)


@mutant("line", ROLLBACKS)
def ids_go_on_where_the_job_went_back_to(patch: Patch) -> None:
    real = fencing.decide_claim

    def decide_claim(
        rows: tuple[Row, ...], seen: HolderObserved, now_ms: int, *, take_over: bool
    ) -> MayClaim | Refused:
        decision = real(rows, seen, now_ms, take_over=take_over)
        newest = fencing.newest_checkpoint(rows)
        if isinstance(decision, Refused) or newest is None or newest.kind is not RowKind.ROLLBACK:
            return decision
        return replace(decision, first_id=CheckpointId(newest.parent + 1))

    patch.function(fencing, "decide_claim", decide_claim)


# ------------------------------------------------------------------ marks


def _turn_otherwise(patch: Patch, otherwise: Callable[[Turn, CheckpointRecord], Turn]) -> None:
    real = line.turn_back

    def turn_back(rows: Iterable[CheckpointRecord], to: CheckpointRecord) -> Turn:
        return otherwise(real(rows, to), to)

    patch.function(line, "turn_back", turn_back)


@mutant("marks", ROLLBACKS)
def only_one_abandoned_savepoint_is_marked(patch: Patch) -> None:
    _turn_otherwise(patch, lambda turn, _: replace(turn, abandoned=turn.abandoned[-1:]))


@mutant("marks", ROLLBACKS)
def a_rollback_to_an_abandoned_savepoint_takes_up_that_one_alone(patch: Patch) -> None:
    _turn_otherwise(patch, lambda turn, to: replace(turn, adopted=turn.adopted and (to.checkpoint,)))


@mutant("marks", ROLLBACKS)
def a_plain_savepoint_stays_abandoned_though_its_cut_is_taken_up(patch: Patch) -> None:
    real = line.turn_back

    def turn_back(rows: Iterable[CheckpointRecord], to: CheckpointRecord) -> Turn:
        known = tuple(rows)
        plain = {row.checkpoint for row in known if not row.commits and row != to}
        turn = real(known, to)
        return replace(turn, adopted=tuple(each for each in turn.adopted if each not in plain))

    patch.function(line, "turn_back", turn_back)


@mutant("marks", ROLLBACKS)
def a_rollback_to_an_abandoned_savepoint_leaves_its_mark(patch: Patch) -> None:
    patch.put(Turn, "marks", property(lambda turn: dict.fromkeys(turn.abandoned, True)))


# ------------------------------------------------------------------ the way back


@mutant(WAY_BACK, LINES)
def a_rollback_drops_the_checkpoint_to_which_it_goes_back(patch: Patch) -> None:
    def otherwise(turn: Turn, to: CheckpointRecord) -> Turn:
        return turn if to.is_savepoint else replace(turn, dropped=(to.checkpoint, *turn.dropped))

    _turn_otherwise(patch, otherwise)


@mutant(WAY_BACK, LINES)
def a_plain_savepoint_goes_with_later_cuts(patch: Patch) -> None:
    patch.put(line, "_stands_on", lambda row: row.checkpoint)


@mutant(WAY_BACK, LINES)
def an_abandoned_line_is_followed_for_one_entry_only(patch: Patch) -> None:
    real = line._off_the_line

    def off_the_line(
        known: Mapping[CheckpointId, CheckpointRecord], to: CheckpointRecord
    ) -> Iterator[CheckpointRecord]:
        yield from tuple(real(known, to))[:1]

    patch.put(line, "_off_the_line", off_the_line)


@mutant(WAY_BACK, LINES)
def only_savepoints_of_stops_are_abandoned(patch: Patch) -> None:
    real = line.turn_back

    def turn_back(rows: Iterable[CheckpointRecord], to: CheckpointRecord) -> Turn:
        known = tuple(rows)
        plain = {row.checkpoint for row in known if not row.commits}
        turn = real(known, to)
        return replace(turn, abandoned=tuple(each for each in turn.abandoned if each not in plain))

    patch.function(line, "turn_back", turn_back)


# ------------------------------------------------------------------ files that come back


Otherwise = Callable[[Publication], tuple[Publication, ...]]


def _publish_otherwise(patch: Patch, otherwise: Otherwise) -> None:
    real = recovery.publications

    def publications(record: CheckpointRecord) -> tuple[Publication, ...]:
        due = real(record)
        return due if record.kind is not RowKind.ROLLBACK else tuple(each for one in due for each in otherwise(one))

    patch.function(recovery, "publications", publications)


@mutant("gone-back", ROLLBACKS)
def a_rollback_takes_nothing_out_of_an_append_table(patch: Patch) -> None:
    _publish_otherwise(patch, lambda publication: (replace(publication, removes=()),))


@mutant("gone-back", ROLLBACKS)
def a_rollback_to_another_line_brings_nothing_back(patch: Patch) -> None:
    _publish_otherwise(patch, lambda publication: (replace(publication, adds=()),))


@mutant("published-completely", ROLLBACKS)
def a_rollback_leaves_upsert_tables_as_they_are(patch: Patch) -> None:
    _publish_otherwise(patch, lambda publication: () if publication.mode is TableMode.UPSERT else (publication,))


@mutant("gone-back", ROLLBACKS)
def a_rollback_brings_back_the_newest_file_of_a_state_table_only(patch: Patch) -> None:
    def newest(publication: Publication) -> tuple[Publication, ...]:
        only = publication.files[-1:] if publication.mode is TableMode.STATE else publication.files
        return (replace(publication, files=only),)

    _publish_otherwise(patch, newest)


def _marks_otherwise(
    patch: Patch, changed: Callable[[Turn, Mapping[CheckpointId, CheckpointRecord], CheckpointRecord], Turn]
) -> None:
    """Let a rollback mark other entries. `changed` gets its turn, the existing entries, and the target."""
    real = line.turn_back

    def turn_back(rows: Iterable[CheckpointRecord], to: CheckpointRecord) -> Turn:
        known = {row.checkpoint: row for row in rows}
        return changed(real(known.values(), to), known, to)

    patch.function(line, "turn_back", turn_back)


@mutant(WAY_BACK, LINES)
def a_savepoint_beside_the_target_stays_abandoned(patch: Patch) -> None:
    _marks_otherwise(
        patch,
        lambda turn, known, to: replace(
            turn, adopted=tuple(each for each in turn.adopted if each == to.checkpoint or known[each].commits)
        ),
    )


@mutant(WAY_BACK, LINES)
def a_rollback_to_an_abandoned_savepoint_adopts_all_older_ones(patch: Patch) -> None:
    def changed(turn: Turn, known: Mapping[CheckpointId, CheckpointRecord], to: CheckpointRecord) -> Turn:
        older = {each for each, row in known.items() if row.abandoned and to.abandoned and each < to.checkpoint}
        return replace(turn, adopted=tuple(sorted({*turn.adopted, *older})))

    _marks_otherwise(patch, changed)


@mutant(WAY_BACK, LINES)
def plain_savepoints_of_the_line_that_is_left_are_not_marked(patch: Patch) -> None:
    _marks_otherwise(
        patch,
        lambda turn, known, to: replace(turn, abandoned=tuple(each for each in turn.abandoned if known[each].commits)),
    )


@mutant(WAY_BACK, LINES)
def savepoints_below_a_missing_ancestor_count_as_left_behind(patch: Patch) -> None:
    def changed(turn: Turn, known: Mapping[CheckpointId, CheckpointRecord], to: CheckpointRecord) -> Turn:
        at = to
        while at.parent in known and (at.abandoned or not at.commits):
            at = known[at.parent]
        if at.parent in known or not to.abandoned:
            return turn
        below = {each for each, row in known.items() if row.pinned and not row.abandoned and each < at.parent}
        return replace(turn, abandoned=tuple(sorted({*turn.abandoned, *below})))

    _marks_otherwise(patch, changed)
