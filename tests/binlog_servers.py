"""A real MariaDB server for tests: Debian's package, started, killed and restarted by its process id."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pymysql

START_S = 120
LOG = ("--log-bin=binlog", "--binlog-format=ROW", "--binlog-row-image=FULL", "--sync-binlog=0")
PROGRAMS = ("mariadbd", "mariadb-install-db")


class MariaServer:
    """One server on 127.0.0.1 with a free port and a folder of its own."""

    def __init__(self, *options: str) -> None:
        missing = [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
        assert not missing, f"{missing} of MariaDB are missing: apt-get install mariadb-server"
        self.folder = Path(tempfile.mkdtemp(prefix="maria"))
        self.data, self.options = self.folder / "data", options or LOG
        self._do("mariadb-install-db", "--auth-root-authentication-method=normal", "--skip-test-db")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.start()
        with self.connect() as connection:
            connection.cursor().execute("CREATE USER IF NOT EXISTS root@127.0.0.1")
            connection.cursor().execute("GRANT ALL ON *.* TO root@127.0.0.1 WITH GRANT OPTION")

    def url(self, database: str, login: str = "root:") -> str:
        return f"mariadb://{login}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str | None = None) -> pymysql.Connection:
        where = str(self.folder / "socket")
        return pymysql.connect(unix_socket=where, user="root", database=database, autocommit=True)

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    self._path("mariadbd"), "--no-defaults", *self._as_root(), f"--datadir={self.data}",
                    f"--socket={self.folder / 'socket'}", f"--port={self.port}", "--bind-address=127.0.0.1",
                    "--server-id=1", f"--pid-file={self.folder / 'pid'}", "--innodb-buffer-pool-size=32M",
                    "--innodb-flush-log-at-trx-commit=2", *self.options,
                ],
                stdout=log,
                stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + START_S
        while True:
            try:
                self.connect().close()
            except pymysql.OperationalError as error:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise AssertionError((self.folder / "log").read_text()) from error
                time.sleep(0.1)
            else:
                return

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _do(self, program: str, *words: str) -> None:
        command = [self._path(program), "--no-defaults", *self._as_root(), f"--datadir={self.data}", *words]
        subprocess.run(command, check=True, capture_output=True)

    def _as_root(self) -> tuple[str, ...]:
        return ("--user=root",) if os.geteuid() == 0 else ()

    def _path(self, program: str) -> str:
        found = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
        assert found is not None
        return found
