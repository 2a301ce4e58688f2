"""The pipelines that come with Tidemark: their plans, and how a user names them."""

import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from checkpointing.graph import TableMode, VertexKind
from checkpointing.identifiers import SplitId, TableName, VertexId
from checkpointing.messages import PollSource
from jobs.pipeline.planning import plan
from jobs.pipelines import flights, offsets_100_105
from jobs.pipelines.registry import OWN, BrokenPipelineError, UnknownPipelineError, find_pipeline
from jobs.showing.graph import render_graph

ROOT = Path(__file__).resolve().parents[3]
SPLITS = [SplitId(origin) for origin in ("EWR", "JFK", "LGA")]


@pytest.fixture(scope="module")
def planned():
    """Return the demo's plan, as if its input existed."""
    return plan(flights.build(Path("nowhere"))).with_splits({VertexId("flights"): SPLITS, VertexId("weather"): SPLITS})


def test_the_demo_is_planned_as_documented(planned) -> None:
    """It has two sources, two bronze vertices, a silver one with two inputs, and two gold ones."""
    assert [
        ("flights", VertexKind.SOURCE, 3),
        ("bronze_flights", VertexKind.STATELESS, 1),
        ("weather", VertexKind.SOURCE, 3),
        ("bronze_weather", VertexKind.STATELESS, 1),
        ("silver_flights", VertexKind.KEYED, 2),
        ("delays_by_route", VertexKind.KEYED, 2),
        ("delays_by_wind", VertexKind.KEYED, 2),
    ] == [(vertex.id, vertex.kind, vertex.parallelism) for vertex in planned.graph.vertices]
    assert [
        "flights->bronze_flights:0",
        "weather->bronze_weather:0",
        "bronze_flights->silver_flights:0",
        "bronze_weather->silver_flights:1",
        "silver_flights->delays_by_route:0",
        "silver_flights->delays_by_wind:0",
    ] == [str(edge) for edge in planned.graph.edges]


def test_the_demo_writes_these_tables(planned) -> None:
    """Bronze, quarantine, silver, gold, and the state of each operator."""
    assert [
        ("bronze/flights", TableMode.APPEND, (), False),
        ("quarantine/flights", TableMode.APPEND, (), False),
        ("bronze/weather", TableMode.APPEND, (), False),
        ("silver/flights", TableMode.APPEND, (), True),
        ("_tidemark/flights/state/silver_flights", TableMode.STATE, ("origin", "time_hour"), False),
        ("gold/delays_by_route", TableMode.UPSERT, ("carrier", "dest"), False),
        ("_tidemark/flights/state/delays_by_route", TableMode.STATE, ("carrier", "dest"), False),
        ("gold/delays_by_wind", TableMode.UPSERT, ("wind_band",), False),
        ("_tidemark/flights/state/delays_by_wind", TableMode.STATE, ("wind_band",), False),
    ] == [(table.name, table.mode, table.keys, table.judged) for table in planned.graph.tables()]
    assert {table.name for table in planned.graph.tables()} == set(planned.table_schemas)


def test_the_demo_keeps_these_columns(planned) -> None:
    """Bronze has the input's columns with split and position.

    Silver has the flight's columns, and four of the weather's.
    """

    def columns(table: str) -> list[str]:
        return planned.table_schemas[TableName(table)].names

    own = list(flights.FLIGHTS.names)
    assert 19 == len(own)
    assert [*own, "_split", "_position"] == columns("bronze/flights")
    assert [*own, "_split", "_position", "_failed"] == columns("quarantine/flights")
    assert [*own, "temp", "wind_speed", "precip", "visib"] == columns("silver/flights")
    assert ["carrier", "dest", "flights", "arr_delay_sum", "arr_delay_max"] == columns("gold/delays_by_route")
    assert ["wind_band", "flights", "arr_delay_sum"] == columns("gold/delays_by_wind")
    assert ["_key_group", "origin", "time_hour", "right", "waiting", "_deleted"] == columns(
        "_tidemark/flights/state/silver_flights"
    )


def test_the_demo_checkpoints_by_the_rows_of_flights(planned) -> None:
    """The weather is capped, so that both sources are read to the end in the same number of epochs."""
    assert (12_000, ("flights",), 4_000, 3) == (
        planned.config.every_rows,
        planned.config.rows_of,
        planned.config.slice_rows_max,
        planned.config.retained,
    )
    assert {"weather": 1_000} == planned.rows_per_epoch
    epochs = -(-336_776 // 12_000)
    assert 24 <= epochs
    assert 26_115 <= epochs * 1_000


def test_explaining_shows_channels_and_tables(planned) -> None:
    """Channels are counted by upstream subtasks. A table's columns and its suite are named."""
    console = Console(record=True, width=200, file=StringIO())
    console.print(render_graph(planned))
    text = console.export_text()
    assert f"flights  source of 3 splits: {', '.join(SPLITS)}" in text
    assert "input 0: flights  3 channels of lazy slices\n" in text
    assert "input 0: bronze_flights  1 channel of files, exchanged by origin, time_hour" in text
    assert "input 1: bronze_weather  1 channel of files, exchanged by origin, time_hour" in text
    assert "silver/flights  append, 23 columns, judged at every barrier by suite silver_flights" in text
    assert "gold/delays_by_wind  upsert by wind_band, 3 columns" in text


def test_explaining_needs_neither_spark_nor_great_expectations() -> None:
    """No session is opened and no judge imported, so it is fast."""
    program = """
import sys
from pathlib import Path
from jobs.pipelines.registry import find_pipeline
from jobs.planner import plan
from jobs.showing.graph import render_graph
render_graph(plan(find_pipeline("flights", Path("nowhere"))))
from pyspark.sql import SparkSession
print(SparkSession.getActiveSession(), sorted({"great_expectations", "deltalake", "dagster"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "None []" == done.stdout.strip()


# ------------------------------------------------------------------ the worked example


def polled(source, split: str, position: int, rows: int = 25) -> int | None:
    """Return where a poll of at most `rows` from `position` ends, or None if there were no rows."""
    piece = source.poll(PollSource(VertexId("numbers"), SplitId(split), str(position) if position else None, rows))
    return None if piece is None else int(piece.end)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not let any split wait for the others."""
    monkeypatch.setattr(offsets_100_105, "SECOND_WAVE_S", 0)


@pytest.mark.usefixtures("impatient")
def test_no_split_passes_barrier_1_before_all_have_reached_it() -> None:
    """At barrier 1, the fast split is at 105 and the slow one at 100, whatever the order of the polls (I1)."""
    source = plan(offsets_100_105.build(Path())).sources[VertexId("numbers")]
    assert [25, 50, 75, 100, 105, None] == [polled(source, "fast", start) for start in (0, 25, 50, 75, 100, 105)]
    assert [1, 2, 100] == [polled(source, "slow", start) for start in (0, 1, 99)]
    assert [130, 101] == [polled(source, "fast", 105), polled(source, "slow", 100)]


@pytest.mark.usefixtures("impatient")
def test_after_a_restore_at_the_barrier_both_splits_go_on() -> None:
    """A new source learns from the positions that the first wave has ended."""
    source = plan(offsets_100_105.build(Path())).sources[VertexId("numbers")]
    assert [None, 101, 130, None] == [
        polled(source, "fast", 105),
        polled(source, "slow", 100),
        polled(source, "fast", 105),
        polled(source, "slow", 200),
    ]


def test_barrier_1_comes_when_both_splits_have_reached_it() -> None:
    """100 and 105 records are 205."""
    assert 205 == offsets_100_105.CONFIG.every_rows


# ------------------------------------------------------------------ finding


@pytest.mark.parametrize("name", sorted(OWN))
def test_the_shipped_pipelines_are_found_by_name_and_can_be_planned(name: str) -> None:
    """A pipeline has the name under which it is found."""
    assert name == plan(find_pipeline(name, Path("nowhere"))).job


def test_a_pipeline_is_found_by_module_and_attribute(tmp_path, monkeypatch) -> None:
    """The attribute is a pipeline, or a function that builds one from the data folder."""
    (tmp_path / "mine.py").write_text(
        "from jobs.pipeline import Pipeline\nready = Pipeline('ready')\ndef build(data): return Pipeline(data.name)\n"
        "answer = 42\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "ready" == find_pipeline("mine:ready", Path("x")).name
    assert "x" == find_pipeline("mine:build", Path("x")).name
    with pytest.raises(UnknownPipelineError, match=r"answer must be a Pipeline.* gave a int"):
        find_pipeline("mine:answer", Path("x"))
    with pytest.raises(UnknownPipelineError, match="module mine has no 'nope': it has Pipeline, answer, build, ready"):
        find_pipeline("mine:nope", Path("x"))


@pytest.mark.parametrize("reference", ["nothere", "flight"])
def test_an_unknown_name_is_refused_with_the_known_ones(reference: str) -> None:
    """The message also says how a user names a pipeline of his own."""
    with pytest.raises(
        UnknownPipelineError, match=rf"'{reference}': .*there are flights, offsets_100_105; .*module:attribute"
    ):
        find_pipeline(reference, Path())


@pytest.mark.parametrize("module", ["not_there", "not_there.inner", ""])
def test_a_missing_module_is_named(module: str) -> None:
    """The message has no traceback of the import system."""
    with pytest.raises(UnknownPipelineError, match=f"there is no module '{module}'"):
        find_pipeline(f"{module}:build", Path())


def test_an_error_inside_a_pipelines_module_is_reported_as_it_is(tmp_path, monkeypatch) -> None:
    """A broken module is not reported as a missing one."""
    (tmp_path / "broken.py").write_text("import not_installed_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BrokenPipelineError, match=r"not_installed_at_all.*broken\.py, line 1"):
        find_pipeline("broken:build", Path())
