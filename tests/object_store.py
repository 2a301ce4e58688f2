"""An S3 server for tests: moto in a process of its own, on 127.0.0.1. `cloud_stores` has the servers of other stores.

In one thread, moto answers one request after the other, so a conditional put is atomic. In several threads, it checks
first and puts later, like a store that breaks its promise. `GET /requests` returns how many requests of each kind came.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

from tests.local_server import free_port

KEY, SECRET = "AKIACANARYCANARY", "canarySecretCanarySecret"
COPY_HEADERS = ("x-amz-copy-source", "x-ms-copy-source", "x-goog-copy-source")


@dataclass(frozen=True)
class Server:
    """A running server. `environment` has the variables that a client needs to reach it."""

    endpoint: str
    pid: int

    named = "AWS_ENDPOINT_URL"
    """The name of the endpoint's setting in messages."""
    secrets = (KEY, SECRET)
    """Texts that must appear in no file, log or message."""

    def url(self, bucket="lake"):
        return f"s3://{bucket}"

    @property
    def unreachable(self):
        """The environment of a client whose endpoint nobody serves."""
        return replace(self, endpoint="http://127.0.0.1:9").environment

    @property
    def environment(self):
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }

    def make_bucket(self, name):
        urlopen(Request(f"{self.endpoint}/{name}", method="PUT")).close()  # noqa: S310 - the server of this test

    def requests(self):
        with urlopen(f"{self.endpoint}/requests") as answer:  # noqa: S310 - the server of this test
            return Counter(json.load(answer))


@contextmanager
def serving(*, threads=False, holding=None):
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    words = [str(port), str(int(threads)), *([str(holding)] if holding else [])]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.object_store", *words],
        env=environment | {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[1],
    )
    try:
        server = Server(f"http://127.0.0.1:{port}", process.pid)
        until = time.monotonic() + (60 if holding is None else 300)
        while True:
            try:
                server.requests()
                break
            except URLError:
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(
                        "moto did not start: is moto[s3], with flask and flask-cors, installed?"
                    ) from None
                time.sleep(0.1)
        yield server
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


def kind_of(method, path, query, headers):
    """Return the kind of a request. `headers` has its names in lower case."""
    if method == "GET" and ("list-type" in query or "comp=list" in query or path.count("/") == 1):
        return "LIST"
    if method == "PUT" and any(name in headers for name in COPY_HEADERS):
        return "COPY"
    deletes = method == "POST" and ("delete" in query or "comp=batch" in query)
    return "DELETE" if deletes else method


def _put_slowly():
    """Add a delay between the check whether an object exists and the put, as under load."""
    from moto.s3.models import S3Backend

    put = S3Backend.put_object

    def slow(*given, **named):
        time.sleep(0.02)
        return put(*given, **named)

    S3Backend.put_object = slow


def _take_in(holding):
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    for bucket in holding.iterdir():
        backend.create_bucket(bucket.name, "us-east-1")
        for path in sorted(path for path in bucket.rglob("*") if path.is_file()):
            backend.put_object(bucket.name, str(path.relative_to(bucket)), path.read_bytes())


def main(port, threads, holding):
    from moto.server import create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    # For each request, moto's dispatcher searches the folders of all services, which takes three quarters of its time.
    s3, settings, seen = create_backend_app("s3"), create_backend_app("moto_api"), Counter()

    def counted(environ, start):
        method, path, query = (environ[key] for key in ("REQUEST_METHOD", "PATH_INFO", "QUERY_STRING"))
        if path == "/requests":
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(seen).encode()]
        headers = {name.removeprefix("HTTP_").replace("_", "-").lower() for name in environ}
        seen[kind_of(method, path, query, headers)] += 1
        return (settings if path.startswith("/moto-api/") else s3)(environ, start)

    if holding:
        _take_in(Path(holding))
    if threads:
        _put_slowly()
    WSGIRequestHandler.log_request = lambda *_: None
    make_server("127.0.0.1", port, counted, threaded=threads).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "1", "".join(sys.argv[3:]))
