"""Puts the jars that Flink SQL needs to read Parquet and Kafka into the environment of the benchmark's peer.

Flink's own jars are fetched by Ivy and checked. Hadoop's client is taken from PySpark.
"""

import sys
from pathlib import Path

import fetch_flink

from jobs.spark.jars import JarsError, fetch_locked, spark_home
from spec.oracle.flink import VERSION

KAFKA = "5.0.0-2.2"
MODULES = (
    (f"org.apache.flink:flink-sql-parquet:{VERSION}", ("",)),
    (f"org.apache.flink:flink-sql-connector-kafka:{KAFKA}", ("",)),
)
LOCKED = {
    f"flink-sql-parquet-{VERSION}.jar": "f30617f4a5a6d437750f155ff72178ab34439aec91df64d96621c260559ba5fd",
    f"flink-sql-connector-kafka-{KAFKA}.jar": "5605c691d11a501382c383fecba37a7a552467da5ab7ba904ef5d6f3d62c5616",
}


def main(environment: Path) -> None:
    """Fetch the jars that are missing. On failure, print the reason and exit 1."""
    (lib,) = environment.glob("lib/python*/site-packages/pyflink/lib")
    try:
        fetch_locked(lib, LOCKED, lambda work: fetch_flink.retrieve(work, MODULES))
    except JarsError as error:
        sys.exit(f"tidemark: Flink's jars for Parquet and Kafka cannot be had. {error}")
    for jar in (spark_home() / "jars").glob("hadoop-client-*.jar"):
        if not (lib / jar.name).exists():
            (lib / jar.name).symlink_to(jar)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
