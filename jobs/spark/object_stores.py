"""Lets Spark read a warehouse or input in an object store: which jars it needs, and which settings.

Spark's own reader of S3 is Hadoop's `s3a`. Its endpoint and region come from the variables that delta-rs reads. None of
these settings has credentials: Hadoop's default chain takes them from the environment of its JVM, or from the machine's
role. For other stores Spark needs another connector, which the user adds to Spark.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from jobs.spark.session import SparkConfig
from jobs.storage.address import Root, StoreUrl

_S3A: Final = "spark.hadoop.fs.s3a."


def with_store(config: SparkConfig, root: Root) -> SparkConfig:
    """Return the configuration of a session that reads this warehouse or input. A setting that the user gave stays."""
    if not isinstance(root, StoreUrl) or root.scheme != "s3":
        return config
    sets = tuple(dict.fromkeys([*config.jar_sets, "s3a"]))
    return replace(config, jar_sets=sets, settings={**s3a_settings(os.environ), **config.settings})


def s3a_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return Hadoop's settings for the store that these variables name. None of them is secret."""
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    settings = {f"{_S3A}endpoint.region": region} if region else {}
    if endpoint:
        encrypted = str(not endpoint.startswith("http://")).lower()
        settings |= {
            f"{_S3A}endpoint": endpoint,
            f"{_S3A}path.style.access": "true",
            f"{_S3A}connection.ssl.enabled": encrypted,
        }
    return settings
