"""Compute the answer of each Nexmark query over a whole data set with DuckDB. A stream must end with the same answer.

    python -m bench.nexmark.answers DATA OUT [--only q5,q7]

DATA is a data set of `bench.nexmark.generate`. OUT/q5.parquet is the answer of q5, ordered by all of its columns.
"""

# ruff: noqa: S608 - the texts come from here

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from bench.nexmark.generate import KINDS

STATS = """count(*) AS total_bids,
    count(*) FILTER (price < 10000) AS rank1_bids,
    count(*) FILTER (price >= 10000 AND price < 1000000) AS rank2_bids,
    count(*) FILTER (price >= 1000000) AS rank3_bids"""
DISTINCTS = ",\n    ".join(
    f"count(DISTINCT {column}){condition} AS {name}_{column}s"
    for column in ("bidder", "auction")
    for name, condition in (
        ("total", ""),
        ("rank1", " FILTER (price < 10000)"),
        ("rank2", " FILTER (price >= 10000 AND price < 1000000)"),
        ("rank3", " FILTER (price >= 1000000)"),
    )
)
WON = """SELECT * FROM (
    SELECT a.*, b.auction, b.bidder, b.price, b.dateTime AS bid_dateTime, b.extra AS bid_extra,
        row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.dateTime, b.bidder, b.extra) AS place
    FROM auction a JOIN bid b ON a.id = b.auction AND b.dateTime BETWEEN a.dateTime AND a.expires
) WHERE place = 1"""
HOPS = """SELECT auction, starts, starts + INTERVAL 10 SECOND AS ends, count(*) AS num
    FROM (SELECT auction, unnest([time_bucket(INTERVAL 2 SECOND, dateTime) - INTERVAL (2 * i) SECOND
        FOR i IN range(5)]) AS starts FROM bid) GROUP BY ALL"""
QUERIES: Final = {
    "q0": "SELECT auction, bidder, price, dateTime, extra FROM bid",
    "q1": "SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price, dateTime, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q4": f"SELECT category, avg(price) AS final FROM ({WON}) GROUP BY category",
    "q5": f"""WITH hops AS ({HOPS}) SELECT auction, num, starts, ends FROM hops
        QUALIFY num = max(num) OVER (PARTITION BY starts)""",
    "q6": f"""SELECT seller, id, avg(price) OVER (PARTITION BY seller ORDER BY expires, id
        ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS avg_price FROM ({WON})""",
    "q7": """SELECT auction, price, bidder, dateTime, extra FROM bid
        QUALIFY price = max(price) OVER (PARTITION BY time_bucket(INTERVAL 10 SECOND, dateTime))""",
    "q8": """SELECT DISTINCT p.id, p.name, time_bucket(INTERVAL 10 SECOND, p.dateTime) AS starts
        FROM person p JOIN auction a ON p.id = a.seller
        AND time_bucket(INTERVAL 10 SECOND, p.dateTime) = time_bucket(INTERVAL 10 SECOND, a.dateTime)""",
    "q9": f"SELECT * EXCLUDE (place) FROM ({WON})",
    "q10": """SELECT auction, bidder, price, dateTime, extra, strftime(dateTime, '%Y-%m-%d') AS dt,
        strftime(dateTime, '%H:%M') AS hm FROM bid""",
    "q11": """SELECT bidder, count(*) AS bid_count, min(dateTime) AS starts,
        max(dateTime) + INTERVAL 10 SECOND AS ends FROM (
            SELECT *, sum(new) OVER (PARTITION BY bidder ORDER BY dateTime) AS session FROM (
                SELECT *, CASE WHEN dateTime < lag(dateTime) OVER (PARTITION BY bidder ORDER BY dateTime)
                    + INTERVAL 10 SECOND THEN 0 ELSE 1 END AS new FROM bid)) GROUP BY bidder, session""",
    "q12": "SELECT bidder, count(*) AS bid_count FROM bid GROUP BY bidder",
    "q13": """SELECT auction, bidder, price, dateTime, 'value-' || auction % 10000 AS value FROM bid""",
    "q14": """SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price,
        CASE WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime'
            WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS bidTimeType,
        dateTime, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts
        FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q15": f"SELECT strftime(dateTime, '%Y-%m-%d') AS day, {STATS}, {DISTINCTS} FROM bid GROUP BY ALL",
    "q16": f"""SELECT channel, strftime(dateTime, '%Y-%m-%d') AS day, max(strftime(dateTime, '%H:%M')) AS minute,
        {STATS}, {DISTINCTS} FROM bid GROUP BY channel, day""",
    "q17": f"""SELECT auction, strftime(dateTime, '%Y-%m-%d') AS day, {STATS}, min(price) AS min_price,
        max(price) AS max_price, avg(price) AS avg_price, sum(price)::BIGINT AS sum_price FROM bid GROUP BY ALL""",
    "q18": """SELECT * FROM bid QUALIFY row_number() OVER (
        PARTITION BY bidder, auction ORDER BY dateTime DESC, price DESC, extra) = 1""",
    "q19": """SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, dateTime, bidder, extra)
        AS rank_number FROM bid QUALIFY rank_number <= 10""",
    "q20": """SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.dateTime AS bid_dateTime, b.extra AS bid_extra,
        a.itemName, a.description, a.initialBid, a.reserve, a.dateTime AS auction_dateTime, a.expires, a.seller,
        a.category, a.extra AS auction_extra FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10""",
    "q21": r"""SELECT auction, bidder, price, channel, CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
        WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3' ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END
        AS channel_id FROM bid WHERE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) <> ''
        OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
    "q22": """SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
        split_part(url, '/', 6) AS dir3 FROM bid""",
    "q23": """SELECT b.bidder, b.price, b.channel, b.url, b.extra AS bid_extra, p.id AS person_id, p.name,
        p.emailAddress, p.creditCard, p.city, p.state, p.extra AS person_extra, a.itemName, a.description,
        a.initialBid, a.reserve, a.dateTime AS auction_dateTime, a.expires, a.seller, a.category,
        a.extra AS auction_extra
        FROM bid b JOIN person p ON p.id = b.bidder JOIN auction a ON a.seller = b.bidder""",
}


def answer(data: Path, query: str, db: duckdb.DuckDBPyConnection | None = None, *, bids: str = "") -> pa.Table:
    """Return the answer of a query over the files below `data`. The view `bids` of `db` stands for the bids' files."""
    db = opened(data, db, bids=bids)
    return db.sql(f"SELECT * FROM ({query}) ORDER BY ALL").to_arrow_table()


def number_of_rows(data: Path, query: str) -> int:
    """Return how many rows the answer of a query has."""
    ((rows,),) = opened(data).sql(f"SELECT count(*) FROM ({query})").fetchall()
    return int(rows)


def opened(data: Path, db: duckdb.DuckDBPyConnection | None = None, *, bids: str = "") -> duckdb.DuckDBPyConnection:
    """Return DuckDB with the views `person`, `auction` and `bid`."""
    db = duckdb.connect() if db is None else db
    db.execute("SET TimeZone = 'UTC'")
    for kind in KINDS:
        files = str(data / kind / "*.parquet").replace("'", "''")
        rows = bids if kind == "bid" and bids else f"'{files}'"
        db.execute(f"CREATE VIEW {kind} AS SELECT * FROM {rows}")
    return db


def answers(data: Path, names: Iterable[str]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the answer of each of these queries of the suite."""
    yield from ((name, answer(data, QUERIES[name])) for name in names)


def main() -> None:
    """Write the answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default=",".join(QUERIES))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name, table in answers(given.data, given.only.split(",")):
        pq.write_table(table, given.out / f"{name}.parquet")
        Console().print(f"{name}: {table.num_rows:,} rows", highlight=False)


if __name__ == "__main__":
    main()
