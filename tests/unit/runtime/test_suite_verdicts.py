"""What the suites of a vertex say together: rejected, not judged, or accepted (J3)."""

import json

import pytest

from checkpointing.messages import JudgementFailed, JudgeSuites, SuitesJudged
from jobs.quality.expectation import Expectation, Suite
from jobs.quality.judge import JudgementCancelledError, never
from jobs.quality.verdict import ExpectationVerdict, Verdict
from jobs.tick.effects import judge_suites

NOT_NULL = Expectation("expect_column_values_to_not_be_null", {"column": "n"})
TABLES = ("bronze/a", "bronze/b")
SUITES = {table: Suite(f"suite_{table[-1]}", table, (NOT_NULL,)) for table in TABLES}
EFFECT = JudgeSuites("v", 3, tuple((table, ()) for table in TABLES))


class Answers:
    """A judge that answers for each table what it was told to: a verdict, or an error."""

    def __init__(self, **by_suite):
        self._by_suite = by_suite

    def judge(self, suite, files, is_cancelled):
        answer = self._by_suite[suite.name]
        if isinstance(answer, Exception):
            raise answer
        return Verdict(suite=suite.name, table=suite.table, passed=answer.success, rows=3, expectations=(answer,))


def found(**changes):
    return ExpectationVerdict(type=NOT_NULL.type, kwargs=dict(NOT_NULL.kwargs), **{"success": True, **changes})


def judged(a, b):
    return judge_suites(Answers(suite_a=a, suite_b=b), SUITES, EFFECT, never)


MET = found()
REJECTED = found(success=False, unexpected_count=2, sample=("null",))
UNKNOWN = found(success=False, error='the column "n" does not exist')
DAMAGED = OSError("Parquet magic bytes not found")


@pytest.mark.parametrize(
    ("a", "b", "suite", "cause"),
    [
        (MET, DAMAGED, "suite suite_b of table bronze/b", "OSError: Parquet magic bytes not found"),
        (DAMAGED, MET, "suite suite_a of table bronze/a", "OSError: Parquet magic bytes not found"),
        (UNKNOWN, MET, "suite suite_a of table bronze/a", 'could not be judged: the column "n" does not exist'),
    ],
)
def test_what_could_not_be_judged_is_named_and_rejects_nothing(a, b, suite, cause):
    """The sentence names suite, table and cause; the verdicts that there are stay readable."""
    answer = judged(a, b)
    assert isinstance(answer, JudgementFailed)
    assert ("v", 3) == (answer.vertex, answer.checkpoint)
    assert f"{suite} could not be judged, so nothing is published" in answer.error
    assert cause in answer.error
    assert {"suite_a", "suite_b"} - {suite.split()[1]} <= {each["suite"] for each in json.loads(answer.report)}


@pytest.mark.parametrize(("a", "b"), [(REJECTED, DAMAGED), (DAMAGED, REJECTED), (UNKNOWN, REJECTED)])
def test_a_rejection_counts_whatever_happened_to_the_others(a, b):
    """Bad rows fail the job, even if another suite could not be judged."""
    answer = judged(a, b)
    assert isinstance(answer, SuitesJudged)
    assert not answer.passed
    assert "rejects 3 rows" in answer.message
    assert "could not be judged" not in answer.message


def test_all_that_accept_let_the_rows_in():
    """There is nothing to say then."""
    answer = judged(MET, MET)
    assert (True, "") == (answer.passed, answer.message)


def test_a_cancelled_judgement_has_no_answer():
    """It is no failure of the judge."""
    with pytest.raises(JudgementCancelledError):
        judged(MET, JudgementCancelledError())


def test_a_disk_that_cannot_be_read_is_explained():
    """The sentence says what the user can repair."""
    answer = judged(MET, PermissionError(13, "Permission denied"))
    assert "the system forbids this user" in answer.error
