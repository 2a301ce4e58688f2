"""The verdicts of a judge, as a checkpoint stores them and people see them: pydantic, JSON, no pickle."""

from collections.abc import Iterable
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter

from jobs.quality.expectation import Expectation, Suite


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ExpectationVerdict(_Kept):
    """One expectation's verdict. Values are written for a reader. `files` are the files with the unexpected rows."""

    type: str
    kwargs: dict[str, str | int | float | bool | list[str | int | float | bool] | None]
    success: bool
    observed: str | None = None
    unexpected_count: int = 0
    unexpected_percent: float = 0.0
    """The unexpected rows in percent of the rows that the expectation looks at."""
    sample: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    error: str | None = None
    """Why the expectation could not be judged. Then it is not met, but rejects no rows."""
    unjudged: str | None = None
    """Why the expectation looked at no value, although nothing went wrong. Then it accepts the rows."""

    @classmethod
    def unlooked(cls, expectation: Expectation, why: str) -> "ExpectationVerdict":
        """Return the verdict of an expectation that looked at nothing."""
        return cls(type=expectation.type, kwargs=expectation.plain_kwargs(), success=True, unjudged=why)

    def __str__(self) -> str:
        """Return the verdict as a line of the report."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.kwargs.items())
        return f"{self.type}({arguments}): {self._found()}"

    def _found(self) -> str:
        if self.unjudged is not None:
            return f"not judged: {self.unjudged}"
        if self.success and self.unexpected_count:
            return f"met, as mostly={self.kwargs.get('mostly')} allows: {self._unexpected()}"
        if self.success:
            return "met"
        if self.error is not None:
            return f"could not be judged: {self.error}"
        return self._unexpected() if self.unexpected_count else f"observed {self.observed}"

    def _unexpected(self) -> str:
        among = f", among them {', '.join(self.sample)}" if self.sample else ""
        return f"{_rows(self.unexpected_count)} ({self.unexpected_percent:.3g} %) not as expected{among}"


class Verdict(_Kept):
    """A suite's verdict on the rows staged for one table since the last completed checkpoint."""

    format: Literal[1] = 1
    suite: str
    table: str
    passed: bool
    rows: int
    expectations: tuple[ExpectationVerdict, ...]

    @property
    def rejects(self) -> bool:
        """Whether some expectation was judged and not met. An expectation that could not be judged rejects no rows."""
        return any(not each.success and each.error is None for each in self.expectations)

    @property
    def unjudged(self) -> str | None:
        """Why no expectation of the suite looked at a value, or None if one did.

        In older entries, such a verdict has no expectations.
        """
        whys = [each.unjudged for each in self.expectations]
        return NO_ROWS if not whys else whys[0] if None not in whys else None

    def failure(self) -> str:
        """Return which expectation could not be judged, and why."""
        first = next(each for each in self.expectations if each.error is not None)
        return not_judged(self.suite, self.table, str(first))

    def report(self) -> str:
        """Return the verdict as a user reads it: what failed, on which values and files, and what can be done."""
        if self.passed:
            return self._met()
        failed = [each for each in self.expectations if not each.success]
        count = f"{len(failed)} of {len(self.expectations)} expectations are not met:"
        what = f"{_rows(self.rows)} staged for" if self.rows else "the checkpoint, because no rows came to"
        lines = [f"suite {self.suite} rejects {what} table {self.table}: {count}"]
        for each in failed:
            lines.append(f"  {each}")
            lines.extend(f"    in {path}" for path in each.files[:_FILES_SHOWN])
            if len(each.files) > _FILES_SHOWN:
                lines.append(f"    and {len(each.files) - _FILES_SHOWN} more files")
        lines.append(_WAYS_OUT)
        return "\n".join(lines)

    def _met(self) -> str:
        name = f"suite {self.suite} of table {self.table}"
        if self.unjudged is not None:
            return f"{name}: not judged: {self.unjudged}"
        told = [each for each in self.expectations if each.unjudged is not None or each.unexpected_count]
        return "\n".join([f"{name}: met by {_rows(self.rows)}", *(f"  {each}" for each in told)])


def _rows(number: int) -> str:
    return f"{number:,} row{'' if number == 1 else 's'}"


def not_looked(suite: Suite, why: str) -> Verdict:
    """Return the verdict of a suite that accepted a checkpoint without judging rows, for the reason `why`."""
    said = tuple(ExpectationVerdict.unlooked(each, why) for each in suite.expectations)
    return Verdict(suite=suite.name, table=suite.table, passed=True, rows=0, expectations=said)


def not_judged(suite: str, table: str, cause: str) -> str:
    """Return the message for a suite without a verdict."""
    return (
        f"suite {suite} of table {table} could not be judged, so nothing is published: {cause}. The next checkpoint "
        "judges the same rows again"
    )


NO_ROWS: Final = "no rows came to the table"
_FILES_SHOWN = 5
_WAYS_OUT = (
    "Nothing of this epoch is visible, and the next tick meets the same rows. You can correct the data at its source; "
    "turn the expectation into a row rule, so that such rows go to quarantine; change the suite; or skip the rows with "
    "'tidemark reset PIPELINE SOURCE --to POSITION'"
)

VERDICTS: Final = TypeAdapter(tuple[Verdict, ...])
"""The verdicts of one vertex, as a judge's report has them."""


def verdicts_in(reports: Iterable[str]) -> tuple[Verdict, ...]:
    """Return the verdicts in the reports that a checkpoint's entry keeps."""
    return tuple(verdict for report in reports for verdict in VERDICTS.validate_json(report))
