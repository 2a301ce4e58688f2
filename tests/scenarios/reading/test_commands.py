"""`tidemark cut` and `tidemark state` as a user types them."""

import duckdb
import pytest

from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from tests.scenarios.reading.keyed_job import JOB, KeyedJob, ordered


@pytest.fixture
def typed(tmp_path, capsys):
    job = KeyedJob(tmp_path)
    job.epoch({("LAX", 1): (1, [7]), ("SFO", 2): (5, []), (None, 3): (2, [])})
    job.epoch({("LAX", 1): (2, [7, 8]), ("SFO", 2): None}, on_their_way=40)

    def execute_and_show(*words):
        where = ["--warehouse", str(tmp_path)]
        command, *rest = words
        code = execute([command, *rest, *where] if command == "cut" else [command, JOB, *rest, *where])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    execute_and_show.job = job
    return execute_and_show


def cells(text):
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]


def test_the_newest_state_is_a_table_of_real_columns(typed):
    """It has a row for each key, in order.

    A null is shown as such, a list by its first item, and rows in flight too.
    """
    code, out, _ = typed("state", "by_key")
    assert ExitCode.DONE == code
    assert [["null", "3", "2", "[]"], ["LAX", "1", "2", "7 and 1 more"]] == cells(out)
    assert "state of by_key at cut 2 of counts" in out
    assert "40 rows in flight to by_key belong to this cut and are not in the state yet" in out


def test_an_older_state_and_single_keys_can_be_asked_for(typed):
    """By number, by time, by every key column. The output says what the limit left out."""
    assert [["SFO", "2", "5", "[]"]] == cells(typed("state", "by_key", "--at", "1", "--key", "place=SFO")[1])
    at = ["--at", "1970-01-01T00:00:01.500Z"]
    assert [["LAX", "1", "1", "[7]"]] == cells(typed("state", "by_key", *at, "--key", "place=LAX", "--key", "day=1")[1])
    assert [] == cells(typed("state", "by_key", "--key", "place=SFO")[1])
    out = typed("state", "by_key", "--at", "1", "--limit", "2")[1]
    assert 2 == len(cells(out))
    assert "2 of 3 keys: --limit shows more" in out


def test_without_an_operator_those_with_state_are_listed(typed):
    assert [["by_key", "place, day", "rows, seen", "2"]] == cells(typed("state")[1])


def test_the_printed_query_is_all_that_duckdb_needs(typed):
    code, out, err = typed("state", "by_key", "--sql", "duckdb", "--at", "1")
    assert (ExitCode.DONE, "") == (code, err)
    assert typed.job.model[1] == ordered(duckdb.connect().sql(out).fetchall())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "state by_key --key LAX",
            "the key of by_key is place, day; write --key place=VALUE --key day=VALUE",
        ),
        ("state by_key --key day=x", "--key day=x: day of by_key is Int64, and 'x' is none"),
        ("state by_key --key rows=1", "--key rows=1: the key of by_key is place, day"),
        ("state by_key --limit 0", "'tidemark state --help' shows what can be given"),
    ],
)
def test_what_was_typed_wrong_is_said_with_what_there_is(typed, words, said):
    code, out, err = typed(*words.split())
    assert (ExitCode.USAGE, "", 1) == (code, out, len(err.splitlines()))
    assert said in err


def test_a_cut_by_time_shows_the_versions_of_that_time(typed):
    code, out, _ = typed("cut", JOB, "1970-01-01T00:00:01Z")
    assert (ExitCode.DONE, [["_tidemark/counts/state/by_key", "1"]]) == (code, cells(out))
    assert "tidemark state counts by_key --at 1 --warehouse" in out


def test_a_time_before_the_first_cut_names_the_first_and_the_last(typed):
    code, _, err = typed("cut", JOB, "1969-12-31T00:00:00Z")
    assert ExitCode.NOT_THERE == code
    assert "no cut of counts that is kept was published by 19" in err
    assert "the oldest is cut 1 (19" in err
    assert "the newest cut 2 (19" in err
