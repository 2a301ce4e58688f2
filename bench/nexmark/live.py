"""Writes the events of Nexmark into Kafka in real time, and measures how long a bid takes until a cut has it.

`python -m bench.nexmark.live SERVERS FOLDER` writes 50,000 events a second: bids into two partitions, auctions into
one. FOLDER has a file of JSON lines for each second and kind (`lay_out_seconds`). Kafka's client stamps each record
with its time of writing. A program records up to which offsets each of its commits goes, and when the commit was
complete.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Final, NamedTuple

import numpy as np
import polars as pl
from confluent_kafka import Producer, TopicPartition
from numpy.typing import NDArray

from bench.freshness import TooFewRecordsError, written_times
from bench.kafka_workload import make_topic, served
from bench.nexmark.generate import Extent, rows

PARTITIONS: Final = {"bid": 2, "auction": 1}
RATE: Final = 50_000
EVERY_MS: Final = 200
"""The interval of checkpoints, in each of the programs."""
WARM_UP_S: Final = 45
"""How many seconds bids do not count at first, since Spark and Flink start then, and the JVM compiles."""
_SLICES: Final = 100
_WAIT_S: Final = 10.0
_LEAST_RECORDS: Final = 100_000


class Commit(NamedTuple):
    """A commit: the offset up to which it goes in each partition of the bids, and when it was complete, in ms."""

    offsets: Mapping[int, int]
    at_ms: int


def lay_out_seconds(seconds: int, root: Path) -> Path:
    """Return the folder with the events of this many seconds. Write the folder if it is missing."""
    folder = root / f"nexmark-live-{seconds}"
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for second, of_kind in enumerate(rows(Extent(events=RATE * seconds, rate=RATE, files=seconds))):
            for kind in PARTITIONS:
                as_text = pl.col(pl.Datetime).dt.strftime("%Y-%m-%dT%H:%M:%S%.3f")
                pl.DataFrame(pl.from_arrow(of_kind[kind])).with_columns(as_text).write_ndjson(
                    folder / f"{kind}-{second:05d}.ndjson"
                )
        (folder / "complete").touch()
    return folder


@contextmanager
def writing(folder: Path, scratch: Path) -> Iterator[str]:
    """Start a broker, and a process that writes into it for the seconds of the folder. Return the broker's address."""
    with served(scratch / "broker") as servers:
        for kind, partitions in PARTITIONS.items():
            make_topic(servers, kind, partitions)
        with Popen([sys.executable, "-m", "bench.nexmark.live", servers, str(folder)]) as writer:  # noqa: S603
            try:
                yield servers
            finally:
                writer.terminate()


def latencies(servers: str, commits: Sequence[Commit]) -> NDArray[np.int64]:
    """Return how long each bid after the warm-up took until a commit had it, in ms.

    Bids after the last commit do not count. Raises TooFewRecordsError if no commit had a bid.
    """
    if not commits:
        raise TooFewRecordsError("no commit had a bid")
    found = []
    for partition in range(PARTITIONS["bid"]):
        ends = np.array([commit.offsets.get(partition, 0) for commit in commits])
        written = np.array(written_times(servers, TopicPartition("bid", partition, 0), int(ends.max())))
        counts = written >= written[0] + WARM_UP_S * 1000
        first = np.searchsorted(np.maximum.accumulate(ends), np.arange(len(written)), side="right")
        found.append((np.array([commit.at_ms for commit in commits])[first] - written)[counts])
    return np.concatenate(found)


def figures(program: str, servers: str, commits: Sequence[Commit]) -> dict[str, object]:
    """Return what a program prints: p50 and p99 in seconds, and the numbers of bids and commits that were measured.

    A program that does not keep up may never reach the bids after the warm-up. Then it is `behind`. Raises
    TooFewRecordsError if no commit had a bid.
    """
    waited = latencies(servers, commits)
    if len(waited) < _LEAST_RECORDS:
        return {"program": program, "behind": True, "commits": len(commits), "bids": len(waited)}
    p50, p99 = (round(float(np.percentile(waited, share)) / 1000, 3) for share in (50, 99))
    return {"program": program, "p50_s": p50, "p99_s": p99, "commits": len(commits), "bids": len(waited)}


def main() -> None:
    """Write the events of each second in slices, each at its time."""
    servers, folder = sys.argv[1], Path(sys.argv[2])
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, "queue.buffering.max.messages": 10 * RATE})
    files = zip(*(sorted(folder.glob(f"{kind}-*.ndjson")) for kind in PARTITIONS), strict=True)
    begin = time.monotonic()
    for second, of_kinds in enumerate(files):
        lines = {kind: file.read_bytes().splitlines() for kind, file in zip(PARTITIONS, of_kinds, strict=True)}
        for part in range(_SLICES):
            time.sleep(max(0.0, begin + second + part / _SLICES - time.monotonic()))
            for kind, partitions in PARTITIONS.items():
                for number, line in enumerate(lines[kind][part::_SLICES]):
                    producer.produce(kind, line, partition=number % partitions)
            producer.poll(0)
    producer.flush(_WAIT_S)


if __name__ == "__main__":
    main()
