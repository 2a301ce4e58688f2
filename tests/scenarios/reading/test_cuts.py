"""Finding a cut by number and by time, reading its tables, and what is said when there is none."""

import subprocess
import sys

import pytest

from checkpointing.identifiers import InvalidNameError
from jobs.reading import CutGoneError, Cuts, CutUnreadableError, InvalidMomentError, NoSuchCutError, NoSuchTableError
from jobs.tick.at_rest.take_savepoint import savepoint_at_rest
from jobs.warehouse.refusals import NeverRunError
from tests.scenarios.reading.keyed_job import JOB, OPERATOR, KeyedJob
from tests.scenarios.runtime.savepoint_job import at, run
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD
from tests.scenarios.runtime.sequence_job import JOB as NUMBERS


@pytest.fixture
def job(tmp_path):
    """Return a job with cuts 1, 2 and 3, published 1, 2 and 3 seconds after the epoch."""
    counts = KeyedJob(tmp_path)
    for number in (1, 2, 3):
        counts.epoch({("a", number): (number, [])})
    return counts


@pytest.mark.parametrize(
    ("moment", "checkpoint"),
    [
        ("1970-01-01T00:00:01Z", 1),
        ("1970-01-01T00:00:02.999+00:00", 2),
        ("1970-01-01T02:00:03+02:00", 3),
        ("2100-01-01", 3),
    ],
)
def test_a_time_means_the_newest_cut_that_was_published_by_then(job, moment, checkpoint):
    """To the millisecond, in whatever zone it is written."""
    cuts = Cuts(job.root, JOB)
    assert checkpoint == cuts.as_of(moment).checkpoint == cuts.find(moment).checkpoint
    found = cuts.at(checkpoint)
    assert checkpoint == cuts.as_of(found.published_at).checkpoint == found.published_at.timestamp()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "1970-01-01T00:00:00.999Z",
            r"no cut of counts that is kept was published by .*: the oldest is cut 1 \(.*\), ",
        ),
        (
            "9",
            r"checkpoint 9 of counts is not retained: the oldest is cut 1 \(.*\), the newest cut 3 \(.*\); 'retained'",
        ),
    ],
)
def test_a_cut_that_is_not_there_is_answered_with_what_there_is(job, words, said):
    """The answer has the oldest and the newest cut with their times, in a form that can be typed."""
    with pytest.raises(NoSuchCutError, match=said):
        Cuts(job.root, JOB).find(words)


def test_before_its_first_cut_a_job_says_so(tmp_path):
    """A warehouse without the job stays as it is. A job without a cut says how to get one."""
    with pytest.raises(NeverRunError, match=r"counts has never run in .*start it with 'tidemark run counts'"):
        Cuts(tmp_path / "none", JOB).latest()
    assert not (tmp_path / "none").exists()
    job = KeyedJob(tmp_path)
    with pytest.raises(NoSuchCutError, match="counts has published no cut yet: run 'tidemark run counts' until it has"):
        Cuts(tmp_path, JOB).latest()
    assert () == Cuts(tmp_path, JOB).all()
    job.commit({})
    with pytest.raises(NoSuchCutError, match="counts has published no cut yet"):
        Cuts(tmp_path, JOB).at(1)


def test_a_checkpoint_that_is_committed_only_is_not_read(job):
    """The newest readable cut is the newest published one. For the other, the error says how to publish it."""
    job.commit({("a", 1): (9, [])})
    cuts = Cuts(job.root, JOB)
    assert 3 == cuts.latest().checkpoint
    with pytest.raises(NoSuchCutError, match=r"4 of counts is committed, .*'tidemark run counts' rolls it forward"):
        cuts.at(4)


def test_words_and_names_that_mean_nothing_are_refused(job):
    """Before anything is read."""
    with pytest.raises(
        InvalidMomentError, match="'yesterday' names no cut: write a checkpoint id like 7, 'latest', or"
    ):
        Cuts(job.root, JOB).find("yesterday")
    with pytest.raises(InvalidNameError, match=r"job name '\.\./x'"):
        Cuts(job.root, "../x")


def test_a_cut_in_hand_outlives_its_retention_until_its_files_go(tmp_path):
    """A cut that was dropped from `cuts` reads as before. Once clean-up has deleted a file, an error says so."""
    job = KeyedJob(tmp_path, retained=1)
    job.epoch({("a", 1): (1, [])})
    cuts = Cuts(tmp_path, JOB)
    cut = cuts.latest()
    (file,) = job.row.vertices[0].subtasks[0].state
    job.epoch({("a", 1): (2, [])})
    assert [("a", 1, 1, [])] == cut.state(OPERATOR).polars().collect().rows()
    (tmp_path / file.file.path).unlink()
    said = r"cut 1 of counts is no longer retained, .*is missing\): there is only cut 2 \(.*'retained' says how many"
    for read in (cut.polars, cut.arrow):
        with pytest.raises(CutGoneError, match=said):
            read(job.table)
    with pytest.raises(CutGoneError, match=said):
        cut.state(OPERATOR)
    with pytest.raises(NoSuchCutError, match="checkpoint 1 of counts is not retained: there is only cut 2"):
        cuts.at(1)


def test_a_retained_cut_that_has_lost_a_file_is_damaged(job):
    """No clean-up did that: the message names the file and the way out."""
    (file, *_) = job.row.vertices[0].subtasks[0].state
    (job.root / file.file.path).unlink()
    with pytest.raises(CutUnreadableError, match=r"is damaged: table .*by_key.*is missing.*restore the folder"):
        Cuts(job.root, JOB).latest().state(OPERATOR)


def test_a_cut_says_what_it_holds_and_reads_every_table_at_its_version(tmp_path):
    """It has the tables, operators, versions and rows of its checkpoint, though newer ones are published."""
    run(tmp_path, 1)
    cut = Cuts(tmp_path, NUMBERS).latest()
    run(tmp_path, 1)
    savepoint = savepoint_at_rest(at(tmp_path))
    cuts = Cuts(tmp_path, NUMBERS)
    newest = cuts.latest().checkpoint
    assert (("bronze/numbers", "gold/by_key"), ("by_key",)) == (cut.tables, cut.operators)
    assert 1 == cut.checkpoint == cut.version(BRONZE) == cut.versions[GOLD]
    assert [100, 200] == [each.polars(BRONZE).collect().height for each in cuts.all()]
    assert [100, 200] == [each.arrow(BRONZE).num_rows for each in cuts.all()]
    assert 100 == cut.polars(BRONZE).collect().height == sum(cut.arrow(GOLD).column("rows").to_pylist())
    with pytest.raises(
        NoSuchTableError, match="cut 1 of numbers has no table 'gold/x': there are bronze/numbers, gold"
    ):
        cut.version("gold/x")
    with pytest.raises(NoSuchCutError, match=f"savepoint {savepoint.checkpoint} .*or read checkpoint {newest}, after"):
        cuts.at(savepoint.checkpoint)


def test_reading_needs_no_spark_and_writes_nothing(job):
    """A process of its own shows what is imported, and what lies in the warehouse."""
    before = sorted(path for path in job.root.rglob("*"))
    program = (
        "import sys; from jobs.reading import Cuts; cut = Cuts(sys.argv[1], sys.argv[2]).latest();"
        "print(cut.state(cut.operators[0]).polars().collect().height, 'pyspark' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(job.root), JOB], capture_output=True, text=True, check=True
    )
    assert "3 False" == done.stdout.strip()
    assert before == sorted(path for path in job.root.rglob("*"))


def test_a_cut_is_shown_in_a_line_and_without_its_rows(tmp_path):
    """This holds in a notebook and in an error, for a cut, for all cuts of a pipeline, and for a state."""
    job = KeyedJob(tmp_path)
    job.epoch({("LAX", 1): (1, [7])})
    cut = Cuts(tmp_path, JOB).latest()
    assert f"<Cut 1 of counts in {tmp_path}, published 1970-01-01T00:00:01+00:00, 0 tables>" == repr(cut)
    assert f"<Cuts of counts in {tmp_path}>" == repr(Cuts(tmp_path, JOB))
    assert repr(cut.state("by_key")).startswith("<State of by_key at cut 1 of counts: place: ")
    assert 200 > len(repr(cut.state("by_key")))
