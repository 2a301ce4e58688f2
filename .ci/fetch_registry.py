"""Fetches the schema registry that tests start: once, by the Ivy that Spark ships, and with a check."""

import sys
from pathlib import Path

import fetch_flink

from jobs.spark.jars import JarsError, fetch_locked, jars_folder
from tests.registry_server import ARCHIVE, COORDINATE, SHA256


def main() -> None:
    """Fetch the archive unless it is there. On failure, print the reason and exit 1."""

    def retrieved(work: Path) -> dict[str, Path]:
        # Ivy would also fetch the POM of the parent, which is not needed and not available everywhere.
        return fetch_flink.retrieve(work, ((COORDINATE, ("all",)),), "tar.gz", poms=False)

    try:
        fetch_locked(jars_folder(), {ARCHIVE: SHA256}, retrieved)
    except JarsError as error:
        sys.exit(f"tidemark: the schema registry, which tests of sources start, cannot be had. {error}")


if __name__ == "__main__":
    main()
