"""Row rules are checks: each says how many rows of the quarantine table, at the newest cut, failed it."""

import dagster as dg
import pytest

from checkpointing.metadata.paths import ProtocolPaths
from jobs.launch import launch
from jobs.settings import Layer
from jobs.warehouse.warehouse import Warehouse
from orchestration.naming import Naming
from orchestration.row_rules import rule_results
from tests.orchestration.numbers import QUARANTINE, RulingEngine

RULED = "tests.orchestration.numbers:ruled"
RULE = "key_not_null"


@pytest.fixture
def rule_of(run_job, instance):
    """Run a tick whose every tenth number fails the rule; return the run's result and the rule's newest evaluation."""

    def tick(**settings: object):
        result = run_job(RULED, RulingEngine(), **settings)
        key = dg.AssetCheckKey(dg.AssetKey(QUARANTINE.split("/")), RULE)
        (record,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
        return result, record.event.dagster_event.asset_check_evaluation_data

    return tick


def test_a_rule_counts_the_rows_in_quarantine_at_the_newest_cut(rule_of):
    """The first tick takes one checkpoint. The second takes another, and its third is declined: the count stays."""
    result, check = rule_of(checkpoints=1)
    assert (result.success, check.passed, check.severity) == (True, False, dg.AssetCheckSeverity.WARN)
    first = check.metadata["rows_quarantined"].value
    assert f"{first} rows are in quarantine at checkpoint 1" == check.description
    result, check = rule_of()
    assert (result.success, check.passed) == (False, False)
    assert first < check.metadata["rows_quarantined"].value == 20
    _, declined = rule_of()  # the first checkpoint of this tick is declined
    assert declined.metadata == check.metadata
    assert declined.description == check.description


def test_without_a_checkpoint_nothing_was_judged_and_that_is_a_warning(tmp_path):
    """A check that did not happen does not look like one that passed."""
    plan = launch(RULED, Layer("", {})).plan
    (result,) = rule_results(plan, Naming(plan.job), Warehouse(tmp_path, ProtocolPaths(plan.job)))
    assert (result.passed, result.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "it has judged no rows yet: numbers has never run" in result.description
