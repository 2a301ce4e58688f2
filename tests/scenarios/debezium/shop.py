"""Helps tests of MariaDB and MySQL changes: runs SQL, and makes sources."""

from jobs.sources.debezium.changes import DebeziumSource
from tests.scenarios.postgres.reading import newest

TABLES = (
    "CREATE TABLE giro (id int PRIMARY KEY, balance int NOT NULL, note text)",
    "CREATE TABLE savings (id int PRIMARY KEY, balance int NOT NULL)",
    "INSERT INTO giro VALUES " + ", ".join(f"({each}, 100, 'n{each}')" for each in range(1, 11)),
    "INSERT INTO savings VALUES " + ", ".join(f"({each}, 100)" for each in range(1, 11)),
)
TOTAL = 2_000
"""The sum of both tables, which no transfer changes."""


class Shop:
    """One database, and the sources that read its changes."""

    def __init__(self, server, name, staged):
        self.server, self.name, self.staged = server, name, staged
        self.connection = server.connect()
        self.sql(f"CREATE DATABASE {name} CHARACTER SET utf8mb4", f"USE {name}", *TABLES)
        self.sources = []

    def source(self, **options):
        named = {"tables": ["giro", "savings"], "staged": self.staged} | options
        source = DebeziumSource(named.pop("url", self.server.url(self.name)), **named)
        self.sources.append(source)
        return source

    def sql(self, *texts):
        found = ()
        for text in texts:
            with self.connection.cursor() as cursor:
                cursor.execute(text)
                found = cursor.fetchall()
        return found

    def reconnect(self):
        self.connection = self.server.connect(self.name)

    def table(self, name):
        return dict(self.sql(f"SELECT id, balance FROM {name}"))

    def close(self):
        for source in self.sources:
            source.close()
        self.connection.close()


def balances(rows, shop, table):
    """Return the balance of each account, computed from the change rows."""
    column = f"{shop.name}_{table}"
    renamed = rows.rename({column: f"public_{table}"}).with_columns(rows["_table"].str.replace(shop.name, "public"))
    return {key[0]: row["balance"] for key, row in newest(renamed, table).items()}


def transactions(rows):
    """Return, for each transaction, the kinds of its rows in order."""
    found, newest_one = [], []
    for kind, end in zip(rows["_kind"], rows["_end_lsn"], strict=True):
        newest_one.append(kind)
        if end is not None:
            found.append(newest_one)
            newest_one = []
    assert not newest_one
    return found
