"""Engines without a JVM read folders with odd names. Names with which delta-rs fails are refused."""

from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from checkpointing.identifiers import JobName
from checkpointing.metadata.paths import ProtocolPaths
from jobs.engine_paths import UnusableFolderError, duckdb_path, must_suit_delta, polars_reads, spark_path
from jobs.warehouse.warehouse import Warehouse
from tests.odd_names import NAMES, NAMES_OF_FOLDERS, NOT_FOR_DELTA

ROWS = pa.table({"x": [1, 2, 3]})
PATHS = ProtocolPaths(JobName("numbers"))


def of(names):
    return pytest.mark.parametrize("name", names.values(), ids=names)


@of(NAMES_OF_FOLDERS)
def test_a_table_in_a_folder_of_any_name_is_written_and_read(tmp_path, name):
    """delta-rs writes the table there, and Polars, pyarrow and delta-rs read the same rows back."""
    must_suit_delta(tmp_path / name)
    folder = tmp_path / name / "bronze" / "numbers"
    write_deltalake(str(folder), ROWS)
    assert (folder / "_delta_log" / f"{0:020d}.json").exists()
    native = polars_reads(folder)
    read = pl.scan_delta(str(folder), version=0, use_pyarrow=not native).filter(pl.col("x") > 1).collect()
    assert [2, 3] == read["x"].to_list()
    assert ROWS.equals(DeltaTable(str(folder)).to_pyarrow_table())


@of(NAMES_OF_FOLDERS | NOT_FOR_DELTA)
def test_duckdb_reads_only_the_named_file(tmp_path, name):
    """The name, read as a glob, would match a neighbouring file. That file is not read."""
    for folder in (tmp_path / name, tmp_path / "aXb", tmp_path / "x"):
        folder.mkdir()
        pq.write_table(ROWS, folder / "rows.parquet")
    literal = duckdb_path(str(tmp_path / name / "rows.parquet")).replace("'", "''")
    assert [(3,)] == duckdb.connect().sql(f"SELECT count(*) FROM read_parquet(['{literal}'])").fetchall()


@of(NOT_FOR_DELTA)
def test_a_folder_that_delta_cannot_open_is_refused_by_name(tmp_path, name):
    """The error names the folder, the part of its name that delta-rs cannot read, and the way out."""
    with pytest.raises(UnusableFolderError, match=r"cannot hold tables: delta-rs.* Rename the folder") as refused:
        Warehouse(tmp_path / name, PATHS)
    folder = str(tmp_path / name)
    assert str(refused.value).startswith(folder if folder.isprintable() else repr(folder)[1:-1])
    assert str(refused.value).isprintable()


def test_a_link_to_a_folder_that_delta_cannot_open_is_refused_with_both_names(tmp_path):
    (tmp_path / "x%20y").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "x%20y")
    with pytest.raises(UnusableFolderError, match=r"link, which leads to .*x%20y, cannot hold tables: .*'%20'"):
        Warehouse(tmp_path / "link", PATHS)


def test_a_relative_folder_with_a_colon_is_no_url(tmp_path, monkeypatch):
    """`a:b/bronze` could be a URL of a store `a`. So engines get the absolute path."""
    monkeypatch.chdir(tmp_path)
    folder = Warehouse(Path("a:b"), PATHS).path("bronze/numbers")
    assert tmp_path / "a:b" / "bronze" / "numbers" == folder
    write_deltalake(str(folder), ROWS)
    assert ROWS.equals(DeltaTable(str(folder)).to_pyarrow_table())


@of(NAMES)
def test_a_glob_for_spark_is_escaped_character_by_character(name):
    assert name == spark_path(name).replace("\\", "")
