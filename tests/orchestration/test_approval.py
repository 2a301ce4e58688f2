"""A tick in Dagster that holds its cut: the check that warns, the job that publishes it, and what starts no tick."""

import dagster as dg
import pytest

from jobs.launch import launch
from jobs.reading import Cuts
from jobs.settings import Layer
from orchestration.approval import APPROVAL, approval_result
from orchestration.naming import Naming
from orchestration.observation import standing
from orchestration.pipelines import build_definitions
from orchestration.triggers import due
from tests.orchestration.conftest import NUMBERS
from tests.orchestration.test_operations import operate, told
from tests.scenarios.runtime.sequence_job import JOB

__all__ = ["operate"]


@pytest.fixture
def check(tmp_path):
    """Return the check of the warehouse as it stands now."""

    def looked() -> dg.AssetCheckResult:
        launched = launch(NUMBERS, Layer("", {"warehouse": tmp_path / "warehouse"}))
        return approval_result(Naming(launched.plan.job), standing(launched.warehouse, launched.plan).rows)

    return looked


@pytest.mark.dear
def test_a_held_cut_is_a_warning_until_a_job_settles_it(run_job, operate, check, instance, tmp_path):
    """The tick's run succeeds and materializes nothing. The check names the cut; the job publishes it."""
    assert run_job(hold=True).success
    cuts = Cuts(tmp_path / "warehouse", JOB)
    held = cuts.pending().checkpoint
    seen = check()
    assert (False, dg.AssetCheckSeverity.WARN, APPROVAL) == (seen.passed, seen.severity, seen.check_name)
    assert f"cut {held} of numbers waits for approval" in seen.description
    assert f"the jobs {JOB}_approve and {JOB}_reject" in seen.description
    assert held == seen.metadata["cut"].value
    deployed = build_definitions(NUMBERS, warehouse=tmp_path / "warehouse")
    assert deployed.resolve_job_def(f"{JOB}_reject")
    done = operate("approve")
    assert done.success
    assert cuts.latest().checkpoint == told(done)["checkpoint"]
    assert check().passed
    again = operate("reject")
    assert not again.success


def test_no_tick_is_started_while_a_cut_waits(monkeypatch, instance):
    """Schedule and sensor skip, and say how to settle the cut."""
    from orchestration import triggers

    class Launched:
        warehouse = None

    class Deployed:
        def launch(self) -> Launched:
            return Launched()

    monkeypatch.setattr(triggers, "held_by", lambda _: None)
    monkeypatch.setattr(triggers, "waiting_cut", lambda _: "cut")
    monkeypatch.setattr(triggers, "waits_for_approval", lambda cut: f"{cut} 7 waits for approval")
    skipped = due(Deployed(), instance)
    assert isinstance(skipped, dg.SkipReason)
    assert "cut 7 waits for approval" == skipped.skip_message
