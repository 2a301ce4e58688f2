"""A real schema registry for tests: Apicurio's, which offers Confluent's interface, on a free port of this machine."""

import os
import signal
import subprocess
import tarfile
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import mkdtemp

import httpx2

from jobs.spark.jars import JarsError, jars_folder
from tests.local_server import free_port

VERSION = "3.0.9"
COORDINATE = f"io.apicurio:apicurio-registry-app:{VERSION}"
ARCHIVE = f"apicurio-registry-app-{VERSION}-all.tar.gz"
SHA256 = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
START_S = 90.0


class Registry:
    """One registry. Its content and its port stay the same after `kill` and `start`."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/apis/ccompat/v7"
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the registry's process, and wait until it answers. Raise RuntimeError with its last output."""
        settings = {
            "quarkus.http.port": self.port,
            "quarkus.http.host": "127.0.0.1",
            "apicurio.storage.kind": "sql",
            "apicurio.storage.sql.kind": "h2",
            "apicurio.datasource.url": f"jdbc:h2:file:{self._folder / 'schemas'};WRITE_DELAY=0",  # survives a kill
            "apicurio.rest.deletion.artifact.enabled": "true",
            "apicurio.rest.deletion.artifact-version.enabled": "true",
            "user.home": self._folder,
        }
        given = [f"-D{name}={value}" for name, value in settings.items()]
        jar = unpacked() / f"apicurio-registry-app-{VERSION}-runner.jar"
        java = ["java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *given, "-jar", str(jar)]
        log = self._folder / "registry.log"
        environment = {name: value for name, value in os.environ.items() if name != "JAVA_TOOL_OPTIONS"}
        with log.open("ab") as said:
            self._process = subprocess.Popen(java, stdout=said, stderr=said, cwd=self._folder, env=environment)
        limit = time.monotonic() + START_S
        while time.monotonic() < limit and self._process.poll() is None:
            try:
                httpx2.get(f"{self.url}/subjects", timeout=5).raise_for_status()
            except httpx2.HTTPError:
                time.sleep(0.3)
            else:
                return
        self.kill()
        raise RuntimeError(f"the registry did not start: {log.read_text(errors='replace')[-2000:]}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


def unpacked() -> Path:
    """Return the folder of the registry's program. The first call unpacks it. Raise JarsError if it was not fetched."""
    archive, folder = jars_folder() / ARCHIVE, jars_folder() / f"apicurio-registry-{VERSION}"
    if not archive.exists():
        raise JarsError(f"{archive} is missing: fetch the registry with 'python .ci/fetch_registry.py'")
    if not folder.exists():
        work = Path(mkdtemp(dir=jars_folder()))
        with tarfile.open(archive) as packed:
            packed.extractall(work, filter="data")
        try:
            work.rename(folder)
        except OSError:  # another process was first
            assert folder.exists()
    return folder


@contextmanager
def running_registry(folder: Path):
    registry = Registry(folder)
    registry.start()
    try:
        yield registry
    finally:
        registry.kill()


@contextmanager
def guarded(url: str, login: str):
    """Yield the URL of a proxy that passes only this log-in to a registry, and the list of the log-ins tried."""
    tried: list[str] = []

    class Gate(BaseHTTPRequestHandler):
        def do_GET(self):
            tried.append(self.headers.get("Authorization", ""))
            status, body = 401, b'{"error_code": 40101, "message": "Unauthorized"}'
            if tried[-1] == login:
                answer = httpx2.get(url + self.path)
                status, body = answer.status_code, answer.content
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *said):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Gate)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", tried
    finally:
        server.shutdown()
        server.server_close()
