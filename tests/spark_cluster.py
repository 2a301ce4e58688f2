"""A standalone Spark cluster for tests, whose workers share nothing with the driver but the network.

Each worker is a process in a mount namespace of its own. There it has a Python environment, a home and a working folder
of its own, under `INSIDE`. The checkout, the tests' folders and /tmp are hidden from it. `Cluster.sees` returns whether
a worker could read a path.
"""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.local_server import free_port
from tests.wheel_environment import linked

ROOT = Path(__file__).resolve().parents[1]
INSIDE = Path("/mnt/tidemark")
"""The folder of each worker, as the worker sees it."""
PYTHON = INSIDE / "env/bin/python"
"""The Python of each worker, as the worker sees it."""
START_S = 60
_SEPARATE = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
_ISOLATED = """
set -e
mount -t tmpfs none "$(dirname "$1")"
mkdir "$1"
mount --bind "$2" "$1"
cd "$1"
shift 2
while [ "$1" != -- ]; do
    if [ -d "$1" ]; then mount -t tmpfs none "$1"; fi
    shift
done
shift
exec "$@"
"""
"""Gives a process its own folder at the place $1, hides the folders up to `--`, and runs the rest as a command."""


def why_not() -> str:
    """Return why this machine cannot hide its folders from a process, or an empty text if it can."""
    words = [*_SEPARATE, "mount", "-t", "tmpfs", "none", str(INSIDE.parent)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "there is no program unshare"
    return "" if done.returncode == 0 else f"no mount namespace can be made here: {done.stderr.strip()}"


def in_place(folder: Path, words: list[str], *, environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a program that has `folder` at INSIDE, and sees neither the checkout nor any test's folder."""
    hidden = ["/tmp", tempfile.gettempdir(), str(ROOT)]  # noqa: S108 - it is hidden, not used
    command = [*_SEPARATE, "sh", "-c", _ISOLATED, "sh", str(INSIDE), str(folder), *hidden, "--", *words]
    with log.open("ab") as out:
        return subprocess.Popen(command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=out, stderr=out)


@dataclass
class Worker:
    """A worker process, and its folder outside of its namespace."""

    folder: Path
    process: subprocess.Popen[bytes]

    def sees(self, path: Path) -> bool:
        return Path(f"/proc/{self.process.pid}/root{path}").exists()

    def executors(self) -> list[int]:
        return children(self.process.pid)


@dataclass
class Cluster:
    """A running cluster. `master` is the value for --spark-master."""

    master: str
    folder: Path
    environment: Mapping[str, str]
    """The environment variables that each worker has in addition to its own."""
    workers: list[Worker] = field(default_factory=list)
    _made: int = 0

    def add_worker(self, env: Path, spark: Path | None = None, *, memory: str = "1200m") -> Worker:
        """Start a worker of one core with a copy of this environment, and wait until the master knows it.

        The worker's Spark is the one of the environment, or a copy of the folder `spark`.
        """
        self._made += 1
        host = f"127.0.0.{self._made + 1}"  # executors of one host read each other's files
        folder = self.folder / f"worker-{self._made}"
        for name in ("home", "work"):
            (folder / name).mkdir(parents=True)
        linked(env, folder / "env")
        if spark is not None:
            linked(spark, folder / "spark")
        inside = INSIDE / ("spark" if spark is not None else spark_home(env).relative_to(env.parent))
        log = self.folder / f"{folder.name}.log"
        words = [str(inside / "bin/spark-class")]
        words += ["org.apache.spark.deploy.worker.Worker", "--host", host, "--webui-port", "0", "--cores", "1"]
        words += ["--memory", memory, "--work-dir", str(INSIDE / "work"), self.master]
        own = daemon_environment(self.environment, inside) | {"SPARK_LOCAL_IP": host}
        process = in_place(folder, words, environment=own, log=log)
        self.workers.append(Worker(folder, process))
        wait_for("Successfully registered with master", log, process)
        return self.workers[-1]

    def executors(self) -> list[int]:
        return [pid for worker in self.workers for pid in worker.executors()]

    def lose(self, worker: Worker) -> None:
        for pid in [*worker.executors(), worker.process.pid]:
            _kill(pid)
        worker.process.wait()
        self.workers.remove(worker)


def spark_home(env: Path) -> Path:
    (found,) = env.glob("lib/python3.*/site-packages/pyspark")
    return found


def daemon_environment(more: Mapping[str, str], spark: Path) -> dict[str, str]:
    mine = {name: os.environ[name] for name in ("JAVA_HOME", "LANG") if name in os.environ}
    return mine | {
        "PATH": f"{PYTHON.parent}:{os.environ['PATH']}",
        "HOME": str(INSIDE / "home"),
        "SPARK_HOME": str(spark),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        **more,
    }


@contextmanager
def running(
    folder: Path, env: Path, environment: Mapping[str, str], *, spark: Path | None = None, workers: int = 2
) -> Iterator[Cluster]:
    with ExitStack() as stack:
        port, log, home = free_port(), folder / "master.log", spark or spark_home(env)
        words = [str(home / "bin/spark-class"), "org.apache.spark.deploy.master.Master"]
        words += ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        with log.open("ab") as out:
            own = daemon_environment({}, home)
            master = subprocess.Popen(words, env=own, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder)
        stack.callback(master.wait)
        stack.callback(_kill, master.pid)
        wait_for("I have been elected leader", log, master)
        cluster = Cluster(f"spark://127.0.0.1:{port}", folder, environment)
        stack.callback(lambda: [cluster.lose(each) for each in list(cluster.workers)])
        for _ in range(workers):
            cluster.add_worker(env, spark)
        yield cluster


def wait_for(words: str, log: Path, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_S
    while words not in (said := log.read_text(errors="replace")):
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"{log} has no {words!r}: {said[-2000:]}")
        time.sleep(0.1)


def children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # the process has ended
        if int(text.rpartition(")")[2].split()[1]) == parent:
            found.append(int(stat.parent.name))
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
