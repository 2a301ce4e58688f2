"""Runs a machine with the loaded profile, or hunts a planted bug with it."""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from spec.machines import judging


@pytest.fixture
def run_machine():
    """Run a machine with the loaded profile."""
    return lambda machine: run_state_machine_as_test(machine, settings=judging.fitting(machine, settings()))


@pytest.fixture
def hunt():
    """Run a machine with the ci profile until it finds something. It tries the same steps each time."""
    return lambda machine: run_state_machine_as_test(machine, settings=judging.fitting(machine, judging.hunting()))
