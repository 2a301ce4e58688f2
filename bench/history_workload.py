"""Makes the changes of the accounts whose history P23 keeps, and checks the tables that a program made of them.

Each change adds something to one account's balance, so each change begins a version of the account. The changes go
through all accounts in turn, in a scattered order. An account never changes its branch.
"""

import argparse
import os
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
import psycopg

ACCOUNTS: Final = 100_000
BRANCHES: Final = 50
EPOCH: Final = 50_000
"""The changes of a checkpoint, and of a batch of the peer."""
_STEP: Final = 7_919
_MORE: Final = 999
_TABLES: Final = """
CREATE TABLE accounts (aid int PRIMARY KEY, bid int NOT NULL, balance bigint NOT NULL);
INSERT INTO accounts SELECT n, n % {branches}, 0 FROM generate_series(1, {accounts}) n;
CREATE PUBLICATION bench FOR ALL TABLES;
CREATE PROCEDURE load(changes int) LANGUAGE plpgsql AS $$
BEGIN
  FOR n IN 1..changes LOOP
    UPDATE accounts SET balance = balance + 1 + n % {more} WHERE aid = 1 + (n::bigint * {step}) % {accounts};
    IF n % 10 = 0 THEN COMMIT; END IF;
  END LOOP;
END $$
"""


class WrongHistoryError(RuntimeError):
    """A program's tables differ from the result of the changes, so none of its figures counts."""


def accounts() -> pl.DataFrame:
    """Return the accounts before the first change: (n, aid, bid, balance), with n = 0."""
    aid = np.arange(1, ACCOUNTS + 1, dtype=np.int32)
    return pl.DataFrame({"n": np.zeros(ACCOUNTS, np.int64), "aid": aid, "bid": aid % BRANCHES}).with_columns(
        pl.lit(0, pl.Int64).alias("balance")
    )


def changes(count: int) -> pl.DataFrame:
    """Return the changed rows (n, aid, bid, balance), n from 1 to `count`."""
    n = np.arange(1, count + 1, dtype=np.int64)
    aid = (1 + (n * _STEP) % ACCOUNTS).astype(np.int32)
    frame = pl.DataFrame({"n": n, "aid": aid, "bid": aid % BRANCHES, "more": 1 + n % _MORE})
    return frame.select("n", "aid", "bid", pl.col("more").cum_sum().over("aid").alias("balance"))


def lay_out_changes(count: int, root: Path) -> Path:
    """Return a folder with the accounts and a folder `all` of the changes, a file for each epoch."""
    folder = root / f"history-{count}"
    if not (folder / "accounts.parquet").exists():
        (folder / "all").mkdir(parents=True, exist_ok=True)
        for place, epoch in enumerate(changes(count).iter_slices(EPOCH)):
            file = folder / "all" / f"{place:05d}.parquet"
            epoch.write_parquet(file)
            os.utime(file, (place, place))  # Structured Streaming takes the oldest file first
        accounts().write_parquet(folder / "accounts.parquet")
    return folder


def require_history(history: pl.DataFrame, totals: pl.DataFrame, count: int) -> None:
    """Raise WrongHistoryError unless both tables are the result of this many changes.

    `history` has (aid, bid, balance, valid_from, valid_to, current), and each version ends where the next one begins.
    `totals` has (bid, versions, balances) of all versions.
    """
    expected = pl.concat([accounts(), changes(count)]).sort("aid", "n")
    found = history.sort("aid", "valid_from")
    if expected.select("aid", "bid", "balance").rows() != found.select("aid", "bid", "balance").rows():
        raise WrongHistoryError(f"the history has {found.height} versions, not the {expected.height} of the changes")
    ends = pl.col("valid_from").shift(-1).over("aid")
    wrong = found.filter(~(pl.col("valid_to").eq_missing(ends) & (pl.col("current") == ends.is_null())))
    if not wrong.is_empty():
        raise WrongHistoryError(f"{wrong.height} versions do not end where the next one begins")
    summed = expected.group_by("bid").agg(pl.len().alias("versions"), pl.col("balance").sum().alias("balances"))
    if sorted(summed.rows()) != sorted(totals.select("bid", "versions", "balances").rows()):
        raise WrongHistoryError("the totals are not those of the history")


def lay_out_bank(connection: psycopg.Connection) -> None:
    """Create the accounts, and a procedure `load` that makes a given number of changes in transactions of ten."""
    made = _TABLES.format(branches=BRANCHES, accounts=ACCOUNTS, more=_MORE, step=_STEP)
    connection.execute(made.encode())


def arguments(about: str | None) -> argparse.Namespace:
    """Return the arguments of both programs: number of changes, and folders."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--changes", type=int, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--scratch", type=Path)
    return parser.parse_args()
