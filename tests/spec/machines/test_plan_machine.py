"""The machine of plans, of the store of completed checkpoints, of the periodic timer, and of restores."""

from spec.machines.planning import PlanMachine


def test_what_a_coordinator_works_out_at_once_is_right(run_machine):
    """Cases are drawn one after the other."""
    run_machine(PlanMachine)
