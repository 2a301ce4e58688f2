"""Runs a warm Spark Connect server in a process of its own, which many short-lived clients join.

A client joins in some three seconds and starts no JVM. If it dies, the server goes on and ends the client's jobs. Files
that these jobs still write are orphans. `python -m jobs.spark.connect_server kafka` starts a server whose clients can
read Kafka.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jobs.spark.jars import spark_environment, spark_home
from jobs.spark.programs import WORKER_VARIABLE
from jobs.spark.session import SparkConfig, classic_settings, is_local, places, private_folder

HOST: Final = "127.0.0.1"
START_S: Final = 180.0
STOP_S: Final = 20.0
LOOK_AGAIN_S: Final = 0.2

_MAIN: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"


class ConnectServerError(RuntimeError):
    """The server did not start. The message has the end of its output, and names the file with all of it."""


@dataclass(frozen=True, slots=True)
class ConnectServer:
    """A running server.

    `url` is the value for a client's `SparkConfig.connect_url`, and `log_file` has all its output.
    """

    url: str
    log_file: Path
    pid: int


@contextmanager
def connect_server(config: SparkConfig, log_file: Path, *, port: int | None = None) -> Iterator[ConnectServer]:
    """Start a server with the settings of a session of this configuration, and stop it when the block ends.

    The server listens only on this machine, on this port or a free one. On a cluster, its workers run the Python that
    PYSPARK_PYTHON names. Raises ConnectServerError if the server ends early, or is not ready within `START_S` seconds.
    """
    port = port or _free_port()
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - Spark's own launcher
            _command(config, port),
            env=_environment(config),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_until_ready(process, port, log_file)
        yield ConnectServer(f"sc://{HOST}:{port}", log_file, process.pid)
    finally:
        _stop(process)


def _command(config: SparkConfig, port: int) -> list[str]:
    settings = (
        places(config)
        | classic_settings(config)
        | {
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(port),
        }
    )
    memory = settings.pop("spark.driver.memory")
    named = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    master = config.master or f"local[{config.cores}]"
    launcher = str(spark_home() / "bin" / "spark-submit")
    return [launcher, "--master", master, "--driver-memory", memory, *named, "--class", _MAIN, "spark-internal"]


def _environment(config: SparkConfig) -> dict[str, str]:
    """Return the environment for Spark's programs, without the variables by which a client finds its server."""
    clients = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_LOCAL_REMOTE")
    workers = os.environ.get(WORKER_VARIABLE)
    own = {WORKER_VARIABLE: workers} if workers and not is_local(config) else {}
    return {name: value for name, value in (spark_environment() | own).items() if name not in clients}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log_file: Path) -> None:
    limit = time.monotonic() + START_S
    while time.monotonic() < limit:
        if process.poll() is not None:
            raise ConnectServerError(
                f"the Connect server ended with code {process.returncode}: {_last_words(log_file)}"
            )
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(LOOK_AGAIN_S)
    raise ConnectServerError(f"the Connect server was not ready after {START_S:.0f} s: {_last_words(log_file)}")


def _last_words(log_file: Path) -> str:
    lines = log_file.read_text(errors="replace").splitlines()
    return f"it said last: {' / '.join(lines[-5:])} (all of it: {log_file})"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and its Python workers. They are one process group."""
    _signal_group(process, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _signal_group(process: subprocess.Popen[bytes], what: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, what)


def main(jar_sets: list[str]) -> None:
    """Run a warm server with these sets of jars until Ctrl-C, and print how a tick joins it."""
    log_file = private_folder() / f"connect-{os.getpid()}.log"
    with connect_server(SparkConfig(jar_sets=tuple(jar_sets)), log_file) as server:
        sys.stdout.write(f"export TIDEMARK_SPARK_CONNECT_URL={server.url}\n")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main(sys.argv[1:])
