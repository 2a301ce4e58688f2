"""Every odd name as Spark meets it: a data folder, an input file, a warehouse whose files and tables it reads."""

from functools import reduce

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructType

from checkpointing.identifiers import CheckpointId, JobName, SplitId, TableName, VertexId
from checkpointing.messages import PollSource
from checkpointing.metadata.paths import ProtocolPaths
from jobs.engine_paths import spark_sql_table
from jobs.operators.inputs import staged_rows
from jobs.reading import Cuts
from jobs.showing.cut import recipes
from jobs.sources.files.file_source import FileSource
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.warehouse import Warehouse
from tests.odd_names import ALL_IN_ONE, NAMES, NAMES_OF_FOLDERS, NOT_FOR_DELTA

pytestmark = pytest.mark.spark

SCHEMA = StructType().add("row", LongType())
EWR = SplitId("EWR")
ROWS = 3


def write(path, first):
    """Write rows `first`, `first + 1`, ... and beside them a file that a glob could mean."""
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"row": range(first, first + ROWS)}), path)


def whole(source):
    return source.poll(PollSource(VertexId("in"), EWR, None, 1_000))


def test_an_input_file_of_any_name_is_read_row_by_row(spark, tmp_path):
    """One scan of all names: each row once, from its file, with its ordinal."""
    names = sorted(f"{name}.parquet" for name in (NAMES | NOT_FOR_DELTA).values())
    (tmp_path / EWR).mkdir()
    for place, name in enumerate(names):
        pq.write_table(pa.table({"row": range(ROWS * place, ROWS * (place + 1))}), tmp_path / EWR / name)
    source = FileSource(tmp_path, SCHEMA)
    found = source.read(spark, [whole(source)]).select("row", "_split", "_position").orderBy("row").collect()
    assert [(row, EWR, row) for row in range(ROWS * len(names))] == [tuple(row) for row in found]


def test_a_data_folder_of_any_name_is_read(spark, tmp_path):
    """No name is taken for a glob, a URI or a column."""
    roots = [tmp_path / name for name in (NAMES_OF_FOLDERS | NOT_FOR_DELTA).values()]
    for place, root in enumerate(roots):
        write(root / EWR / "rows.parquet", ROWS * place)
    sources = [FileSource(root, SCHEMA) for root in roots]
    frames = [source.read(spark, [whole(source)]) for source in sources]
    found = reduce(DataFrame.unionAll, frames).select("row").collect()
    assert list(range(ROWS * len(roots))) == sorted(row[0] for row in found)


def test_staged_files_in_a_warehouse_of_any_name_are_read_back(spark, tmp_path):
    """Only they: a name with `*` reads nothing of its neighbours."""
    roots = [tmp_path / name for name in NAMES_OF_FOLDERS.values()]
    for place, root in enumerate(roots):
        write(root / "_data" / "rows.parquet", ROWS * place)
    frames = [staged_rows(spark, SCHEMA, ["_data/rows.parquet"], root) for root in roots]
    found = reduce(DataFrame.unionAll, frames).collect()
    assert list(range(ROWS * len(roots))) == sorted(row[0] for row in found)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(ALL_IN_ONE, id="all in one"),
        *(pytest.param(name, id=what, marks=pytest.mark.dear) for what, name in NAMES_OF_FOLDERS.items()),
    ],
)
def test_sparks_lines_and_its_sql_read_a_cut_in_a_warehouse_of_any_name(neighbour, tmp_path, name):
    """`Cut.spark`, the printed line, and a path in back quotes as the SQL of a state has it."""
    root, table = tmp_path / name, TableName("silver/flights")
    warehouse = Warehouse(root, ProtocolPaths(JobName("flights")))
    for version in range(3):
        shows = Transaction(warehouse.paths.transaction_id(table), 5 + version)
        write_deltalake(
            str(root / table),
            pa.table({"number": [version]}),
            mode="append",
            commit_properties=CommitProperties(app_transactions=[shows]),
        )
    CutStore(warehouse).record(CheckpointId(6), [(table, 1)])
    CheckpointStore(warehouse)
    cut = Cuts(root, "flights").latest()
    names = {"spark": neighbour}
    exec("\n".join(next(each.lines for each in recipes(cut) if each.engine == "Spark")), names)  # noqa: S102 - pasted
    frames = (
        cut.spark(neighbour, table),
        names["silver_flights"],
        neighbour.sql(f"SELECT * FROM {spark_sql_table(cut.folder(table))} VERSION AS OF 1"),
    )
    assert [2, 2, 2] == [frame.count() for frame in frames]
