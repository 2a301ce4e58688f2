"""What a judge found, as it is kept with the checkpoint and shown to people: pydantic, JSON, no pickle."""

from collections.abc import Iterable
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ExpectationVerdict(_Kept):
    """One expectation's verdict. Values are as a reader would write them; `files` hold the unexpected rows."""

    type: str
    kwargs: dict[str, str | int | float | bool | list[str | int | float | bool] | None]
    success: bool
    observed: str | None = None
    unexpected_count: int = 0
    unexpected_percent: float = 0.0
    """Of the rows that the expectation looks at, in percent."""
    sample: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    error: str | None = None
    """Why it could not be judged. Such an expectation is not met, and rejects nothing."""

    def __str__(self) -> str:
        """Return the verdict as a line of the report."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.kwargs.items())
        return f"{self.type}({arguments}): {self._found()}"

    def _found(self) -> str:
        if self.success:
            return "met"
        if self.error is not None:
            return f"could not be judged: {self.error}"
        if self.sample:
            values = ", ".join(self.sample)
            share = f"{self.unexpected_count} rows ({self.unexpected_percent:.3g} %)"
            return f"{share} are not as expected, among them {values}"
        return f"observed {self.observed}"


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
        """Whether an expectation was judged and not met. One that could not be judged rejects nothing."""
        return any(not each.success and each.error is None for each in self.expectations)

    def failure(self) -> str:
        """Return which expectation could not be judged, and why."""
        first = next(each for each in self.expectations if each.error is not None)
        return not_judged(self.suite, self.table, str(first))

    def report(self) -> str:
        """Return the verdict as a user reads it: what failed, on which values and files, and what can be done."""
        if self.passed:
            return f"suite {self.suite} of table {self.table}: met by {self.rows} rows"
        failed = [each for each in self.expectations if not each.success]
        count = f"{len(failed)} of {len(self.expectations)} expectations are not met"
        lines = [f"suite {self.suite} rejects {self.rows} rows staged for table {self.table}: {count}"]
        for each in failed:
            lines.append(f"  {each}")
            lines.extend(f"    in {path}" for path in each.files[:_FILES_SHOWN])
            if len(each.files) > _FILES_SHOWN:
                lines.append(f"    and {len(each.files) - _FILES_SHOWN} more files")
        lines.append(_WAYS_OUT)
        return "\n".join(lines)


def not_judged(suite: str, table: str, cause: str) -> str:
    """Return the sentence for a suite without a verdict."""
    return (
        f"suite {suite} of table {table} could not be judged, so nothing is published: {cause}. The next checkpoint "
        "judges the same rows again"
    )


_FILES_SHOWN = 5
_WAYS_OUT = (
    "Nothing of this epoch is visible, and the next tick meets the same rows. You can correct the data at its source; "
    "turn the expectation into a row rule, so that such rows go to quarantine; change the suite; or skip the rows with "
    "'tidemark reset'"
)

VERDICTS: Final = TypeAdapter(tuple[Verdict, ...])
"""The verdicts of one vertex, as a judge's report has them."""


def verdicts_in(reports: Iterable[str]) -> tuple[Verdict, ...]:
    """Return the verdicts that a checkpoint's entry keeps."""
    return tuple(verdict for report in reports for verdict in VERDICTS.validate_json(report))
