"""Measures how fresh the answer of a Nexmark query is in Flink SQL while bids come, with a checkpoint every 200 ms.

`python -m bench.peers.nexmark_flink_freshness --query q7` starts a broker, a writer (`bench.nexmark.live`) and Flink
(`nexmark_flink.py`, in its own environment). When a checkpoint is complete, Flink commits the checkpoint's offsets to
Kafka. This program asks Kafka for these offsets every few milliseconds. A reader who wants each result exactly once
cannot see the result of a bid earlier.
"""

import argparse
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from bench.measures import print_result
from bench.nexmark.figures import LIVE
from bench.nexmark.live import EVERY_MS, PARTITIONS, WARM_UP_S, Commit, figures, lay_out_seconds, writing

GROUP: Final = "flink"
_ASK_S: Final = 0.01
_FLINK: Final = Path(__file__).resolve().parents[2] / ".bench" / "flink" / "bin" / "python"


def main() -> None:
    """Measure one query."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--query", choices=LIVE, required=True)
    parser.add_argument("--backend", choices=["rocksdb", "hashmap"], default="rocksdb")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    events = lay_out_seconds(asked.seconds + WARM_UP_S, asked.data)
    program = str(Path(__file__).with_name("nexmark_flink.py"))
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch, writing(events, Path(scratch)) as servers:
        words = ["--servers", servers, "--group", GROUP, "--interval-ms", str(EVERY_MS), "--scratch", scratch]
        command = [str(_FLINK), program, scratch, "--query", asked.query, "--backend", asked.backend, *words]
        with subprocess.Popen([*command, "--cores", str(asked.cores)]) as flink:  # noqa: S603
            try:
                commits = _commits(servers, asked.seconds + WARM_UP_S, flink)
            finally:
                flink.terminate()
        print_result(figures(f"flink-nexmark-freshness-{asked.query}-{asked.backend}", servers, commits))


def _commits(servers: str, seconds: float, flink: "subprocess.Popen[bytes]") -> list[Commit]:
    """Poll the offsets that Flink has committed to Kafka, until the time is over. Return each change."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": GROUP, "enable.auto.commit": "false"})
    partitions = [TopicPartition("bid", number) for number in range(PARTITIONS["bid"])]
    found: list[Commit] = []
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s and flink.poll() is None:
        said = consumer.committed(partitions)
        offsets = {each.partition: each.offset for each in said if each.offset >= 0}
        if offsets and (not found or found[-1].offsets != offsets):
            found.append(Commit(offsets, round(time.time() * 1000)))
        time.sleep(_ASK_S)
    consumer.close()
    return found


if __name__ == "__main__":
    main()
