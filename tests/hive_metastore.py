"""A real Hive metastore for tests: the server that is in Spark's own jars, over Derby, on 127.0.0.1."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tests.local_server import free_port

START_S = 120
_OPENS = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.lang", "java.net", "java.util")]
_SITE = """<configuration>
  <property><name>javax.jdo.option.ConnectionURL</name><value>jdbc:derby:;databaseName={root}/db;create=true</value></property>
  <property><name>javax.jdo.option.ConnectionDriverName</name><value>org.apache.derby.jdbc.EmbeddedDriver</value></property>
  <property><name>datanucleus.schema.autoCreateAll</name><value>true</value></property>
  <property><name>hive.metastore.schema.verification</name><value>false</value></property>
  <property><name>hive.metastore.warehouse.dir</name><value>file://{root}/managed</value></property>
  <property><name>hive.async.log.enabled</name><value>false</value></property>
</configuration>
"""


@contextmanager
def hive_metastore(root: Path) -> Iterator[str]:
    """Start a metastore whose files lie in `root`, and yield its address. Raise an error if it does not start."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "hive-site.xml").write_text(_SITE.format(root=root))
    port = free_port()
    spec = find_spec("pyspark")
    jars = Path(spec.submodule_search_locations[0]) / "jars"
    java = shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ['PATH']}")
    command = [java, "-Xmx400m", f"-Dderby.stream.error.file={root}/derby.log", *_OPENS, "-cp", f"{root}:{jars}/*"]
    with (root / "server.log").open("w") as log:
        server = subprocess.Popen(
            [*command, "org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port)], stdout=log, stderr=log
        )
        try:
            _wait(server, port, root)
            yield f"thrift://127.0.0.1:{port}"
        finally:
            server.kill()
            server.wait()


def _wait(server: subprocess.Popen, port: int, root: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"the Hive metastore did not start:\n{(root / 'server.log').read_text()[-2000:]}")
