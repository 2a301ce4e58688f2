"""Row rules are checks: each says how many of the rows that a tick read failed it."""

import polars as pl
import pytest

from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, Generation, TableName
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord, Statistics, TableRecord
from jobs.launch import launch
from jobs.settings import Layer
from jobs.stores.warehouse import Warehouse
from orchestration.naming import Naming
from orchestration.row_rules import rule_results, rule_specs

QUARANTINE = TableName("quarantine/flights")


@pytest.fixture
def plan():
    """Return the flights as planned."""
    return launch("flights", Layer("", {})).plan


def record(root, number, failed):
    """Write a quarantine file whose rows failed these rules, and return the checkpoint that staged it."""
    path = f"{QUARANTINE}/_data/1/{number}.parquet"
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    pl.DataFrame({"_failed": failed}, schema={"_failed": pl.String}).write_parquet(root / path)
    file = FileHandle(path, len(failed), 1, 1)
    return CheckpointRecord(
        job="flights",
        checkpoint=CheckpointId(number),
        parent=CheckpointId(number - 1),
        generation=Generation(1),
        nonce=str(number),
        max_parallelism=8,
        vertices=(),
        tables=(TableRecord(table=QUARANTINE, mode=TableMode.APPEND, adds=(file,), parent_version=0),),
        statistics=Statistics(triggered_ms=1, committed_ms=1, rows=1),
    )


def test_each_rule_counts_its_rows_over_all_checkpoints_of_the_tick(plan, tmp_path):
    """A row that fails two rules counts for both; a rule that no row failed passes."""
    naming = Naming(plan.job)
    specs = {spec.name: spec for spec in rule_specs(plan, naming)}
    rules = {
        spec.name: next(
            r.name for v in plan.vertices.values() for r in getattr(v.spec, "rules", ()) if r.name in spec.description
        )
        for spec in specs.values()
    }
    first, *others = rules
    records = [
        record(tmp_path, 1, [rules[first], rules[first]]),
        record(tmp_path, 2, [", ".join(rules.values())]),
    ]
    results = {
        each.check_name: each
        for each in rule_results(plan, naming, Warehouse(tmp_path, ProtocolPaths(plan.job)), records)
    }
    assert set(specs) == set(results)
    counted = {name: each.metadata["rows_quarantined"].value for name, each in results.items()}
    assert {first: 3} | dict.fromkeys(others, 1) == counted
    assert not results[first].passed
    assert "3 rows went to quarantine" == results[first].description
    quiet = rule_results(plan, naming, Warehouse(tmp_path, ProtocolPaths(plan.job)), [record(tmp_path, 3, [])])
    assert {True} == {each.passed for each in quiet}


def test_without_a_checkpoint_no_rule_has_judged_anything(plan, tmp_path):
    """Before the first checkpoint the checks say that there was nothing to judge."""
    results = list(rule_results(plan, Naming(plan.job), Warehouse(tmp_path, ProtocolPaths(plan.job)), ()))
    assert results
    assert {"it has judged no rows yet"} == {each.description for each in results}
