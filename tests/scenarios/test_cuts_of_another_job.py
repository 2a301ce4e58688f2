"""Tests two jobs on real Spark and Delta: the second reads two tables of the first, always at one cut of it."""

import polars as pl
import pytest

from checkpointing.metadata.paths import ProtocolPaths
from jobs.cli.main import execute
from jobs.sources.port import SourceError
from jobs.tick.at_rest.roll_back import roll_back
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.cut_job import TABLES
from tidemark.testing import Trial

pytestmark = [pytest.mark.spark, pytest.mark.dear]


@pytest.fixture
def trials(tmp_path):
    down = Trial("tests.scenarios.cut_job:downstream", tmp_path)
    return Trial("tests.scenarios.cut_job:upstream", down.data / "upstream"), down


def deliver(up, start, rows):
    for name in TABLES:
        up.deliver(f"{name}/all", pl.DataFrame({"id": list(range(start, start + rows))}))


def must_rest_on_one_cut_each(up, down):
    seen = []
    for cut in down.cuts.all():
        (below,) = cut.rests_on
        source = up.cuts.at(below.checkpoint)
        for name in TABLES:
            theirs = sorted(source.polars(f"silver/{name}").collect()["id"])
            assert theirs == sorted(cut.polars(f"gold/{name}").collect()["id"]), (cut, below)
        seen.append(below.checkpoint)
    return seen


def test_no_downstream_cut_mixes_two_upstream_cuts(spark, trials, capsys):
    """Upstream goes on. Downstream is killed before and after its commit point, and takes several cuts as one."""
    up, down = trials
    deliver(up, 0, 12)
    up.run(checkpoints=1, spark_cores=1)
    down.run(spark_cores=1)
    up.run(spark_cores=1)
    deliver(up, 12, 9)
    for boundary in ("before:AppendRow#1", "after:AppendRow#1"):
        down.kill(boundary, spark_cores=1)
        up.run(checkpoints=1, spark_cores=1)
    up.run(spark_cores=1)
    cut = down.run(spark_cores=1)
    rests = must_rest_on_one_cut_each(up, down)
    assert sorted(set(rests)) == rests
    assert up.cuts.latest().checkpoint == rests[-1]
    assert 21 == cut.polars("gold/orders").collect().height
    assert 0 == execute(["cut", "report", "--warehouse", str(down.warehouse)])
    assert f"rests on cut {rests[-1]} of shop in {up.warehouse}" in capsys.readouterr().out


def test_downstream_follows_a_rollback_upstream(spark, trials, capsys):
    """The next downstream tick is refused before its claim. `rollback --follow` goes back, and both jobs go on."""
    up, down = trials
    deliver(up, 0, 6)
    first = up.run(spark_cores=1)
    down.run(spark_cores=1)
    deliver(up, 6, 6)
    lost = up.run(spark_cores=1)
    down.run(spark_cores=1)
    roll_back(Warehouse(up.warehouse, ProtocolPaths("shop")), first.checkpoint)
    entries = CheckpointStore(Warehouse(down.warehouse, ProtocolPaths("report"))).observe()[1]
    refused = rf"cut {lost.checkpoint} of shop .* rolled back behind it.*rollback report --follow"
    with pytest.raises(SourceError, match=refused):
        down.run(spark_cores=1)
    assert entries == CheckpointStore(Warehouse(down.warehouse, ProtocolPaths("report"))).observe()[1]
    folders = ["--warehouse", str(down.warehouse), "--data", str(down.data)]
    told = ["rollback", "tests.scenarios.cut_job:downstream", "--follow", *folders]
    assert 0 == execute(told)
    assert 0 != execute(told)
    assert "has no upstream job to follow" in capsys.readouterr().err
    up.run(spark_cores=1)
    assert 12 == down.run(spark_cores=1).polars("gold/payments").collect().height
    rests = down.cuts.latest().rests_on
    assert [up.cuts.latest().checkpoint] == [each.checkpoint for each in rests]
