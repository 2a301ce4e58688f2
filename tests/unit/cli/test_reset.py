"""What `tidemark reset` says about rows that are read again, and the commands in its messages."""

import pytest
from pyspark.sql.types import LongType, StructType

from checkpointing.identifiers import JobName, SplitId, VertexId
from jobs.cli.change_commands import consequences
from jobs.cli.errors import CommandError, ExitCode, naming_pipeline
from jobs.sources.files.file_position import FilePosition
from jobs.sources.files.file_source import FileSource
from jobs.sources.port import SourceError
from jobs.sources.position_words import PositionWords
from jobs.tick.rollback_plan import SplitBack
from tests.unit.sources.gaps import Gaps

NUMBERS, FILES = VertexId("numbers"), VertexId("files")


class Planned:
    """A plan that moves splits of two sources."""

    job = JobName("shop")

    def __init__(self, *splits):
        self.splits = splits


@pytest.fixture
def words(tmp_path):
    """Return the words of a source that counts its rows, and of one that does not."""
    (tmp_path / "old").mkdir()
    whole = FileSource(tmp_path, StructType().add("n", LongType()), format="csv")
    return PositionWords({NUMBERS: Gaps({"a": (1, 5, 9)}), FILES: whole})


def said(plan, words):
    return [str(line) for line in consequences(plan, words, "shop.pipeline:build")]


def test_rows_that_nobody_can_count_are_not_said_to_be_none(words):
    """The counted ones are said beside them."""
    counted = SplitBack(NUMBERS, SplitId("a"), "p6", None)
    unknown = SplitBack(FILES, SplitId("old"), FilePosition().text(), None)
    first, second, third = said(Planned(counted, unknown), words)
    assert first.startswith("2 rows will be read AGAIN: ")
    assert second.startswith("it is not known how many rows will be read AGAIN or SKIPPED: ")
    assert "to take the tables back too: tidemark rollback shop.pipeline:build N" == third
    assert [second, third] == said(Planned(unknown), words)
    assert [first, third] == said(Planned(counted), words)


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (
            "gone: tidemark reset PIPELINE orders --to start",
            "gone: tidemark reset shop.pipeline:build orders --to start",
        ),
        ("start it with 'tidemark run shop'", "start it with 'tidemark run shop.pipeline:build'"),
        ("tidemark rollback shop 3 --warehouse w", "tidemark rollback shop.pipeline:build 3 --warehouse w"),
        ("tidemark run shop-2, tidemark cut shopping", None),
        ("shop cannot be read", None),
    ],
)
def test_a_command_in_a_message_names_the_pipeline_as_it_was_typed(message, named):
    """Other errors, and jobs whose names only begin alike, stay as they are."""
    with pytest.raises((SourceError, CommandError)) as raised, naming_pipeline("shop.pipeline:build", "shop"):
        raise SourceError(message)
    assert (named or message) == str(raised.value)
    assert (SourceError if named is None else CommandError) is type(raised.value)
    if named is not None:
        assert ExitCode.FAILED is raised.value.code
