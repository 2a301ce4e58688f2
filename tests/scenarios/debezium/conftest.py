"""Starts real servers of MariaDB and MySQL for the tests of their changes, and makes a database for each test."""

import functools
import itertools
import subprocess

import pytest

from tests.binlog_servers import MariaServer, MysqlServer
from tests.scenarios.debezium.shop import Shop

_NUMBERS = itertools.count()
IN_ALL = [pytest.mark.dear, pytest.mark.mysql]
KINDS = [pytest.param(MariaServer, id="mariadb"), pytest.param(MysqlServer, id="mysql", marks=IN_ALL)]
WITH_GTIDS = functools.partial(MysqlServer, *MysqlServer.log, "--gtid-mode=ON", "--enforce-gtid-consistency=ON")
"""MySQL with GTIDs, as it is run with replicas. MariaDB always has GTIDs."""


@pytest.fixture(scope="session", params=KINDS)
def server(request):
    made = request.param()
    yield made
    made.close()


@pytest.fixture(params=KINDS)
def own_server(request):
    """Return a server that the test may kill or reset."""
    made = request.param()
    yield made
    made.close()


@pytest.fixture
def shop(server, tmp_path):
    """Return a new database with two tables of accounts, and with methods to use it."""
    made = Shop(server, f"shop{next(_NUMBERS)}", tmp_path / "staged")
    yield made
    made.close()


@pytest.fixture
def own_shop(own_server, tmp_path):
    made = Shop(own_server, "own", tmp_path / "staged")
    yield made
    made.close()


@pytest.fixture(params=[*KINDS, pytest.param(WITH_GTIDS, id="mysql-gtids", marks=IN_ALL)])
def truncated_shop(request, tmp_path):
    server = request.param()
    made = Shop(server, "own", tmp_path / "staged")
    yield made
    made.close()
    server.close()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """Make an authority (`ca.pem`), a certificate that it signs for 127.0.0.1, and another authority (`other.pem`)."""
    folder = tmp_path_factory.mktemp("certificates")
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
    for words in (
        "req -x509 -newkey rsa:2048 -nodes -subj /CN=authority -keyout ca.key -out ca.pem",
        "req -x509 -newkey rsa:2048 -nodes -subj /CN=another -keyout other.key -out other.pem",
        "req -newkey rsa:2048 -nodes -subj /CN=server -keyout key.pem -out request.pem",
        "x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -extfile san -out cert.pem",
    ):
        subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture(params=KINDS)
def encrypted_shop(request, certificates, tmp_path):
    """Return a shop on a server that accepts only encrypted connections."""
    files = (f"--ssl-cert={certificates}/cert.pem", f"--ssl-key={certificates}/key.pem")
    server = request.param(*request.param.log, *files, "--require-secure-transport=ON")
    made = Shop(server, "own", tmp_path / "staged")
    yield made
    made.close()
    server.close()
