"""Fetches the schema registry that tests start: once, by Ivy as Spark ships it, and checked."""

import sys
from pathlib import Path

import fetch_flink

from jobs.spark.jars import JarsError, fetch_locked, jars_folder
from tests.registry_server import ARCHIVE, COORDINATE, SHA256


def main() -> None:
    """Fetch the archive unless it is there; on failure say why and exit 1."""

    def retrieved(work: Path) -> dict[str, Path]:
        # The description of a parent, which Ivy would ask for, is not needed and not everywhere to be had.
        return fetch_flink.retrieve(work, ((COORDINATE, ("all",)),), "tar.gz", poms=False)

    try:
        fetch_locked(jars_folder(), {ARCHIVE: SHA256}, retrieved)
    except JarsError as error:
        sys.exit(f"tidemark: the schema registry, which tests of sources start, cannot be had. {error}")


if __name__ == "__main__":
    main()
