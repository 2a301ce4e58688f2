"""The machine of settings."""

from spec.machines.arriving import SettingsMachine


def test_each_setting_arrives_where_it_is_used(run_machine):
    """Numbers that differ are given to each strategy and to the coordinator. Contradictions are refused."""
    run_machine(SettingsMachine)
