"""Joins in time on real Spark: kills and another parallelism change neither rows nor late rows.

`judge` replays the cuts. It takes each epoch's rows from the bronze tables, and computes the watermark from the rows of
earlier epochs.
"""

from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random

import polars as pl
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from tidemark import FileSource, Pipeline, as_of, join
from tidemark.testing import Trial

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

BEGIN = datetime(2026, 3, 28, 12, tzinfo=UTC)
MS = timedelta(milliseconds=1)
DELAY, BEFORE, AFTER = timedelta(minutes=10), timedelta(minutes=5), timedelta(hours=1)
ROWS = StructType([StructField("at", TimestampType()), StructField("user", StringType()), StructField("n", LongType())])
KINDS = ("clicks", "payments")
ROUNDS = 3


def declared(data, within=("-5m", "1h")):
    pipeline = Pipeline("shop", parallelism=2)

    def rows(kind, **names):
        stream = pipeline.source(kind, FileSource(data / kind, ROWS))
        return (
            stream.event_time("at", delay="10m")
            .table(f"bronze/{kind}", id=f"bronze_{kind}")
            .rename(names)
            .key_by("user")
        )

    clicks, payments = rows("clicks"), rows("payments", at="paid_at", n="amount")
    join(clicks, payments, "paid", how="left", within=within, late="late/paid").table("gold/paid")
    as_of(clicks, payments, "last", late="late/last").table("gold/last")
    return pipeline


def build(data):
    return declared(data)


def wider(data):
    return declared(data, ("-5m", "2h"))


def deliver(trial, place):
    """Deliver rows whose times advance by three minutes. One in eight is up to three hours late."""
    for kind in KINDS:
        draw, found = Random(f"{kind} {place}"), []  # noqa: S311 - no secret
        for n in range(40 * place, 40 * place + 40):
            back = draw.randrange(180) if draw.random() < 0.125 else draw.randrange(10)
            found.append(
                {"at": BEGIN + timedelta(minutes=3 * n - back, seconds=n), "user": draw.choice("abcdef"), "n": n}
            )
        trial.deliver(f"{kind}/one", pl.DataFrame(found, schema_overrides={"n": pl.Int64}))


def tables(trial):
    last = trial.cuts.latest()
    return {name: sorted(map(str, pl.from_arrow(last.arrow(name)).rows())) for name in last.tables}


def judge(trial):
    """Compare both joins and their late rows with a batch join of the rows that were not late at their cuts."""
    rows, passed, late, last_of = {kind: {} for kind in KINDS}, None, {kind: set() for kind in KINDS}, {}
    for cut in trial.cuts.all():
        new = []
        for kind in KINDS:
            for at, user, n in pl.from_arrow(cut.arrow(f"bronze/{kind}")).select("at", "user", "n").rows():
                if n not in rows[kind]:
                    rows[kind][n] = (at, user)
                    new.append((kind, n))
        for kind, n in new:
            if passed is not None and rows[kind][n][0] <= passed:
                late[kind].add(n)
        passed = min(max(at for at, _ in rows[kind].values()) for kind in KINDS) - DELAY - MS
        for n, (at, user) in rows["clicks"].items():
            if n not in last_of and n not in late["clicks"] and at <= passed:
                versions = [
                    (since, amount) for amount, (since, of) in rows["payments"].items() if of == user and since <= at
                ]
                last_of[n] = max(versions, default=(None, None))[1]
    cut = trial.cuts.latest()
    for name in ("paid", "last"):
        said = pl.from_arrow(cut.arrow(f"late/{name}"))
        found = {kind: said.filter(late_side=side)[column].to_list() for kind, side, column in SIDES}
        assert {kind: sorted(late[kind]) for kind in KINDS} == {kind: sorted(each) for kind, each in found.items()}
        assert all(found.values())
    clicks, payments = ({n: row for n, row in rows[kind].items() if n not in late[kind]} for kind in KINDS)
    pairs = [
        (n, amount)
        for n, (at, user) in clicks.items()
        for amount, (paid, of) in payments.items()
        if user == of and -BEFORE <= paid - at <= AFTER
    ]
    alone = [(n, None) for n, (at, _) in clicks.items() if n not in dict(pairs) and at + AFTER <= passed]
    shown = pl.from_arrow(cut.arrow("gold/paid")).select("n", "amount").rows()
    assert Counter([*pairs, *alone]) == Counter(shown)
    assert alone
    assert last_of == dict(pl.from_arrow(cut.arrow("gold/last")).select("n", "amount").rows())


SIDES = (("clicks", "left", "n"), ("payments", "right", "amount"))


@pytest.mark.kill
def test_joins_and_late_rows_of_killed_ticks_are_those_of_a_replay_over_the_cuts(tmp_path):
    """Each tick has another parallelism. A pipeline with another time range is refused before it claims the job."""
    trial = Trial(build, tmp_path)
    for place, parallelism in enumerate((2, 3, 1)):
        deliver(trial, place)
        if place == 1:
            trial.kill("before:AppendRow#1", spark_cores=1, parallelism=parallelism)
        trial.run(retained=9, parallelism=parallelism)
    judge(trial)
    newest = trial.cuts.latest().checkpoint
    other = Trial(wider, tmp_path)
    deliver(other, ROUNDS)
    with pytest.raises(Exception, match=r"'paid'.*-5m.*1h.*is now.*-5m.*2h"):
        other.run()
    assert newest == trial.cuts.latest().checkpoint
