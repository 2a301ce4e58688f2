"""A pipeline that reads another one's cuts, in Dagster: its lineage, its sensor, and on which cut a table rests."""

import dagster as dg
import pytest

from checkpointing.identifiers import TableName
from checkpointing.metadata.paths import ProtocolPaths
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.warehouse import Warehouse
from orchestration.epochs import cut_metadata, table_metadata
from orchestration.naming import InvalidNamingError
from orchestration.observation import standing
from orchestration.pipelines import build_definitions
from tests.scenarios.runtime import cut_jobs
from tests.scenarios.runtime.cut_jobs import REPORT, SHOP, planned, tick

ORDERS = dg.AssetKey(["sources", REPORT, "orders"])


@pytest.fixture
def downstream(tmp_path, monkeypatch):
    """Return the pipeline as Dagster loads it; its data is the folder of both warehouses."""
    monkeypatch.setenv("TIDEMARK_WAREHOUSE", str(tmp_path / REPORT))
    monkeypatch.setenv("TIDEMARK_DATA", str(tmp_path))

    def build(**how):
        return build_definitions(cut_jobs.report, **how)

    return build


def test_a_source_depends_on_the_table_that_it_reads(downstream):
    """The upstream pipeline may be in the same code location or in another one; its key prefix may be another."""
    both = dg.Definitions.merge(downstream(), build_definitions(cut_jobs.shop(40)))
    graph = both.resolve_asset_graph()
    orders = dg.AssetKey(["silver", "orders"])
    assert {orders} == graph.get(ORDERS).parent_keys
    assert graph.get(orders).is_materializable
    assert dg.AssetKey(["gold", "orders"]) in graph.get(ORDERS).child_keys
    (elsewhere,) = downstream(upstream_prefixes={SHOP: ["lake", "eu"]}).resolve_asset_graph().get(ORDERS).parent_keys
    assert dg.AssetKey(["lake", "eu", "silver", "orders"]) == elsewhere
    with pytest.raises(InvalidNamingError, match="key_prefix: 'a b' may hold only"):
        downstream(upstream_prefixes={SHOP: "a b"})


def test_a_new_cut_starts_a_tick(downstream, tmp_path, instance):
    """The sensor asks the upstream job's warehouse, without Spark; a cut that was read starts none."""
    definitions = downstream()
    sensor, repository = definitions.resolve_sensor_def(f"{REPORT}_new_data"), definitions.get_repository_def()

    def looked():
        return sensor.evaluate_tick(dg.build_sensor_context(instance=instance, repository_def=repository))

    tick(SHOP, tmp_path, 40)
    (request,) = looked().run_requests
    assert ("40", "40") == tuple(request.tags[f"tidemark/rows_unread.{name}"] for name in cut_jobs.SOURCES)
    tick(REPORT, tmp_path)
    assert "holds all that the sources offer" in looked().skip_message
    tick(SHOP, tmp_path, 60)
    assert ["20"] == [request.tags["tidemark/rows_unread.orders"] for request in looked().run_requests]


def test_a_table_says_on_which_cut_it_rests(tmp_path):
    """On its page, and on that of the cuts."""
    tick(SHOP, tmp_path, 40)
    tick(REPORT, tmp_path)
    stands = standing(Warehouse(tmp_path / REPORT, ProtocolPaths(REPORT)), planned(REPORT, tmp_path))
    newest = max(CutStore(Warehouse(tmp_path / SHOP, ProtocolPaths(SHOP))).recorded())
    for told in (
        table_metadata(planned(REPORT, tmp_path).graph, TableName("gold/orders"), stands.epoch),
        cut_metadata(stands.epoch),
    ):
        assert f"cut {newest} of {SHOP} in {tmp_path / SHOP}" == told["rests_on"].text
