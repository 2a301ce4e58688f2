"""A real Kafka broker for tests and benchmarks: one process on free ports of this machine, in a folder of its own."""

import base64
import os
import resource
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs.spark.jars import JarsError, jars_folder, spark_home
from tests.kafka_jars import BROKER

START_S = 60.0
MAIN = "kafka.Kafka"
FORMAT = "kafka.tools.StorageTool"
PASSWORD = "p4ss-w0rd-of-a-test"  # noqa: S105 - the broker lives as long as the test
LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "reader"}

SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{login},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{login}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule \
  required user_reader="{password}";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
super.users=User:ANONYMOUS
log.dirs={disks}
metadata.log.dir={metadata}
auto.create.topics.enable=false
num.network.threads=2
num.io.threads=2
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
log.initial.task.delay.ms=200
log.cleaner.backoff.ms=200
log.retention.check.interval.ms=500
"""


class Broker:
    """One broker. Its topics and ports stay the same after `kill` and `start`."""

    def __init__(self, folder: Path, heap: str = "384m", disks: int = 1) -> None:
        """Choose ports, and create the broker's folder if needed. Raise JarsError if the jars were not fetched.

        `disks` is the number of folders over which the broker distributes its topics (`log.dirs`). If there are
        several, one more folder has the cluster's metadata.
        """
        jars = jars_folder() / BROKER.name
        missing = [name for name in BROKER.locked if not (jars / name).exists()]
        if missing:
            raise JarsError(f"{jars / missing[0]} is missing: fetch the broker's jars with 'python .ci/fetch_kafka.py'")
        self._java = ["java", f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", _class_path(jars)]
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        port, login, controller = _free_ports(3)
        self.servers = f"127.0.0.1:{port}"
        self.login_servers = f"127.0.0.1:{login}"
        """The address at which the user `reader` logs in with `PASSWORD`."""
        self._properties = folder / "server.properties"
        logs = [folder / "log", *(folder / f"log{number}" for number in range(2, disks + 1))]
        metadata = logs[0] if disks == 1 else folder / "metadata"
        where = {"disks": ",".join(map(str, logs)), "metadata": metadata}
        self._properties.write_text(
            SETTINGS.format(port=port, login=login, controller=controller, password=PASSWORD, **where)
        )
        self._process: subprocess.Popen[bytes] | None = None
        if (metadata / "meta.properties").exists():
            return
        cluster = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")  # no dash in front
        self._run(FORMAT, "format", "-t", cluster, "-c", str(self._properties))

    def start(self) -> None:
        """Start the broker's process, and wait until it listens. Raise RuntimeError with its last output."""
        log = self._folder / "broker.log"
        with log.open("ab") as said:
            command = [*self._java, MAIN, str(self._properties)]
            self._process = subprocess.Popen(command, stdout=said, stderr=said, env=_environment())
        limit = time.monotonic() + START_S
        host, port = self.servers.split(":")
        while time.monotonic() < limit and self._process.poll() is None:
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex((host, int(port))) == 0:
                    return
            time.sleep(0.2)
        self.kill()
        raise RuntimeError(f"the broker did not start: {log.read_text(errors='replace')[-2000:]}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def size_of(self, topic: str) -> int:
        return max(file.stat().st_size for file in self._folder.glob(f"log*/{topic}-*/*.log"))

    def fill_disk(self, size: int) -> None:
        """Make the kernel refuse writes that enlarge a file of the broker, as on a full disk, until the next start.

        A write that reaches the allowed size is cut off there. This uses a limit of the process (RLIMIT_FSIZE), because
        a small file system would need the right to mount.
        """
        assert self._process is not None
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (size, size))

    def wait_until_dead(self) -> None:
        assert self._process is not None
        self._process.wait(START_S)
        self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(START_S)
            self._process = None

    def _run(self, *words: str) -> None:
        done = subprocess.run([*self._java, *words], capture_output=True, text=True, check=False, env=_environment())
        if done.returncode:
            raise RuntimeError(f"{words[0]} failed: {(done.stdout + done.stderr)[-2000:]}")


@contextmanager
def running_broker(folder: Path, heap: str = "384m") -> Iterator[Broker]:
    broker = Broker(folder, heap)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


def _class_path(jars: Path) -> str:
    """Return the broker's jars and Spark's Scala library, which Spark's Ivy never fetches."""
    (scala,) = (spark_home() / "jars").glob("scala-library-*.jar")
    return os.pathsep.join([f"{jars}/*", str(scala)])


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in {"JAVA_TOOL_OPTIONS", "KAFKA_OPTS"}}


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
