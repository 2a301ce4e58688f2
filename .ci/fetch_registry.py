"""Fetches the schema registry that tests start: once, by Ivy as Spark ships it, and checked."""

import sys

import fetch_flink

from jobs.spark.jars import JarsError, fetch_locked, jars_folder
from tests.registry_server import ARCHIVE, COORDINATE, SHA256


def main() -> None:
    """Fetch the archive unless it is there; on failure say why and exit 1."""
    modules = ((COORDINATE, ("all",)),)
    try:
        fetch_locked(jars_folder(), {ARCHIVE: SHA256}, lambda work: fetch_flink.retrieve(work, modules, "tar.gz"))
    except JarsError as error:
        sys.exit(f"tidemark: the schema registry, which tests of sources start, cannot be had. {error}")


if __name__ == "__main__":
    main()
