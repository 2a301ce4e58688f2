"""Judges all suites of a vertex's tables, and says which could not be judged."""

from collections.abc import Callable, Iterable, Mapping

from checkpointing.identifiers import TableName
from checkpointing.messages import JudgementFailed, JudgeSuites, SuitesJudged
from checkpointing.metadata.record import CheckpointRecord, RowKind
from jobs.accidents import explained
from jobs.quality.expectation import Suite
from jobs.quality.judge import Judge, JudgementCancelledError
from jobs.quality.verdict import NO_ROWS, VERDICTS, Verdict, not_judged, not_looked, verdicts_in


def judge_suites(
    judge: Judge, suites: Mapping[TableName, Suite], effect: JudgeSuites, is_cancelled: Callable[[], bool]
) -> SuitesJudged | JudgementFailed:
    """Judge every table of the vertex; the report is a JSON array of the verdicts.

    A suite that rejects rows counts, even if other suites could not be judged. Raises JudgementCancelledError soon
    after `is_cancelled` returns True.
    """
    verdicts: list[Verdict] = []
    failures: list[str] = []
    for table, files in effect.files:
        if table in suites:
            try:
                verdicts.append(judge.judge(suites[table], files, is_cancelled))
            except JudgementCancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - an unreadable file, or Great Expectations itself
                cause = explained(f"{type(error).__name__}: {error}")
                failures.append(not_judged(suites[table].name, table, cause))
    report = VERDICTS.dump_json(tuple(verdicts)).decode()
    rejections = [verdict.report() for verdict in verdicts if verdict.rejects]
    if rejections:
        return SuitesJudged(
            effect.vertex, effect.checkpoint, passed=False, report=report, message="\n".join(rejections)
        )
    failures += [verdict.failure() for verdict in verdicts if not verdict.passed]
    if failures:
        return JudgementFailed(effect.vertex, effect.checkpoint, ". ".join(failures), report)
    return SuitesJudged(effect.vertex, effect.checkpoint, passed=True, report=report)


def verdicts_of(record: CheckpointRecord, suites: Iterable[Suite] = ()) -> tuple[Verdict, ...]:
    """Return the verdicts that a checkpoint holds, and for every other suite one that says why it was not judged.

    Raises ValidationError for a report of another format.
    """
    kept = verdicts_in(record.statistics.verdicts)
    told = {verdict.table for verdict in kept}
    is_of_tick = record.kind in (RowKind.CHECKPOINT, RowKind.SAVEPOINT, RowKind.HELD)
    why = NO_ROWS if is_of_tick else f"a {record.kind.value} reads no rows"
    return (*kept, *(not_looked(suite, why) for suite in suites if suite.table not in told))
