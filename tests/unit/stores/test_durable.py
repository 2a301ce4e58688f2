"""Files, and the folders with their names, are synced before a commit names them."""

from pathlib import Path

import pytest

from checkpointing.identifiers import job_name
from checkpointing.metadata.paths import ProtocolPaths
from jobs.storage import place as synced_names
from jobs.warehouse.delta_log import Durability
from jobs.warehouse.warehouse import Warehouse


@pytest.mark.parametrize("relative", [False, True])
def test_every_folder_from_the_warehouse_down_to_the_file_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relative: bool
) -> None:
    """A name is durable once its folder is synced, also in a warehouse with a relative path."""
    monkeypatch.chdir(tmp_path)
    synced: list[Path] = []
    monkeypatch.setattr(synced_names, "sync", synced.append)
    root = tmp_path / "warehouse"
    warehouse = Warehouse(Path("warehouse") if relative else root, ProtocolPaths(job_name("flights")))
    durability = Durability(warehouse)
    durability.sync_files(["silver/flights/a.parquet"])
    expected = {root / "silver/flights/a.parquet", root / "silver/flights", root / "silver", root}
    assert expected == set(synced)
    synced.clear()
    durability.sync_files(["silver/flights/b.parquet"])
    assert {root / "silver/flights/b.parquet", root / "silver/flights"} == set(synced)
