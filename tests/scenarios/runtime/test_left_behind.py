"""`--allow-non-restored-state` in place: the dry run, the tick and the door decide alike, and the rest goes on."""

import polars as pl
import pytest

from jobs.cli import run as run_command
from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.tick.tick import run_tick
from tests.scenarios.runtime.savepoint_job import at, records, run
from tests.scenarios.runtime.sequence_job import BRONZE, ROWS, LocalEngine

WITHOUT = "tests.scenarios.runtime.sequence_job:without_aggregate"
ALLOW = "--allow-non-restored-state"


@pytest.fixture
def root(tmp_path):
    """Return a warehouse whose newest cut holds the state of an aggregate."""
    run(tmp_path / "warehouse", 1)
    return tmp_path / "warehouse"


@pytest.fixture
def typed(capsys, monkeypatch):
    """Return what a command line says: exit code and everything that it printed; its ticks run without Spark."""
    monkeypatch.setattr(run_command, "run_tick", lambda *told: run_tick(*told, engine=LocalEngine()))

    def type_in(*words):
        code = execute([str(word) for word in words])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return type_in


def test_without_the_flag_nothing_is_claimed(root, typed):
    """Dry run and tick refuse with the same sentence, which names the operator and the flag."""
    before = at_version(root)
    for words in (("--dry-run",), ()):
        code, said = typed("run", WITHOUT, "--warehouse", root, *words)
        assert ExitCode.FAILED is code
        assert "holds state of 'by_key', which the pipeline no longer has" in said
        assert ALLOW in said
    assert before == at_version(root)


def test_with_the_flag_the_tick_leaves_the_state_behind_and_reads_on(root, typed):
    """The tick does what the dry run allowed: it catches up, and later ticks need no flag."""
    code, said = typed("run", WITHOUT, "--warehouse", root, ALLOW, "--dry-run")
    assert ExitCode.DONE is code, said
    code, said = typed("run", WITHOUT, "--warehouse", root, ALLOW)
    assert ExitCode.DONE is code, said
    assert sum(ROWS.values()) == pl.read_delta(str(root / BRONZE)).height
    newest = records(root)[max(records(root))]
    assert "by_key" not in [vertex.vertex for vertex in newest.vertices]
    code, said = typed("run", WITHOUT, "--warehouse", root)
    assert ExitCode.DONE is code, said


def at_version(root):
    """Return the version of `checkpoints`: each claim would raise it."""
    from jobs.warehouse.checkpoints import CheckpointStore

    return CheckpointStore(at(root)).observe()[0]
