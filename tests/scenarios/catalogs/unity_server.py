"""A server in place of a Unity Catalog. It refuses what the recorded definitions of the real interface refuse."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import jsonschema

CONTRACT = json.loads((Path(__file__).parent / "unity_contract.json").read_text())
PREFIX = "/api/2.1/unity-catalog"
KINDS = {"/schemas": "CreateSchema", "/tables": "CreateTable"}


class _Server(ThreadingHTTPServer):
    """A catalog with schemas and tables. Each request needs a token, and each page of a list has one table."""

    def __init__(self, token: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.token, self.schemas, self.tables = token, {}, {}


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self):
        path, query = self._asked()
        if path.startswith("/schemas/"):
            self._answer(self.server.schemas.get(path.removeprefix("/schemas/")))
            return
        if f"{query['catalog_name'][0]}.{query['schema_name'][0]}" not in self.server.schemas:
            self._answer(None)
            return
        at, names = int(query.get("page_token", ["0"])[0]), sorted(self.server.tables)
        more = {"next_page_token": str(at + 1)} if at + 1 < len(names) else {}
        self._answer({"tables": [self.server.tables[name] for name in names[at : at + 1]], **more})

    def do_POST(self):
        path, _ = self._asked()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            jsonschema.validate(body, {"$ref": f"#/definitions/{KINDS[path]}", **CONTRACT})
        except jsonschema.ValidationError as error:
            self._answer({"message": error.message}, 400)
            return
        home = self.server.schemas if path == "/schemas" else self.server.tables
        name = f"{body['catalog_name']}.{body['name']}" if path == "/schemas" else body["name"]
        if name in home:
            self._answer({"message": f"{name} already exists"}, 409)
            return
        home[name] = body
        self._answer(body)

    def do_DELETE(self):
        path, _ = self._asked()
        self._answer(self.server.tables.pop(path.rpartition(".")[2], None))

    def log_message(self, *_):
        pass

    def _asked(self):
        parts = urlsplit(self.path)
        assert parts.path.startswith(PREFIX)
        return parts.path.removeprefix(PREFIX), parse_qs(parts.query)

    def _answer(self, found, code=200):
        if self.headers["Authorization"] != f"Bearer {self.server.token}":
            found, code = {"message": "no token"}, 401
        data = json.dumps({"message": "not found"} if found is None else found).encode()
        self.send_response(404 if found is None else code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def unity_server(token: str) -> Iterator[str]:
    """Start a catalog that requires this token, and yield its address."""
    server = _Server(token)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
