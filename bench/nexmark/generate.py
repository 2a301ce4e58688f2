"""Write a Nexmark data set as Parquet: persons, auctions and bids of an online auction.

    python -m bench.nexmark.generate OUT --events 10_000_000

The proportions and distributions are those of the public benchmark: of 50 events, 1 is a person, 3 are auctions and 46
are bids. The same arguments give the same rows. OUT/person, OUT/auction and OUT/bid get `files` files each, in the
order of event time. Rows may come up to `disorder_ms` out of order, and some bids `late_ms` late or later.
"""

import argparse
import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

Ids = NDArray[np.int64]
PERSONS, AUCTIONS, BIDS = 1, 3, 46
ALL = PERSONS + AUCTIONS + BIDS
FIRST_PERSON, FIRST_AUCTION, FIRST_CATEGORY = 1000, 1000, 10
IN_FLIGHT, ACTIVE, LEAD = 100, 1000, 10
HOT = 100
START_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z"""
STATES = np.array(["AZ", "CA", "ID", "OR", "WA", "WY"])
CITIES = np.array(
    ["Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne"]
)
FIRST_NAMES = np.array(["Ana", "Ben", "Cleo", "Dov", "Eve", "Finn", "Gus", "Hana", "Ivo", "Jun", "Kai"])
LAST_NAMES = np.array(["Arnold", "Becker", "Costa", "Dunn", "Ebner", "Fuchs", "Gallo", "Horn", "Ito"])
HOT_CHANNELS = np.array(["Google", "Facebook", "Baidu", "Apple"])
CHANNELS = 10_000
SIDE_KEYS = 10_000
KINDS = ("person", "auction", "bid")
_SHORTEST = 3
_WARM_UP_FILES = 2
_TIME = pa.timestamp("ms", tz="UTC")


@dataclass(frozen=True, slots=True)
class Extent:
    """How many events there are, how many come in a second of event time, and how they are delivered."""

    events: int = 1_000_000
    rate: int = 10_000
    files: int = 20
    disorder_ms: int = 0
    late: float = 0.0
    late_ms: int = 60_000
    seed: int = 1

    @property
    def horizon_ms(self) -> int:
        """The time in which IN_FLIGHT new auctions open: as many as are in flight at once."""
        return IN_FLIGHT * ALL // AUCTIONS * 1000 // self.rate


def last_person(ids: Ids) -> Ids:
    """Return the newest person (from 0) when each event is made."""
    return ids // ALL * PERSONS + np.minimum(ids % ALL, PERSONS - 1)


def last_auction(ids: Ids) -> Ids:
    """Return the newest auction (from 0) when each event is made, or -1 before the first auction."""
    epoch, offset = ids // ALL, ids % ALL
    before = offset < PERSONS
    number = np.where(before | (offset >= PERSONS + AUCTIONS), AUCTIONS - 1, offset - PERSONS)
    return (epoch - before) * AUCTIONS + number


@dataclass(slots=True)
class Drawn:
    """The random texts and numbers of which the rows are made."""

    extent: Extent
    rng: np.random.Generator = field(init=False)
    letters: str = field(init=False)
    names: pa.Array = field(init=False)
    texts: pa.Array = field(init=False)
    parts: pa.Array = field(init=False)
    hot_urls: NDArray[np.str_] = field(init=False)
    urls: NDArray[np.str_] = field(init=False)
    channels: NDArray[np.str_] = field(init=False)

    def __post_init__(self) -> None:
        """Draw the texts."""
        self.rng = np.random.default_rng(self.extent.seed)
        self.letters = "".join(map(chr, self.rng.integers(97, 123, 1 << 20)))
        self.names, self.texts = self._words(5_000, 20), self._words(5_000, 100)
        self.parts = self._words(3_000, 5, "_")
        self.hot_urls = np.array([self._url() for _ in HOT_CHANNELS])
        self.urls = np.array([self._url() + self._channel(i) for i in range(CHANNELS)])
        self.channels = np.array([f"channel-{i}" for i in range(CHANNELS)])

    def _words(self, size: int, longest: int, filler: str = " ") -> pa.Array:
        letters = np.array(list("abcdefghijklmnopqrstuvwxyz" + filler * 2))
        return pa.array(
            ["".join(self.rng.choice(letters, self.rng.integers(_SHORTEST, longest))).strip() for _ in range(size)]
        )

    def _url(self) -> str:
        path = "/".join(self.parts[int(i)].as_py() for i in self.rng.integers(0, len(self.parts), 3))
        return f"https://www.nexmark.com/{path}/item.htm?query=1"

    def _channel(self, number: int) -> str:
        return f"&channel_id={int(f'{number:032b}'[::-1], 2) & 0x7FFFFFFF}" if self.rng.integers(0, 10) > 0 else ""

    def some(self, of: pa.Array, n: int) -> pa.Array:
        """Return `n` of these texts."""
        return of.take(pa.array(self.rng.integers(0, len(of), n)))

    def prices(self, n: int) -> Ids:
        """Return prices in cents, most of which are low."""
        return np.round(10.0 ** (self.rng.random(n) * 6.0) * 100.0).astype(np.int64)

    def extras(self, n: int, average: int) -> pa.Array:
        """Return texts of `average` characters, up to a fifth more or less."""
        size = max(1, round(average * 0.2))
        lengths = average - size + self.rng.integers(0, 2 * size, n)
        begins = self.rng.integers(0, len(self.letters) - average * 2, n)
        return pa.array([self.letters[b : b + k] for b, k in zip(begins.tolist(), lengths.tolist(), strict=True)])

    def person(self, ids: Ids) -> Ids:
        """Return an active person for each event."""
        people = last_person(ids) + 1
        active = np.minimum(people, ACTIVE)
        return people - active + (self.rng.random(len(ids)) * (active + LEAD)).astype(np.int64)

    def auction(self, ids: Ids) -> Ids:
        """Return an auction in flight for each event."""
        newest = last_auction(ids)
        oldest = np.maximum(newest - IN_FLIGHT, 0)
        return oldest + (self.rng.random(len(ids)) * (newest - oldest + 1 + LEAD)).astype(np.int64)


def _persons(drawn: Drawn, ids: Ids, at: Ids) -> pa.Table:
    rng, n = drawn.rng, len(ids)
    names = np.char.add(np.char.add(rng.choice(FIRST_NAMES, n), " "), rng.choice(LAST_NAMES, n))
    users, hosts = (drawn.some(drawn.parts, n).to_pylist() for _ in range(2))
    return pa.table(
        {
            "id": last_person(ids) + FIRST_PERSON,
            "name": names,
            "emailAddress": [f"{user}@{host}.com" for user, host in zip(users, hosts, strict=True)],
            "creditCard": [" ".join(f"{int(x):04d}" for x in four) for four in rng.integers(0, 10_000, (n, 4))],
            "city": rng.choice(CITIES, n),
            "state": rng.choice(STATES, n),
            "dateTime": pa.array(at, _TIME),
            "extra": drawn.extras(n, 130),
        }
    )


def _auctions(drawn: Drawn, ids: Ids, at: Ids) -> pa.Table:
    rng, n = drawn.rng, len(ids)
    hot = rng.integers(0, 4, n) > 0
    seller = np.where(hot, last_person(ids) // HOT * HOT, drawn.person(ids)) + FIRST_PERSON
    first = drawn.prices(n)
    open_ms = (rng.random(n) * max(drawn.extent.horizon_ms * 2, 1)).astype(np.int64)
    return pa.table(
        {
            "id": last_auction(ids) + FIRST_AUCTION,
            "itemName": drawn.some(drawn.names, n),
            "description": drawn.some(drawn.texts, n),
            "initialBid": first,
            "reserve": first + drawn.prices(n),
            "dateTime": pa.array(at, _TIME),
            "expires": pa.array(at + 1 + open_ms, _TIME),
            "seller": seller,
            "category": FIRST_CATEGORY + rng.integers(0, 5, n),
            "extra": drawn.extras(n, 380),
        }
    )


def _bids(drawn: Drawn, ids: Ids, at: Ids) -> pa.Table:
    rng, n = drawn.rng, len(ids)
    auction = np.where(rng.integers(0, 2, n) > 0, last_auction(ids) // HOT * HOT, drawn.auction(ids))
    bidder = np.where(rng.integers(0, 4, n) > 0, last_person(ids) // HOT * HOT + 1, drawn.person(ids))
    hot = rng.integers(0, 2, n) > 0
    hot_place, place = rng.integers(0, len(HOT_CHANNELS), n), rng.integers(0, CHANNELS, n)
    return pa.table(
        {
            "auction": auction + FIRST_AUCTION,
            "bidder": bidder + FIRST_PERSON,
            "price": drawn.prices(n),
            "channel": np.where(hot, HOT_CHANNELS[hot_place], drawn.channels[place]),
            "url": np.where(hot, drawn.hot_urls[hot_place], drawn.urls[place]),
            "dateTime": pa.array(at, _TIME),
            "extra": drawn.extras(n, 68),
        }
    )


def rows(extent: Extent) -> Iterator[dict[str, pa.Table]]:
    """Yield, for each file, a dict from each kind to its rows in the order of event time."""
    drawn = Drawn(extent)
    bounds = np.linspace(0, extent.events, extent.files + 1).astype(np.int64)
    for first, end in pairwise(bounds):
        ids = np.arange(first, end)
        at, place = START_MS + ids * 1000 // extent.rate, ids % ALL
        of_persons, of_bids = place < PERSONS, place >= PERSONS + AUCTIONS
        of_auctions = ~of_persons & ~of_bids
        yield {
            "person": _persons(drawn, ids[of_persons], at[of_persons]),
            "auction": _auctions(drawn, ids[of_auctions], at[of_auctions]),
            "bid": _bids(drawn, ids[of_bids], at[of_bids]),
        }


def delivered(extent: Extent) -> Iterator[dict[str, pa.Table]]:
    """Yield, for each file, a dict from each kind to its rows as delivered: some out of order, some bids late."""
    rng = np.random.default_rng(extent.seed + 1)
    per_file_ms = max(1, (extent.events // extent.files) * 1000 // extent.rate)
    held: dict[int, list[pa.Table]] = {}
    for number, of_kind in enumerate(rows(extent)):
        late = rng.random(of_kind["bid"].num_rows) < extent.late
        held.setdefault(number + 1 + extent.late_ms // per_file_ms, []).append(of_kind["bid"].filter(pa.array(late)))
        is_last = number == extent.files - 1
        due = [when for when in held if when <= number or is_last]
        come = [table for when in due for table in held.pop(when)]
        of_kind["bid"] = pa.concat_tables([of_kind["bid"].filter(pa.array(~late)), *come])
        yield {kind: _in_disorder(table, extent.disorder_ms, rng) for kind, table in of_kind.items()}


def _in_disorder(table: pa.Table, disorder_ms: int, rng: np.random.Generator) -> pa.Table:
    if not disorder_ms:
        return table
    arrives = table["dateTime"].cast(pa.int64()).to_numpy() + rng.integers(0, disorder_ms + 1, len(table))
    return table.take(pa.array(np.argsort(arrives, kind="stable")))


def lay_out(extent: Extent, root: Path) -> Path:
    """Return the folder with this data set. Write it if it is missing."""
    said = json.dumps(asdict(extent))
    folder = root / f"nexmark-{extent.events}-{hashlib.sha256(said.encode()).hexdigest()[:8]}"
    if not (folder / "complete.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        write(extent, folder)
        (folder / "complete.json").write_text(said)
    return folder


def write(extent: Extent, out: Path) -> None:
    """Write a data set, and the side table of q13."""
    for number, of_kind in enumerate(delivered(extent)):
        for kind, table in of_kind.items():
            (out / kind).mkdir(parents=True, exist_ok=True)
            pq.write_table(table, out / kind / f"{number:05d}.parquet", row_group_size=250_000)
    (out / "value").mkdir(exist_ok=True)
    pq.write_table(side_table(), out / "value" / "00000.parquet")


def first_files(data: Path) -> Path:
    """Return the folder beside a data set with links to the first files of each kind. Make it if it is missing.

    This folder is a data set of its own. Programs run over it first, so that their start is not measured.
    """
    to = data.with_name(f"{data.name}-first")
    for kind in (*KINDS, "value"):
        (to / kind).mkdir(parents=True, exist_ok=True)
        for file in sorted((data / kind).glob("*.parquet"))[:_WARM_UP_FILES]:
            if not (to / kind / file.name).exists():
                (to / kind / file.name).symlink_to(file.absolute())
    return to


def side_table() -> pa.Table:
    """Return the table that does not change: a value for each key from 0 to 9,999."""
    return pa.table({"key": pa.array(range(SIDE_KEYS), pa.int64()), "value": [f"value-{i}" for i in range(SIDE_KEYS)]})


def main() -> None:
    """Write a data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    for each in fields(Extent):
        kind = float if each.name == "late" else lambda text: int(text.replace("_", ""))
        parser.add_argument(f"--{each.name.replace('_', '-')}", type=kind, default=each.default)
    given = vars(parser.parse_args())
    out = given.pop("out")
    write(Extent(**given), out)


if __name__ == "__main__":
    main()
