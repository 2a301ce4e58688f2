"""Fetches TLC, the model checker of TLA+, as the Delta jars are fetched: once, by Ivy, and checked."""

import sys

from jobs.spark.jars import JarsError, JarSet, fetch, jars_folder
from spec.tla.tlc import COORDINATE, JAR, SHA256


def main() -> None:
    """Fetch the jar unless it is there. On failure, print the reason and exit 1."""
    try:
        fetch(jars_folder(), JarSet(name="tlc", serves="TLC", coordinates=(COORDINATE,), locked={JAR: SHA256}))
    except JarsError as error:
        sys.exit(f"tidemark: TLC, which checks spec/tla, cannot be had. {error}")


if __name__ == "__main__":
    main()
