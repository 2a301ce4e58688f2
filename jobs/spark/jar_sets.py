"""The sets of jars that a Spark session may need beyond Spark's own jars, each jar locked by its SHA-256.

A set is fetched by its name (`python -m jobs.spark.jars kafka`). A session that needs it names it in
`SparkConfig.jar_sets`. To add a set, let Ivy resolve its coordinates and write down what came.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

CARRIED_BY_SPARK: Final = (
    "com.fasterxml.jackson.core:*",
    "com.github.luben:*",
    "com.google.code.findbugs:*",
    "commons-logging:*",
    "commons-pool:*",
    "io.airlift:*",
    "org.apache.hadoop:*",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "org.locationtech.jts:*",
    "org.lz4:*",
    "org.roaringbitmap:*",
    "org.scala-lang.modules:*",
    "org.slf4j:*",
    "org.xerial.snappy:*",
)
"""What packages name and Spark has too, mostly in newer versions: one version of each is to be on the class path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JarSet:
    """Jars that belong together. `locked` gives the SHA-256 of each: a jar with another one is refused."""

    name: str
    serves: str
    """What needs the jars, as messages say it: "Kafka"."""
    coordinates: tuple[str, ...]
    """Maven's names of the packages."""
    locked: Mapping[str, str]
    left_out: tuple[str, ...] = CARRIED_BY_SPARK
    """The packages that Ivy does not bring."""


DELTA: Final = JarSet(
    name="delta",
    serves="Delta",
    coordinates=("io.delta:delta-spark_4.2_2.13:4.4.0",),
    locked={
        "delta-spark_4.2_2.13-4.4.0.jar": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
        "delta-storage-4.4.0.jar": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
        "delta-kernel-api-4.4.0.jar": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
        "delta-kernel-defaults-4.4.0.jar": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
        "delta-kernel-unitycatalog-4.4.0.jar": "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
        "unitycatalog-client-0.6.0.jar": "48257499a86b801a3e2372cec55ac226ca1c1c7eabe5c118e7302f29a1fdbc19",
        "unitycatalog-hadoop-0.6.0.jar": "c47b63c961c87102b9e1d63809a0915ba4c86b7652f57c8d39ca3a05b441a150",
        "jackson-datatype-jdk8-2.13.5.jar": "e58761751fea8a00dc626aae1c5f1be38c5cfd487aeb333d933a4ab5f5a73c55",
    },
)
"""A tick needs none of these, since delta-rs publishes its tables. A session with Delta's own SQL does."""

KAFKA: Final = JarSet(
    name="kafka",
    serves="Kafka",
    coordinates=("org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",),
    locked={
        "commons-pool2-2.13.1.jar": "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
        "kafka-clients-3.9.2.jar": "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
        "spark-sql-kafka-0-10_2.13-4.2.0.jar": "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
        "spark-token-provider-kafka-0-10_2.13-4.2.0.jar": "641c7947afc8aa1189e433b7c2d305293993c8691bc1c2062d6d4f513b12518c",  # noqa: E501
    },
)
"""Spark's connector to Kafka, for a tick that reads a `KafkaSource`."""

JAR_SETS: Final[Mapping[str, JarSet]] = {each.name: each for each in (DELTA, KAFKA)}
