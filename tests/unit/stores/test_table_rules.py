"""Other writers may change a table. Each forbidden change is named with its way out."""

import pytest

from checkpointing.graph import TableMode
from jobs.warehouse.table_rules import (
    Column,
    TableShape,
    advice,
    problems_of,
    refused_for_good,
)

DECLARED = (Column("k", "string", nullable=True), Column("v", "long", nullable=True))


def _shape(**changes: object) -> TableShape:
    plain = {"features": frozenset(), "properties": frozenset(), "columns": DECLARED, "partitioned_by": ()}
    return TableShape(**(plain | changes))  # type: ignore[arg-type]


def _texts(shape: TableShape, mode: TableMode, by: tuple[str, ...] = ()) -> list[str]:
    return [f"{found.what}: {found.way_out}" for found in problems_of(shape, DECLARED, mode, "/w/t", by)]


@pytest.mark.parametrize("mode", TableMode)
def test_a_table_made_by_tidemark_has_no_problem(mode: TableMode) -> None:
    """Nothing in it is foreign."""
    features = frozenset({"appendOnly", "invariants", "changeDataFeed", "v2Checkpoint", "deletionVectors"})
    assert [] == _texts(_shape(), mode)
    assert [] == _texts(_shape(features=features), mode)


@pytest.mark.parametrize(
    ("feature", "way_out"),
    [
        ("rowTracking", "DROP FEATURE rowTracking"),
        ("domainMetadata", "DROP FEATURE domainMetadata"),
        ("inCommitTimestamp", "DROP FEATURE inCommitTimestamp"),
        ("columnMapping", "DROP FEATURE columnMapping TRUNCATE HISTORY"),
        ("clustering", "cannot drop it"),
        ("somethingNew", "DROP FEATURE somethingNew"),
    ],
)
def test_a_feature_that_forbids_publishing_is_named(feature: str, way_out: str) -> None:
    """Features that delta-rs refuses or handles wrongly stop every mode. So do unknown features."""
    for mode in TableMode:
        (text,) = _texts(_shape(features=frozenset({feature})), mode)
        assert text.startswith(f"has the table feature {feature}")
        assert way_out in text


@pytest.mark.parametrize(
    ("changes", "append", "upsert"),
    [
        ({"properties": frozenset({("delta.appendOnly", "true")})}, None, "is append-only"),
        (
            {"properties": frozenset({("delta.constraints.pos", "v > 0")})},
            "check constraint pos",
            "DROP CONSTRAINT pos",
        ),
        ({"properties": frozenset({("delta.columnMapping.mode", "name")})}, "maps columns", "maps columns"),
        ({"partitioned_by": ("k",)}, "is laid out by k", "is laid out by k"),
        ({"columns": (*DECLARED, Column("x", "long", nullable=True))}, None, "column x that the pipeline does not"),
        ({"columns": (*DECLARED, Column("x", "long", nullable=False))}, "column x that may not be null", "column x"),
        ({"columns": DECLARED[:1]}, "no column v (long) any more", "ADD COLUMN v long"),
        ({"columns": (DECLARED[0], Column("v", "string", nullable=True))}, "column v as string", "writes long"),
        ({"columns": (DECLARED[0], Column("v", "long", nullable=False))}, "forbids null in column v", "DROP NOT NULL"),
        ({"columns": (DECLARED[0], Column("v", "long", True, "generated column"))}, "computes column v", "computes"),
    ],
)
def test_a_changed_table_goes_on_or_stops_by_name(
    changes: dict[str, object], append: str | None, upsert: str | None
) -> None:
    """An upsert table forbids more than an append table. Each problem names the column or property."""
    for mode, expected in ((TableMode.APPEND, append), (TableMode.UPSERT, upsert), (TableMode.STATE, upsert)):
        texts = _texts(_shape(**changes), mode)
        assert (expected is None) == (texts == [])
        assert expected is None or expected in texts[0]


def test_advice_distinguishes_a_refused_table_from_a_lost_race() -> None:
    """The user is asked to act only if waiting cannot help."""
    unsupported = "Unsupported table features required: [RowTracking]"
    assert refused_for_good(unsupported)
    assert "DROP FEATURE" in advice(unsupported)
    assert "appendOnly" in advice("Delta table is append-only")
    assert not refused_for_good("Failed to commit transaction: 0")
    assert "the next tick tries again" in advice("Failed to commit transaction: 0")


def test_a_table_keeps_its_layout() -> None:
    """The order of the columns counts too."""
    assert [] == _texts(_shape(partitioned_by=("k",)), TableMode.APPEND, ("k",))
    (text,) = _texts(_shape(partitioned_by=("k", "v")), TableMode.UPSERT, ("v", "k"))
    assert "is laid out by k, v, and the pipeline says v, k: a table keeps its partition_by" in text
    (text,) = _texts(_shape(), TableMode.APPEND, ("k",))
    assert "is laid out by no column, and the pipeline says k" in text
