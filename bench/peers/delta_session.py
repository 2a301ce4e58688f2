"""The Spark session of the peers, with the same Spark, Delta jars and number of cores as our programs."""

from collections.abc import Mapping

from pyspark.sql import SparkSession

from jobs.spark.jars import delta_jars


def delta_session(cores: int, memory: str, settings: Mapping[str, str]) -> SparkSession:
    """Return a session with good settings for a small machine. Raise JarsError without the jars."""
    known = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": memory,
        "spark.jars": ",".join(str(jar) for jar in delta_jars()),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.adaptive.enabled": "false",
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    builder = SparkSession.builder.appName("peer").master(f"local[{cores}]")
    for name, value in (known | dict(settings)).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
