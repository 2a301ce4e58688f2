"""Fetches Azurite, Microsoft's emulator of Azure, which tests start: once, by npm. No package's script runs.

Without npm, nothing is fetched, and a message says that the tests on Azure are left out.
"""

import shutil
import subprocess
import sys

from jobs.spark.jars import jars_folder
from tests.cloud_stores import AZURITE, without_azurite


def main() -> None:
    """Fetch Azurite unless it is there. On failure, print the reason and exit 1."""
    npm, folder = shutil.which("npm"), jars_folder() / f"azurite-{AZURITE}"
    missing = without_azurite()
    if missing and npm:
        words = ["install", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        done = subprocess.run([npm, *words, f"azurite@{AZURITE}"], check=False)  # noqa: S603
        missing = without_azurite()
        if done.returncode or missing:
            sys.exit(f"tidemark: npm could not install azurite@{AZURITE}. {missing or ''}")
    elif missing:
        print(f"tidemark: tests on Azure are left out. {missing}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()
