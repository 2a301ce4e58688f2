"""The queries of Nexmark. Each is a function of the auction house that adds the query to its pipeline.

Windows and time ranges accept rows that are up to 4 s out of order, as the public suite does. Rows that come later go
to the table `late/<query>` or, in a join, to the table `late/<query>_joined`.

Some functions are longer than Flink's SQL of the same query, for these reasons:

- A computed column has a type, since a pipeline is checked before Spark runs. Columns of both sides of a join need
  different names, because its result is a table. So q4, q9, q20 and q23 rename some columns.
- A session of Tidemark ends a gap after its last row, and a row at exactly that moment still belongs to it, as in Spark
  and Flink. In the expected answer, such a row begins a new session. So the gap of q11 is a millisecond less.
- q4, q6 and q9 declare the longest time that an auction is open. In return, the join forgets a bid after that time,
  while Flink's join keeps all bids for ever.

Other functions are shorter: q5 and q7 take the first rows of windows, where Flink's SQL joins each window with its
maximum. q6 has no answer in Flink, whose OVER takes no updates (FLINK-19059). Here the winning bid is emitted once,
when its auction has closed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pyspark.sql.types import (
    DecimalType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bench.nexmark import generate
from tidemark import (
    FileSource,
    Pipeline,
    Source,
    Stream,
    avg_of,
    count,
    count_distinct,
    hopping,
    join,
    max_of,
    min_of,
    over,
    session,
    sum_of,
    top,
    tumbling,
)

LONGEST_AUCTION: Final = "1m"
"""The longest time that an auction is open. At 60 events a second or more, the generator makes no longer auction."""
_BEST: Final = ("price desc", "bid_dateTime", "bidder", "bid_extra")


def _columns(**kinds: object) -> StructType:
    return StructType([StructField(name, kind()) for name, kind in kinds.items()])


PERSONS: Final = _columns(
    id=LongType,
    name=StringType,
    emailAddress=StringType,
    creditCard=StringType,
    city=StringType,
    state=StringType,
    dateTime=TimestampType,
    extra=StringType,
)
AUCTIONS: Final = _columns(
    id=LongType,
    itemName=StringType,
    description=StringType,
    initialBid=LongType,
    reserve=LongType,
    dateTime=TimestampType,
    expires=TimestampType,
    seller=LongType,
    category=LongType,
    extra=StringType,
)
BIDS: Final = _columns(
    auction=LongType,
    bidder=LongType,
    price=LongType,
    channel=StringType,
    url=StringType,
    dateTime=TimestampType,
    extra=StringType,
)
VALUES: Final = _columns(key=LongType, value=StringType)


class AuctionHouse:
    """The streams of one pipeline. A stream is declared when a query first uses it."""

    def __init__(self, pipeline: Pipeline, data: Path, *, ends: bool = False) -> None:
        """Read the files below `data`. If the data `ends`, all rows that wait for a time are emitted at the end."""
        self._pipeline, self._data, self._ends = pipeline, data, ends
        self._read: dict[str, Stream] = {}

    def _stream(self, kind: str, schema: StructType, *, ends: bool = False) -> Stream:
        if kind not in self._read:
            rows = self._pipeline.source(kind, self._source(kind, schema, ends=ends or self._ends))
            rows = rows.select(*schema.names)
            self._read[kind] = rows.event_time("dateTime", delay="4s") if "dateTime" in schema.names else rows
        return self._read[kind]

    def _source(self, kind: str, schema: StructType, *, ends: bool) -> Source:
        return FileSource(self._data / kind, schema, one_split=True, bounded=ends)

    @property
    def persons(self) -> Stream:
        """The people who have registered."""
        return self._stream("person", PERSONS)

    @property
    def auctions(self) -> Stream:
        """The auctions, in which things are sold."""
        return self._stream("auction", AUCTIONS)

    @property
    def bids(self) -> Stream:
        """The bids on the auctions."""
        return self._stream("bid", BIDS)

    @property
    def values(self) -> Stream:
        """A table that does not change, with the keys 0 to 9,999."""
        return self._stream("value", VALUES, ends=True)


def _kept(rows: Stream, name: str, *, partition_by: Sequence[str] = ()) -> None:
    rows.table(f"nexmark/{name}", id=name, partition_by=partition_by)


def q0(house: AuctionHouse) -> None:
    """Bids as they are."""
    _kept(house.bids.select("auction", "bidder", "price", "dateTime", "extra"), "q0")


def q1(house: AuctionHouse) -> None:
    """Bids in euros."""
    bids = house.bids.with_column("price", "0.908 * price", DecimalType(23, 3))
    _kept(bids.select("auction", "bidder", "price", "dateTime", "extra"), "q1")


def q2(house: AuctionHouse) -> None:
    """The bids of some auctions."""
    _kept(house.bids.where("auction % 123 = 0").select("auction", "price"), "q2")


def q3(house: AuctionHouse) -> None:
    """The sellers from three states, with their auctions of category 10."""
    persons = house.persons.where("state IN ('OR', 'ID', 'CA')").select("id", "name", "city", "state")
    auctions = house.auctions.where("category = 10").rename({"id": "auction"}).select("auction", "seller")
    sold = join(auctions.key_by("seller"), persons.key_by("id"), "q3_sold")
    _kept(sold.select("name", "city", "state", "auction").rename({"auction": "id"}), "q3")


def bids_in_time(house: AuctionHouse, name: str, of_auction: Sequence[str], of_bid: Sequence[str]) -> Stream:
    """Return each auction with each bid that came while the auction was open, with these columns of both."""
    auctions = house.auctions.select("id", "dateTime", "expires", *of_auction).key_by("id")
    bids = house.bids.select("auction", "dateTime", "price", *of_bid)
    bids = bids.rename({each: f"bid_{each}" for each in ("dateTime", "extra") if each in bids.schema.names})
    bids = bids.with_column("id", "auction", LongType()).key_by("id")
    within = ("0s", LONGEST_AUCTION)
    both = join(auctions, bids, f"{name}_joined", within=within, late=f"late/{name}_joined")
    return both.where("bid_dateTime <= expires")


def q4(house: AuctionHouse) -> None:
    """The mean of the winning prices, by category."""
    bids = bids_in_time(house, "q4", of_auction=["category"], of_bid=["bidder"])
    won = bids.key_by("id", "category").aggregate("q4_won", price=max_of("price"))
    won.key_by("category").aggregate("q4", final=avg_of("price")).upsert("nexmark/q4")


def q5(house: AuctionHouse) -> None:
    """The auctions with most bids in the last 10 s, every 2 s."""
    bids = house.bids.select("auction", "dateTime").key_by("auction").window(hopping("10s", every="2s"))
    hops = bids.aggregate("q5_hops", num=count(), late="late/q5")
    hops = hops.rename({"window_start": "starts", "window_end": "ends"})
    most = top(hops.window(tumbling("2s")), "q5_most", n=1, order_by="num desc", ties=True, late="fail")
    _kept(most.select("auction", "num", "starts", "ends"), "q5")


def q6(house: AuctionHouse) -> None:
    """The mean price of each seller's last ten auctions."""
    bids = bids_in_time(house, "q6", of_auction=["seller"], of_bid=["bidder", "extra"])
    won = top(bids.key_by("id"), "q6_won", n=1, order_by=_BEST, until="expires", late="fail")
    won = won.select("seller", "expires", "id", "price")
    means = over(won.key_by("seller"), "q6_means", last=10, late="fail", avg_price=avg_of("price"))
    _kept(means.select("seller", "id", "avg_price"), "q6")


def q7(house: AuctionHouse) -> None:
    """The highest bids of each 10 s."""
    bids = house.bids.select("auction", "price", "bidder", "dateTime", "extra").window(tumbling("10s"))
    highest = top(bids, "q7_highest", n=1, order_by="price desc", ties=True, late="late/q7")
    _kept(highest.select("auction", "price", "bidder", "dateTime", "extra"), "q7")


def q8(house: AuctionHouse) -> None:
    """The people who registered and opened an auction in the same 10 s."""
    persons = house.persons.select("id", "name", "dateTime").key_by("id").window(tumbling("10s"))
    auctions = house.auctions.select("seller", "dateTime").rename({"dateTime": "opened"})
    auctions = auctions.key_by("seller").window(tumbling("10s"))
    new = join(persons, auctions, "q8_joined", how="semi", late="late/q8_joined")
    _kept(new.select("id", "name", "window_start").rename({"window_start": "starts"}), "q8")


def q9(house: AuctionHouse) -> None:
    """The winning bid of each auction."""
    more = [name for name in AUCTIONS.names if name not in ("id", "dateTime", "expires")]
    bids = bids_in_time(house, "q9", of_auction=more, of_bid=["bidder", "extra"]).key_by("id")
    top(bids, "q9", n=1, order_by=_BEST, until="expires", late="fail").table("nexmark/q9")


def q10(house: AuctionHouse) -> None:
    """Bids in a table by day and minute."""
    bids = house.bids.with_column("dt", "date_format(dateTime, 'yyyy-MM-dd')", StringType())
    bids = bids.with_column("hm", "date_format(dateTime, 'HH:mm')", StringType())
    columns = ("auction", "bidder", "price", "dateTime", "extra", "dt", "hm")
    _kept(bids.select(*columns), "q10", partition_by=["dt", "hm"])


def q11(house: AuctionHouse) -> None:
    """How many bids each bidder made in a session: one ends when no bid comes for 10 s."""
    bids = house.bids.select("bidder", "dateTime").key_by("bidder").window(session("9999ms"))
    found = bids.aggregate("q11_sessions", bid_count=count(), late="late/q11")
    found = found.with_column("ends", "window_end + INTERVAL 1 MILLISECOND", TimestampType())
    found = found.rename({"window_start": "starts"})
    _kept(found.select("bidder", "bid_count", "starts", "ends"), "q11")


def q12(house: AuctionHouse) -> None:
    """How many bids each bidder made in 10 s by the clock."""
    bids = house.bids.select("bidder").key_by("bidder").window(tumbling("10s", by="clock"))
    found = bids.aggregate("q12_counts", bid_count=count())
    found = found.rename({"window_start": "starts", "window_end": "ends"})
    _kept(found.select("bidder", "bid_count", "starts", "ends"), "q12")


def q13(house: AuctionHouse) -> None:
    """Bids with a value from a table that does not change."""
    bids = house.bids.select("auction", "bidder", "price", "dateTime").with_column("key", "auction % 10000", LongType())
    found = bids.key_by("key").connect(house.values.key_by("key")).enrich("q13_values", "value")
    _kept(found.select("auction", "bidder", "price", "dateTime", "value"), "q13")


def q14(house: AuctionHouse) -> None:
    """Bids of a price range, with the time of day, and how often `c` occurs in the text `extra`."""
    bids = house.bids.with_column("price", "0.908 * price", DecimalType(23, 3))
    bids = bids.where("price > 1000000 AND price < 50000000")
    hour = "hour(dateTime)"
    kind = (
        f"CASE WHEN {hour} BETWEEN 8 AND 18 THEN 'dayTime' "
        f"WHEN {hour} <= 6 OR {hour} >= 20 THEN 'nightTime' ELSE 'otherTime' END"
    )
    bids = bids.with_column("bidTimeType", kind, StringType())
    bids = bids.with_column("c_counts", "length(extra) - length(replace(extra, 'c', ''))", LongType())
    _kept(bids.select("auction", "bidder", "price", "bidTimeType", "dateTime", "extra", "c_counts"), "q14")


_RANKS: Final = {
    "rank1": "price < 10000",
    "rank2": "price >= 10000 AND price < 1000000",
    "rank3": "price >= 1000000",
}
_BIDS_BY_RANK: Final = {"total_bids": None} | {f"{name}_bids": where for name, where in _RANKS.items()}
_DISTINCT: Final = {"total": None} | _RANKS


def _stats() -> dict[str, object]:
    return {name: count(where=where) for name, where in _BIDS_BY_RANK.items()}


def _distincts() -> dict[str, object]:
    return {
        f"{name}_{column}s": count_distinct(column, where=where)
        for column in ("bidder", "auction")
        for name, where in _DISTINCT.items()
    }


def _by_day(house: AuctionHouse) -> Stream:
    return house.bids.with_column("day", "date_format(dateTime, 'yyyy-MM-dd')", StringType())


def q15(house: AuctionHouse) -> None:
    """Bids, bidders and auctions by day."""
    _by_day(house).key_by("day").aggregate("q15", **_stats(), **_distincts()).upsert("nexmark/q15")


def q16(house: AuctionHouse) -> None:
    """Bids, bidders and auctions by channel and day."""
    bids = _by_day(house).with_column("minute", "date_format(dateTime, 'HH:mm')", StringType())
    found = bids.key_by("channel", "day").aggregate("q16", minute=max_of("minute"), **_stats(), **_distincts())
    found.upsert("nexmark/q16")


def q17(house: AuctionHouse) -> None:
    """The prices of each auction by day."""
    prices = {"min_price": min_of, "max_price": max_of, "avg_price": avg_of, "sum_price": sum_of}
    of_prices = {name: of("price") for name, of in prices.items()}
    _by_day(house).key_by("auction", "day").aggregate("q17", **_stats(), **of_prices).upsert("nexmark/q17")


def q18(house: AuctionHouse) -> None:
    """Each bidder's newest bid on each auction."""
    newest = ["dateTime desc", "price desc", "extra"]
    top(house.bids.key_by("bidder", "auction"), "q18", n=1, order_by=newest).upsert("nexmark/q18")


def q19(house: AuctionHouse) -> None:
    """The ten highest bids of each auction."""
    best = ["price desc", "dateTime", "bidder", "extra"]
    found = top(house.bids.key_by("auction"), "q19", n=10, order_by=best, row_number="rank_number")
    found.upsert("nexmark/q19")


def q20(house: AuctionHouse) -> None:
    """Bids with their auction, of category 10."""
    auctions = house.auctions.where("category = 10")
    auctions = auctions.rename({"id": "auction", "dateTime": "auction_dateTime", "extra": "auction_extra"})
    bids = house.bids.rename({"dateTime": "bid_dateTime", "extra": "bid_extra"})
    found = join(bids.key_by("auction"), auctions.key_by("auction"), "q20_found")
    of_auction = ("itemName", "description", "initialBid", "reserve", "auction_dateTime", "expires", "seller")
    of_bid = ("auction", "bidder", "price", "channel", "url", "bid_dateTime", "bid_extra")
    _kept(found.select(*of_bid, *of_auction, "category", "auction_extra"), "q20")


def q21(house: AuctionHouse) -> None:
    """The number of each bid's channel."""
    number = "regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)"
    known = "CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' "
    bids = house.bids.with_column("channel_id", f"{known} WHEN 'baidu' THEN '3' ELSE {number} END", StringType())
    bids = bids.where("channel_id <> ''")
    _kept(bids.select("auction", "bidder", "price", "channel", "channel_id"), "q21")


def q22(house: AuctionHouse) -> None:
    """The parts of each bid's address."""
    bids = house.bids
    for place in (1, 2, 3):
        bids = bids.with_column(f"dir{place}", f"split_part(url, '/', {place + 3})", StringType())
    _kept(bids.select("auction", "bidder", "price", "channel", "dir1", "dir2", "dir3"), "q22")


def q23(house: AuctionHouse) -> None:
    """Bid, person and auction of one seller."""
    bids = house.bids.select("bidder", "price", "channel", "url", "extra").rename({"extra": "bid_extra"})
    persons = house.persons.drop("dateTime").rename({"extra": "person_extra"})
    persons = persons.with_column("person_id", "id", LongType())
    auctions = house.auctions.drop("id").rename({"dateTime": "auction_dateTime", "extra": "auction_extra"})
    both = join(bids.key_by("bidder"), persons.key_by("id"), "q23_persons")
    found = join(both.key_by("bidder"), auctions.key_by("seller"), "q23_found")
    of_bid = ("bidder", "price", "channel", "url", "bid_extra")
    of_person = ("person_id", "name", "emailAddress", "creditCard", "city", "state", "person_extra")
    found = found.with_column("seller", "bidder", LongType())
    of_auction = ("itemName", "description", "initialBid", "reserve", "auction_dateTime", "expires", "seller")
    _kept(found.select(*of_bid, *of_person, *of_auction, "category", "auction_extra"), "q23")


QUERIES: Final[Mapping[str, Callable[[AuctionHouse], None]]] = MappingProxyType(
    {
        each.__name__: each
        for each in (
            *(q0, q1, q2, q3, q4, q5, q6, q7, q8, q9, q10, q11),
            *(q12, q13, q14, q15, q16, q17, q18, q19, q20, q21, q22, q23),
        )
    }
)
IN_TIME: Final = ("q4", "q5", "q6", "q7", "q8", "q9", "q11")
"""The queries with windows or time ranges of event time."""
_WITHOUT_BIDS: Final = ("q3", "q8")


def epochs_of(names: Iterable[str], bids: int) -> dict[str, object]:
    """Return the settings with which an epoch of these queries ends after this many bids have been made.

    If no query reads bids, the settings count auctions, as many as are opened in the same time.
    """
    if set(names) <= set(_WITHOUT_BIDS):
        return {"rows_of": "auction", "every_rows": max(bids * generate.AUCTIONS // generate.BIDS, 1)}
    return {"rows_of": "bid", "every_rows": bids}


def declared(data: Path, names: Iterable[str] = QUERIES, *, ends: bool = False) -> Pipeline:
    """Return a pipeline with these queries over the files below `data`. See `AuctionHouse`."""
    pipeline = Pipeline("nexmark", parallelism=2)
    house = AuctionHouse(pipeline, data, ends=ends)
    for name in names:
        QUERIES[name](house)
    return pipeline
