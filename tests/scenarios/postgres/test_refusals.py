"""Tests the refusals of PostgresChanges: each is one sentence that names what is wrong and what to do."""

import copy
import io
import os
import re
import shutil
import subprocess
import sys
import traceback
from pathlib import Path

import polars as pl
import psycopg
import pytest

from checkpointing.identifiers import VertexId
from jobs.cli.main import execute
from jobs.doctor.examination import input_sections
from jobs.sources.port import SourceError
from jobs.sources.postgres.changes import PostgresChanges
from tests.postgres_server import SETTINGS, PostgresServer
from tests.scenarios.guides.test_guides import blocks, write
from tests.scenarios.postgres.reading import SPLIT, all_rows, polled
from tidemark import Cuts

CANARY = "s3cret-canary"


def refused(words, call, *arguments):
    """Return the message of a refusal, and assert that it is one line with these words."""
    with pytest.raises(SourceError, match=words) as found:
        call(*arguments)
    assert "\n" not in str(found.value)
    return str(found.value)


def test_an_unfit_publication_is_refused(bank):
    refused("CREATE PUBLICATION nowhere FOR TABLE", bank.source(publication="nowhere").schema)
    refused("ALTER PUBLICATION bank ADD TABLE public.nowhere", bank.source(tables=["public.nowhere"]).schema)
    bank.sql("CREATE PUBLICATION empty")
    refused("ALTER PUBLICATION empty ADD TABLE", bank.source(publication="empty").schema)
    bank.sql("CREATE TABLE keyless (n int); ALTER PUBLICATION bank ADD TABLE keyless")
    refused("ALTER TABLE public.keyless REPLICA IDENTITY FULL", bank.source().schema)
    bank.sql("ALTER TABLE keyless REPLICA IDENTITY FULL")
    assert bank.source().schema()


DECLARED = {"public.savings": "id int, balance int", "public.giro": "id int, balance int, note string"}


def test_a_declared_source_is_built_without_its_server_and_reads_what_is_declared(bank):
    """Its tables have the declared order at once. Without a declaration, the error of building says what is missing."""
    nobody = f"postgresql://postgres@127.0.0.1:1/{bank.name}"
    refused("With schema= the pipeline is built without it", bank.source(url=nobody).schema)
    away, here = bank.source(url=nobody, schema=DECLARED), bank.source(schema=DECLARED)
    assert ["public_savings", "public_giro"] == away.schema().names[-2:]
    step, columns = away.of("public.giro")
    assert callable(step)
    assert {"id": "int", "balance": "int", "note": "string"} == {
        field.name: field.dataType.simpleString() for field in columns.fields[-3:]
    }
    assert 20 == polled(here).rows
    assert away.schema() == here.schema() == bank.source(url=nobody).schema()


def test_another_table_than_the_declared_one_is_refused_with_the_text_to_write(bank):
    """The first poll compares the table with the declaration. So does building, once there are staged files."""
    for wrong in ("id int, balance bigint, note string", "id int, note string, balance int", "id int, balance int"):
        source = bank.source(schema=DECLARED | {"public.giro": wrong})
        refused("write {'public.giro': 'id int, balance int, note string'}", polled, source)
    polled(bank.source(schema=DECLARED))
    refused("gives table public.giro other columns", bank.source(schema=DECLARED | {"public.giro": "id int"}).schema)
    for unfit in ({"giro": "id int"}, {"public.giro": "id tinyint"}, {"public.giro": "id int, at struct<a: int>"}):
        refused("schema=", lambda unfit=unfit: bank.source(schema=unfit))


def test_an_unfit_slot_is_refused(bank):
    """The slot is physical, belongs to another database, or has a name that PostgreSQL does not allow."""
    bank.sql("SELECT pg_create_physical_replication_slot('physical_one')")
    refused("slot physical_one is physical", polled, bank.source(slot="physical_one"))
    bank.sql("SELECT pg_drop_replication_slot('physical_one')")
    with psycopg.connect(bank.server.url(), autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot('elsewhere', 'pgoutput')")
        refused("belongs to database postgres", polled, bank.source(slot="elsewhere"))
        connection.execute("SELECT pg_drop_replication_slot('elsewhere')")
    refused("lower-case letters", lambda: bank.source(slot="My-Slot"))


def test_a_missing_or_moved_slot_is_refused(bank):
    """The changes in between are lost, and the source does not skip them silently."""
    source = bank.source()
    position = polled(source).end
    source._staging.close()
    bank.sql("UPDATE giro SET balance = 1 WHERE id = 1")
    bank.sql("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", f"{bank.name}_slot")
    refused("by another program", polled, bank.source(), position)
    bank.sql("SELECT pg_drop_replication_slot(%s)", f"{bank.name}_slot")
    refused("is gone, and with it the changes since", polled, bank.source(), position)


def test_the_doctor_finds_a_slot_that_is_gone(bank):
    """The doctor finds this even while staged changes wait to be read, since later changes are lost."""
    source = bank.source()
    position = polled(source).end
    bank.sql("UPDATE giro SET balance = 1 WHERE id = 1")
    assert 1 == polled(source, position).rows
    source.close()
    bank.sql("SELECT pg_drop_replication_slot(%s)", f"{bank.name}_slot")
    (section,) = input_sections(lambda: {VertexId("bank"): source}, ())
    (found,) = section.findings
    assert f"slot {bank.name}_slot is gone, and with it the changes since" in found.what
    ((_, shown),) = section.seen
    assert "21 rows unread" in shown


def test_a_folder_of_another_origin_or_with_a_gap_is_refused(bank):
    source = bank.source()
    position = polled(source).end
    for number in (1, 2):
        bank.sql("UPDATE giro SET balance = %s WHERE id = 1", number)
        position = polled(source, position).end
    bank.sql("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", f"{bank.name}_other")
    refused("has changes of slot", polled, bank.source(slot=f"{bank.name}_other"), position)
    refused("name the same tables", bank.source(tables=["public.giro"]).schema)
    files = sorted((bank.staged / "changes").iterdir())
    aside = bank.staged / "aside"
    files[1].rename(aside)
    refused("put the missing files", polled, bank.source(), position)
    aside.rename(files[1])
    refused("has other changes before row 21", polled, bank.source(), position.replace('"row":22', '"row":21'))
    refused("before the checkpoint's position", polled, bank.source(), position.replace('"row":22', '"row":29'))
    refused("is not a position of PostgreSQL changes", polled, bank.source(), "17")
    files[2].write_bytes(b"PAR1")
    refused("is not a file of PostgreSQL changes", polled, bank.source(), position)
    shutil.rmtree(bank.staged)
    refused("is gone, and with it the snapshot", polled, bank.source(), '{"row":5}')


def test_a_changed_table_is_refused(bank):
    """A new column fails with its name, or is ignored if the user says so. Other changes are always refused."""
    source = bank.source()
    position = polled(source).end
    bank.sql("ALTER TABLE giro ADD COLUMN tag text; UPDATE giro SET tag = 'x' WHERE id = 1")
    refused("has the new column tag", polled, source, position)
    refused("has the new column tag", polled, bank.source(), position)
    ignoring = bank.source(new_columns="ignore")
    assert {"id", "balance", "note"} == set(all_rows(ignoring, position)["public_giro"][0])
    bank.sql("ALTER TABLE giro ALTER balance TYPE bigint; UPDATE giro SET balance = 7 WHERE id = 1")
    refused("column balance of table public.giro has another type", all_rows, ignoring, position)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            "ALTER TABLE giro DROP COLUMN note; UPDATE giro SET balance = 0",
            "column note of table public.giro was dropped",
        ),
        ("ALTER TABLE giro RENAME note TO remark; UPDATE giro SET balance = 0", "was dropped, renamed"),
        ("ALTER TABLE giro RENAME TO current; UPDATE current SET balance = 0", "any more, or was renamed"),
        ("ALTER PUBLICATION bank DROP TABLE giro", "table public.giro is not in publication bank any more"),
        (
            """DROP TABLE giro; CREATE TABLE giro (id int PRIMARY KEY, balance int, note text);
            ALTER PUBLICATION bank ADD TABLE giro; INSERT INTO giro VALUES (1, 1, '')""",
            "was dropped and created again",
        ),
        ("DROP PUBLICATION bank", "is not in publication bank any more"),
    ],
)
def test_a_table_that_cannot_be_followed_is_refused(bank, change, words):
    source = bank.source()
    position = polled(source).end
    bank.sql(change)
    refused(words, polled, source, position)
    refused(words, polled, bank.source(new_columns="ignore"), position)


def test_a_value_without_a_spark_type_is_refused(bank):
    """The message names table and column. On request the value is read as null."""
    bank.sql("CREATE TABLE days (id int PRIMARY KEY, at timestamptz); ALTER PUBLICATION bank ADD TABLE days")
    source = bank.source(tables=["public.days"])
    assert None is polled(source)
    bank.sql("INSERT INTO days VALUES (1, 'infinity'), (2, '2026-01-01+00'), (3, '0044-03-15 BC')")
    refused("table public.days, column at: 'infinity' is no value of Spark's type timestamp", polled, source)
    rows = all_rows(bank.source(tables=["public.days"], unfit="null"))["public_days"].struct.field("at")
    assert [None, "2026-01-01 00:00:00+00:00", None] == [at and str(at) for at in rows.to_list()]


def test_a_missing_server_is_refused(bank, monkeypatch):
    """The message names the place without user and password. A missing environment variable is named too."""
    url = f"postgresql://alice:{CANARY}@127.0.0.1:1/bank"
    assert CANARY not in refused("127.0.0.1:1/bank cannot be reached", bank.source(url=url).schema)
    refused("the environment variable BANK_URL is not set", bank.source(url="env:BANK_URL").schema)
    monkeypatch.setenv("BANK_URL", bank.server.url(bank.name))
    assert bank.source(url="env:BANK_URL").schema()


def test_a_missing_server_is_no_fault_of_the_pipeline(bank, tmp_path, capsys):
    """A command reports that the server is away. It does not ask the user to correct the pipeline's code."""
    (tmp_path / "lost.py").write_text(
        "from tidemark import Pipeline, PostgresChanges\n"
        "def build(data):\n"
        "    pipeline = Pipeline('lost')\n"
        "    changes = PostgresChanges('postgresql://a@127.0.0.1:1/b', 'p', 's', ['t'], staged=f'{data}/s')\n"
        "    pipeline.source('changes', changes).table('bronze/t', id='bronze')\n"
        "    return pipeline\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        execute(["doctor", "lost:build", "--data", str(tmp_path), "--warehouse", str(tmp_path / "warehouse")])
    finally:
        sys.path.remove(str(tmp_path))
    said = capsys.readouterr().err
    assert "PostgreSQL at 127.0.0.1:1/b cannot be reached" in said
    assert "could not be built" not in said


@pytest.mark.dear
def test_a_server_without_logical_decoding_is_refused():
    server = PostgresServer(SETTINGS.replace("logical", "replica", 1))
    try:
        source = PostgresChanges(server.url(), "bank", "slot", staged=server.folder / "staged")
        refused("ALTER SYSTEM SET wal_level = 'logical'", source.schema)
    finally:
        server.close()


def test_a_user_without_replication_rights_is_refused(bank):
    """The message contains the server's own error message."""
    bank.sql(f"CREATE ROLE {bank.name}_reader LOGIN")
    bank.sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {bank.name}_reader")
    source = bank.source(url=bank.server.url(bank.name, f"{bank.name}_reader"))
    refused("permission denied", polled, source)


def test_the_password_leaves_the_source_nowhere(bank, caplog):
    """The password is in no file, error, error's cause, representation or log.

    The source cannot be pickled or copied.
    """
    bank.sql(
        f"DO $$ BEGIN CREATE ROLE guarded LOGIN SUPERUSER PASSWORD '{CANARY}'; EXCEPTION WHEN others THEN NULL; END $$"
    )
    source = bank.source(url=bank.server.url(bank.name, f"guarded:{CANARY}"))
    position = polled(source).end
    bank.sql("UPDATE giro SET balance = 1 WHERE id = 1")
    source.notify_checkpoint_complete(1, {SPLIT: polled(source, position).end})
    told = io.StringIO()
    wrong = [bank.server.url(bank.name, f"guarded:{CANARY}wrong"), f"postgres//{CANARY}", f"host=x {CANARY}"]
    for url in wrong:
        try:
            bank.source(url=url, staged=bank.staged / "x").schema()
        except SourceError:
            traceback.print_exc(file=told)
        else:
            raise AssertionError(url)
    for dump in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="stays in its process"):
            dump(source)
    shown = [told.getvalue(), repr(source), repr(source._reading), str(vars(source)), caplog.text]
    files = [path.read_bytes() for path in bank.staged.rglob("*") if path.is_file()]
    assert files
    assert [] == [text for text in shown if CANARY in text]
    assert [] == [content for content in files if CANARY.encode() in content]


@pytest.mark.parametrize("name", ["_LSN", "_kind", "_position"])
def test_a_column_that_is_called_like_one_of_each_change_is_refused(tmp_path, name):
    """The message names the table and two ways out. The struct column of the table still contains the column."""
    source = PostgresChanges("env:URL", "p", "s", staged=tmp_path, schema={"public.t": f"id int, {name} string"})
    refused(
        f"public.t: its column '{name}' has the name of a column .* from the column public_t", source.of, "public.t"
    )
    assert name in source.schema()["public_t"].dataType.names


# ------------------------------------------------------------------
# Tests the PostgreSQL guide on a real server.


GUIDE = Path(__file__).resolve().parents[3] / "docs/guides/postgres.md"
TRANSFER = """
UPDATE giro SET balance = balance - 30 WHERE id = 1;
UPDATE savings SET balance = balance + 30 WHERE id = 2;
"""


@pytest.mark.dear
@pytest.mark.spark
def test_the_guide_works(bank, tmp_path):
    bank.sql("DROP PUBLICATION bank; DROP TABLE giro, savings")
    bank.sql(re.search(r"^```\n(CREATE TABLE.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)[1])
    for block in blocks(GUIDE):
        write(block, tmp_path)
    environment = os.environ | {"BANK_URL": bank.server.url(bank.name), "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}

    def done(*words):
        return subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        ).stdout

    done("-m", "tidemark", "run", "bank.pipeline:build")
    assert "1000.00" == done("bank/balance.py").strip()
    bank.sql(TRANSFER)
    done("-m", "tidemark", "run", "bank.pipeline:build")
    assert "1000.00" == done("bank/balance.py").strip()
    assert "is caught up" in done("-m", "tidemark", "run", "bank.pipeline:build")
    done("-m", "tidemark", "run", "bank.history:build")
    bank.sql("UPDATE giro SET id = 6 WHERE id = 5")
    done("-m", "tidemark", "run", "bank.history:build")
    cut = Cuts(tmp_path / "warehouse", "history").latest()
    assert {*bank.sql("SELECT id, balance FROM giro")} == {*cut.polars("silver/accounts").collect().rows()}
    ended = cut.polars("silver/account_versions").filter(~pl.col("current")).collect()
    assert [5] == ended["id"].to_list()
    assert 6 == cut.polars("gold/balances").select(pl.col("versions").sum()).collect().item()
