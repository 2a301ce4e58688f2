"""From a request to judge to its answer: all suites of a vertex's tables, and what a judge's failure means."""

from collections.abc import Callable, Mapping
from typing import Final

from pydantic import TypeAdapter

from checkpointing.identifiers import TableName
from checkpointing.messages import JudgeSuites, SuitesJudged
from checkpointing.metadata.record import CheckpointRecord
from jobs.quality.expectation import Suite
from jobs.quality.judge import Judge
from jobs.quality.verdict import Verdict

_VERDICTS: Final = TypeAdapter(tuple[Verdict, ...])


def judge_suites(
    judge: Judge, suites: Mapping[TableName, Suite], effect: JudgeSuites, is_cancelled: Callable[[], bool]
) -> SuitesJudged:
    """Judge every table of the vertex; the report is a JSON array of verdicts.

    Raises what the judge raises: JudgementCancelledError as soon as it notices that nobody waits any more.
    """
    judged = ((table, files) for table, files in effect.files if table in suites)
    verdicts = tuple(judge.judge(suites[table], files, is_cancelled) for table, files in judged)
    return SuitesJudged(
        vertex=effect.vertex,
        checkpoint=effect.checkpoint,
        passed=all(verdict.passed for verdict in verdicts),
        report=_VERDICTS.dump_json(verdicts).decode(),
        message="\n".join(verdict.report() for verdict in verdicts if not verdict.passed),
    )


def not_judged(effect: JudgeSuites, error: Exception) -> SuitesJudged:
    """Answer that the judge itself failed: what was not judged is not let through."""
    tables = ", ".join(table for table, _ in effect.files)
    message = f"the suites of {tables} could not be judged ({type(error).__name__}: {error}); nothing was published"
    return SuitesJudged(effect.vertex, effect.checkpoint, passed=False, report="[]", message=message)


def verdicts_of(record: CheckpointRecord) -> tuple[Verdict, ...]:
    """Return the verdicts kept with a checkpoint. Raises ValidationError for a report of another format."""
    return tuple(verdict for report in record.statistics.verdicts for verdict in _VERDICTS.validate_json(report))
