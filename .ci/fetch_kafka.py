"""Fetches the jars of the Kafka broker that tests start: once, by Ivy, and checked."""

import sys

from jobs.spark.jars import JarsError, fetch, jars_folder
from tests.kafka_jars import BROKER


def main() -> None:
    """Fetch the jars unless they are there. On failure, print the reason and exit 1."""
    try:
        fetch(jars_folder() / BROKER.name, BROKER)
    except JarsError as error:
        sys.exit(f"tidemark: the Kafka broker, which tests of sources start, cannot be had. {error}")


if __name__ == "__main__":
    main()
