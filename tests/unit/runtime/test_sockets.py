"""Spark's JVM and its workers talk through sockets in a private folder, if its path is short enough."""

import os
import socket
from pathlib import Path
from tempfile import mkdtemp

import pyarrow as pa
import pytest

from jobs.spark.session import ENABLED, FOLDER, SparkConfig, places, private_folder, socket_settings

NAME = ".00000000-0000-0000-0000-000000000000.sock"


def of_length(size):
    """Return a new folder whose path has this many bytes."""
    made = Path(mkdtemp())
    folder = made / ("x" * (size - len(str(made)) - 1))
    folder.mkdir()
    return folder


def test_there_are_settings_only_for_a_path_that_a_socket_can_have():
    """Spark takes TCP otherwise. The longest path that is taken does hold a socket with a name of Spark's length."""
    longest = of_length(60)
    assert {ENABLED: "true", FOLDER: str(longest)} == socket_settings(longest)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(longest / NAME))
    (longest / NAME).unlink()
    assert {} == socket_settings(of_length(61))


def test_a_folder_without_room_for_sockets_gets_none():
    """Some file systems hold no sockets. Nothing is left of the trial."""
    assert {} == socket_settings(Path("/proc"))
    folder = of_length(40)
    assert socket_settings(folder)
    assert [] == list(folder.iterdir())


def test_a_cluster_decides_about_its_folders_itself():
    """This machine's folders say nothing about its workers."""
    assert {} == places(SparkConfig(master="spark://h:1"))
    assert places(SparkConfig())["spark.local.dir"].startswith(str(private_folder()))


@pytest.mark.spark
def test_a_worker_is_reached_through_a_socket_of_the_private_folder(spark):
    """Each task asks its own descriptors: one of them is connected to the daemon's socket, and none is TCP."""

    def families(batches):
        for _ in batches:
            kinds = []
            for descriptor in range(256):
                try:
                    with socket.socket(fileno=os.dup(descriptor)) as found:
                        kinds.append(f"{found.family.name} {found.getsockname()!s}")
                except OSError:
                    continue  # no socket
            yield pa.RecordBatch.from_pydict({"kind": kinds})

    rows = spark.range(1).coalesce(1).mapInArrow(families, "kind string").collect()
    assert {"AF_UNIX"} == {row["kind"].split()[0] for row in rows}
    assert any(str(private_folder()) in row["kind"] for row in rows)
