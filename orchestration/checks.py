"""Asset checks of the suites: each expectation's verdict, from the newest checkpoint or from a failed tick's trace."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import dagster as dg

from checkpointing.identifiers import TableName, VertexId
from checkpointing.messages import JudgementFailed, SuitesJudged
from checkpointing.trace import decode
from jobs.pipeline.job_plan import JobPlan
from jobs.quality.expectation import Expectation, Suite
from jobs.quality.verdict import VERDICTS, ExpectationVerdict, Verdict
from jobs.tick.effects import verdicts_of
from jobs.tick.trace_files import open_trace
from orchestration.naming import Naming, check_names
from orchestration.observation import Standing
from orchestration.row_rules import rule_specs

_EXPECT: Final = re.compile(r"^expect_(column_values_to_|column_pair_values_|column_|multicolumn_|table_)?")
_JUDGED: Final = (b'"is":"SuitesJudged"', b'"is":"JudgementFailed"')
_HEAD: Final = 100
"""How many bytes at the beginning of a trace's line are enough to find its kind."""


def check_specs(plan: JobPlan, naming: Naming) -> tuple[dg.AssetCheckSpec, ...]:
    """Return the checks of a tick's step: one for each expectation of a suite, and for each row rule.

    A table with partitions is not an asset of that step. So the checks of its suite are left out.
    """
    return (*_suite_specs(plan, naming, partitioned=False), *rule_specs(plan, naming))


def partitioned_check_specs(plan: JobPlan, naming: Naming) -> tuple[dg.AssetCheckSpec, ...]:
    """Return a check for each expectation of each suite that judges a table with partitions."""
    return tuple(_suite_specs(plan, naming, partitioned=True))


def of_partitioned(plan: JobPlan, naming: Naming, result: dg.AssetCheckResult) -> bool:
    """Return whether a result belongs to a table with partitions."""
    return any(result.asset_key == naming.table_key(table) for table in plan.partitions)


def names_of(suite: Suite) -> dict[Expectation, str]:
    """Return a name for each expectation of a suite, made of its columns and type."""
    return check_names((expectation, _name(expectation)) for expectation in suite.expectations)


def kept_results(plan: JobPlan, naming: Naming, stands: Standing) -> Iterator[dg.AssetCheckResult]:
    """Yield every suite's verdict from the newest checkpoint. A suite passes if its table got no rows.

    Before the first checkpoint no suite was judged. Each result is then a warning.
    """
    record = None if stands.epoch is None else stands.epoch.record
    kept = {verdict.table: verdict for verdict in verdicts_of(record)} if record is not None else {}
    for table, suite in plan.suites.items():
        if record is None:
            yield from _never_judged(suite, naming)
            continue
        quiet = f"checkpoint {record.checkpoint} brought no rows to the table, so there were none to judge"
        yield from _results(suite, naming, kept.get(table), {"checkpoint": record.checkpoint}, quiet)


def rejected_results(plan: JobPlan, naming: Naming, trace: Path) -> Iterator[dg.AssetCheckResult]:
    """Yield the verdicts that failed the tick's last checkpoint. They are in the tick's trace, and in no checkpoint.

    If a suite could not be judged, all its expectations fail. Raises OSError without a trace.
    """
    for answer in _objections(trace):
        why = answer.error if isinstance(answer, JudgementFailed) else answer.message
        told = {"rejected_checkpoint": int(answer.checkpoint)}
        verdicts = {verdict.table: verdict for verdict in VERDICTS.validate_json(answer.report)}
        for table in plan.graph.vertex(answer.vertex).tables:
            suite = plan.suites.get(table.name)
            is_told = table.name in verdicts or not verdicts or isinstance(answer, JudgementFailed)
            if suite is not None and is_told:
                yield from _results(suite, naming, verdicts.get(table.name), told, why, passed=False)


def _suite_specs(plan: JobPlan, naming: Naming, *, partitioned: bool) -> Iterator[dg.AssetCheckSpec]:
    for table, suite in plan.suites.items():
        if (table in plan.partitions) is not partitioned:
            continue
        for expectation, name in names_of(suite).items():
            yield dg.AssetCheckSpec(
                name,
                asset=naming.table_key(TableName(suite.table)),
                description=(
                    f"Suite {suite.name}: {expectation}. It is judged before each commit. If it is not met, the "
                    "checkpoint is declined: no table shows its rows, and the tick fails."
                ),
                blocking=True,
            )


def _results(
    suite: Suite, naming: Naming, verdict: Verdict | None, told: Mapping[str, int], why: str, *, passed: bool = True
) -> Iterator[dg.AssetCheckResult]:
    """Yield a result for each expectation. `why` and `passed` are used for an expectation without a verdict."""
    found = {} if verdict is None else {_identity(each.type, each.kwargs): each for each in verdict.expectations}
    for expectation, name in names_of(suite).items():
        one = found.get(_identity(expectation.type, expectation.kwargs))
        yield dg.AssetCheckResult(
            passed=passed if one is None else one.success,
            asset_key=naming.table_key(TableName(suite.table)),
            check_name=name,
            description=why if one is None else str(one),
            metadata={
                "suite": suite.name,
                "rows": 0 if verdict is None else verdict.rows,
                **told,
                **({} if one is None else _found(one)),
            },
        )


def _never_judged(suite: Suite, naming: Naming) -> Iterator[dg.AssetCheckResult]:
    for name in names_of(suite).values():
        yield dg.AssetCheckResult(
            passed=False,
            asset_key=naming.table_key(TableName(suite.table)),
            check_name=name,
            severity=dg.AssetCheckSeverity.WARN,
            description="it has judged no rows yet: no checkpoint has completed",
        )


def _found(one: ExpectationVerdict) -> dict[str, dg.MetadataValue]:
    return {
        "unexpected_rows": dg.MetadataValue.int(one.unexpected_count),
        "unexpected_percent": dg.MetadataValue.float(one.unexpected_percent),
        "unexpected_values": dg.MetadataValue.json(list(one.sample)),
        "files": dg.MetadataValue.json(list(one.files)),
    }


def _objections(trace: Path) -> tuple[SuitesJudged | JudgementFailed, ...]:
    """Return the last answer of each vertex's judge, unless it accepts the rows.

    No other line of the trace is parsed.
    """
    last: dict[VertexId, SuitesJudged | JudgementFailed] = {}
    with open_trace(trace) as lines:
        for line in lines:
            answer = decode(line).body if any(kind in line[:_HEAD] for kind in _JUDGED) else None
            if isinstance(answer, SuitesJudged | JudgementFailed):
                last[answer.vertex] = answer
    return tuple(each for each in last.values() if isinstance(each, JudgementFailed) or not each.passed)


def _identity(kind: str, kwargs: Mapping[str, object]) -> str:
    """Return a key that is the same for an expectation and its verdict, although the verdict went through JSON."""
    return f"{kind} {json.dumps(dict(kwargs), sort_keys=True, default=str)}"


def _name(expectation: Expectation) -> str:
    """Return the columns and the expectation in short, since Dagster's list of checks has little room."""
    columns = (expectation.kwargs.get(argument) for argument in ("column", "column_A", "column_B"))
    expected = _EXPECT.sub("", expectation.type).replace("not_be_", "not_").removeprefix("be_")
    return "_".join([*(column for column in columns if isinstance(column, str)), expected])
