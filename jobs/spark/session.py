"""Opens a Spark session: local in this process by default, on a cluster or a Connect server if configured.

The engine uses only what Spark Connect offers too, so it does not need to know the kind of its session.
"""

import os
import re
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, cast
from uuid import uuid4

import pyspark
import structlog
from pyspark import SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from checkpointing.metadata.record import Holder
from jobs.credentials import without_credentials
from jobs.distribution import DISTRIBUTION
from jobs.spark.jars import S3A, jar_set, jars_of, release_of
from jobs.spark.versions import do_without_pandas
from jobs.storage.address import Root, StoreUrl
from jobs.storage.json_files import document, read_document
from jobs.storage.place import local
from jobs.warehouse.lease import is_alive as holder_is_alive
from jobs.warehouse.lease import this_process
from jobs.warehouse.refusals import TickRefusedError

# ------------------------------------------------------------------
# Lets Spark's JVM and its Python workers talk through Unix domain sockets instead of TCP.
#
# Over TCP, each task loses some 40 ms: one side delays its acknowledgement, and until it comes the other side sends no
# more (Nagle's algorithm). If a job has several functions, they wait one after another. Spark can use Unix domain
# sockets since 4.1 (SPARK-51688).


ENABLED: Final = "spark.python.unix.domain.socket.enabled"
FOLDER: Final = "spark.python.unix.domain.socket.dir"

_PATH_BYTES_MAX: Final = 103
"""The greatest length of a socket's path that every system allows. Linux allows 107 bytes, and macOS 103."""
_NAME: Final = ".00000000-0000-0000-0000-000000000000.sock"
"""A name of the form that Spark gives its sockets."""


def socket_settings(folder: Path) -> dict[str, str]:
    """Return the settings for sockets in this folder of this machine, which only this user can open.

    There are no settings if the folder cannot hold sockets, for example because its path is too long. Then Spark uses
    TCP.
    """
    if not _holds_sockets(folder / _NAME):
        return {}
    return {ENABLED: "true", FOLDER: str(folder)}


def _holds_sockets(path: Path) -> bool:
    if len(os.fsencode(path)) > _PATH_BYTES_MAX:
        return False
    try:
        with socket.socket(socket.AF_UNIX) as tried:
            tried.bind(str(path))
    except OSError:  # file systems of other machines often have none
        return False
    path.unlink()
    return True


# ------------------------------------------------------------------
# Keeps Spark's log and temporary folders in a private folder of this user, outside the warehouse.
#
# The private folder lies in the folder for temporary files, where other users can write too. So it must be a real
# folder that this user owns and nobody else can open. Spark removes its own folders when it ends normally. The folders
# of a killed tick stay until the next tick that starts Spark. A note beside each folder names its process. A folder is
# removed only if that process is certainly dead.


LOG_BYTES_MAX: Final = 10 * 1024 * 1024
"""If Spark's log is larger than this when it is opened, it is renamed and a new log begins."""

_OWNER_SUFFIX: Final = ".owner.json"
_OPEN_TO_OTHERS: Final = 0o077


class UnsafeFolderError(TickRefusedError):
    """The private folder is not private. The message names it and the way out."""


def private_path() -> Path:
    """Return the path of this user's private folder. Nothing is created."""
    return Path(tempfile.gettempdir()) / f"tidemark-{os.getuid()}"


def private_folder() -> Path:
    """Return this user's private folder, and create it if it is missing.

    Raise UnsafeFolderError if others could use it.
    """
    folder = private_path()
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & _OPEN_TO_OTHERS:
        raise UnsafeFolderError(
            f"{folder} is not a folder that this user alone can open, and Spark's log and temporary files belong "
            "there: delete it, or name another folder for temporary files in TMPDIR"
        )
    return folder


def open_log(path: Path) -> int:
    """Return a descriptor that appends to a log file. Raise OSError for a link, which could lead anywhere.

    A log that is too large is first renamed to `<name>.1`, which replaces an older file of that name.
    """
    if path.exists() and path.lstat().st_size > LOG_BYTES_MAX:
        path.replace(path.with_name(f"{path.name}.1"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)


def spark_folder() -> Path:
    """Return a new folder for the temporary files of a Spark that this process starts.

    It first removes the folders of dead processes. Raises UnsafeFolderError.
    """
    remove_dead()
    folder = private_folder() / f"spark-{uuid4().hex[:12]}"  # short, for it holds sockets (`jobs.spark.session`)
    local(_owner(folder)).write(document(this_process()))
    folder.mkdir(mode=0o700)
    return folder


def remove_dead() -> tuple[Path, ...]:
    """Remove the temporary Spark folders of processes that are certainly dead, and return them."""
    gone = tuple(_dead(private_folder()))
    for folder in gone:
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            _owner(folder).unlink(missing_ok=True)
    return gone


def _dead(private: Path) -> Iterator[Path]:
    for note in private.glob(f"spark-*{_OWNER_SUFFIX}"):
        owner = read_document(Holder, local(note))
        if owner is not None and holder_is_alive(owner) is False:  # otherwise nobody could tell whose folder it is
            yield note.with_name(note.name.removesuffix(_OWNER_SUFFIX))


def _owner(folder: Path) -> Path:
    """Return the path of the note that names a folder's process."""
    return folder.with_name(f"{folder.name}{_OWNER_SUFFIX}")


_log = structlog.get_logger(__name__)

CLASS_ARCHIVE: Final = Path(sys.prefix) / "spark-classes.jsa"
"""The file in which `jobs.tick.class_archive` keeps the classes of a JVM.

The file contains paths of this environment.
"""

TEMPORARY: Final = "spark.local.dir"
"""Folders for data that does not fit into memory, and for files that Spark's processes exchange."""

JVM_OPTIONS: Final = "spark.driver.extraJavaOptions"
SILENT: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
"""Options with which a JVM prints nothing about an archive that does not fit. It ignores such an archive."""
LATE_C2: Final = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:Tier4InvocationThreshold=200000 -XX:Tier4MinInvocationThreshold=24000 "
    "-XX:Tier4CompileThreshold=600000 -XX:Tier4BackEdgeThreshold=1600000"
)
"""With these options, the thorough compiler (C2) begins forty times later than by default.

The planning of small micro-batches runs a lot of code a few thousand times. To compile that code thoroughly took more
CPU time than it saved. Loops over rows still run often enough to be compiled.
"""

_PACKED: Final = "tidemark"
PACKED_PYTHON: Final = f"./{_PACKED}/bin/python"
"""The program of an unpacked archive (`jobs.packing`), from the working folder of an executor."""
WORKER_PYTHON: Final = "spark.sql.execution.pyspark.python"
"""The Python of the workers. It wins over PYSPARK_PYTHON, and over the Python of a Connect server."""

_LOCALES: Final = ("LC_ALL", "LC_CTYPE", "LANG")
"""The variables that decide the encoding of file names, the strongest first."""

_NO_BOUND: Final = 2**31 - 1
"""The number of bytes that Spark's writer of Arrow batches takes for no bound (BatchedPythonArrowInput)."""

_LOGGERS_OF_ERRORS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")

_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _log_file() -> Path:
    return private_path() / "spark.log"


_CLIENT_NEEDS: Final = ("grpc", "grpc_status", "pandas")
CONNECT_S: Final = 15.0
"""A Connect server that has not answered after this time counts as unreachable."""
_RETRIES: Final = 9
_BACKOFF_MS: Final = 5_000
"""With these settings, PySpark retries for about half a minute if its server goes away. The default is ten minutes."""

_OUTPUT: Final = (1, 2)
_SAID_MAX: Final = 64 * 1024
_TELLING: Final = re.compile(r"error|exception|could not|cannot|invalid|unable|no such|not found", re.IGNORECASE)
_NO_MEMORY: Final = re.compile(
    r"could not reserve|cannot allocate memory|insufficient memory|invalid (?:maximum|initial) heap|too small "
    r"(?:initial|maximum) heap|exceeds the maximum|could not allocate|OutOfMemoryError",
    re.IGNORECASE,
)


class SparkNotStartedError(RuntimeError):
    """Spark's JVM did not start, or its Connect server cannot be reached. The message names the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkConfig:
    """The Spark session to open.

    With `connect_url` (`sc://host:port`), the session joins a running Connect server. Of the other fields, only `cores`
    and `archive` are used then. `archive` is a file that `tidemark package` built: the workers run its Python. Without
    a `connect_url`, this process starts or joins `master`. `memory` is the JVM's heap in Spark's notation (`2g`). A
    delta-spark jar among `jars` switches on Delta's SQL. `jar_sets` are names of `jobs.spark.jars`. The JVM's output
    goes to `log_file`, or to stderr if that is None. `settings` overrides any Spark setting.
    """

    cores: int = field(default_factory=_cores)
    master: str | None = None
    connect_url: str | None = None
    memory: str = "2g"
    archive: Path | None = None
    jars: tuple[Path, ...] = ()
    jar_sets: tuple[str, ...] = ()
    log_file: Path | None = field(default_factory=_log_file)
    settings: Mapping[str, str] = field(default_factory=dict)


def open_session(config: SparkConfig) -> SparkSession:
    """Return a session of this configuration. A classic session that is open in this process is used again.

    The caller stops the session, unless other code has opened it (`finds_open`). Raises JarsError if a set of jars was
    not fetched. This also switches off PySpark's own log of errors, which prints each error with its Java stack, even
    an error that is caught.
    """
    for name in _LOGGERS_OF_ERRORS:
        PySparkLogger.getLogger(name).disabled = True
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if config.connect_url is not None:
        return _joined(config, config.connect_url)
    do_without_pandas()
    builder = SparkSession.builder.appName("tidemark").master(config.master or f"local[{config.cores}]")
    for name, value in (places(config) | classic_settings(config)).items():
        builder = builder.config(name, value)
    with _output_of_children(config.log_file) as log, _locale_of_children():
        try:
            opened = builder.getOrCreate()
        except PySparkRuntimeError as error:
            if error.getCondition() != "JAVA_GATEWAY_EXITED":
                raise
            raise SparkNotStartedError(_why_no_jvm(config, log)) from error
    _quiet_accumulators(opened)
    return opened


def _joined(config: SparkConfig, url: str) -> SparkSession:
    """Join a Connect server. PySpark itself would ask a server that does not answer for more than ten minutes."""
    lacking = [name for name in _CLIENT_NEEDS if find_spec(name) is None]
    if lacking:  # PySpark itself would end the process with exit code 0
        what = f"{lacking[0]}, which Spark's Connect client needs,"
        raise SparkNotStartedError(f"{what} is not installed: pip install '{DISTRIBUTION}[connect]'")
    import grpc  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra
    from pyspark.sql.connect.client import DefaultChannelBuilder  # noqa: PLC0415 - the same
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415 - the same

    try:
        builder = DefaultChannelBuilder(url)
        channel = builder.toChannel()
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECT_S)
        finally:
            channel.close()
        session: SparkSession = SparkSession.builder.remote(url).getOrCreate()
        _must_be_alike(url, session)
        cast("Any", session).client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES, max_backoff=_BACKOFF_MS)])
        for name, value in session_settings(config.cores).items():
            session.conf.set(name, value)
        if config.archive is not None:
            session.addArtifacts(_unpacked(config.archive), archive=True)
            session.conf.set(WORKER_PYTHON, PACKED_PYTHON)
    except grpc.FutureTimeoutError as error:
        what = f"the Spark Connect server {without_credentials(url)} did not answer within {CONNECT_S:.0f} s"
        way_out = "start it, or correct the address, use_ssl and the token of spark_connect_url"
        raise SparkNotStartedError(f"{what}: {way_out}") from error
    except (grpc.RpcError, PySparkException, ValueError) as error:
        said = without_credentials((str(error).splitlines() or [type(error).__name__])[0])
        what = f"the Spark Connect server {without_credentials(url)} refuses the session"
        raise SparkNotStartedError(f"{what} ({said}): correct spark_connect_url") from error
    return session


def _must_be_alike(url: str, session: SparkSession) -> None:
    """Raise SparkNotStartedError if the server's Spark is another release than this client's.

    The server's workers run functions that this client has pickled with its own release.
    """
    theirs = session.version
    if release_of(theirs) != release_of(pyspark.__version__):
        session.stop()
        raise SparkNotStartedError(
            f"the Spark Connect server {without_credentials(url)} runs Spark {theirs}, and this client has Spark "
            f"{pyspark.__version__}: install the server's release here with "
            f"pip install 'pyspark[connect]=={release_of(theirs)}.*'"
        )


def _why_no_jvm(config: SparkConfig, log: tuple[Path, int] | None) -> str:
    """Return why no JVM started, from its last output, and the way out."""
    said = ""
    if log is not None:
        path, begin = log
        with path.open("rb") as file:
            file.seek(begin)
            said = file.read(_SAID_MAX).decode(errors="replace")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    first = next((line for line in lines if _TELLING.search(line)), lines[0] if lines else "it said nothing")
    if _NO_MEMORY.search(said):
        way_out = f"give it a heap that this machine has, with --spark-memory (now {config.memory})"
    else:
        home = os.environ.get("JAVA_HOME")
        named = f"JAVA_HOME is {home}" if home else "JAVA_HOME is not set"
        way_out = f"let JAVA_HOME name a JDK 17 or 21 ({named}); 'tidemark doctor' checks it"
    where = "" if log is None else f", all it said is in {log[0]}"
    return f"Spark's JVM did not start ({without_credentials(first)}{where}): {way_out}"


def finds_open(config: SparkConfig) -> bool:
    """Return True if `open_session` would return a session that other code has opened in this process."""
    return config.connect_url is None and SparkContext._active_spark_context is not None  # noqa: SLF001 - no other way


@contextmanager
def stopped_at_end(config: SparkConfig) -> Iterator[Callable[[], SparkSession]]:
    """Yield a function that opens a session. The session is stopped at the end, unless other code has opened it."""
    with ExitStack() as stack:

        def session() -> SparkSession:
            own, opened = not finds_open(config), open_session(config)
            if own:
                stack.callback(opened.stop)
            return opened

        yield session


def _quiet_accumulators(session: SparkSession) -> None:
    """Make PySpark's server of accumulators end without a traceback when its JVM dies."""
    server = session.sparkContext._accumulatorServer  # noqa: SLF001 - PySpark offers no other way
    vars(server)["handle_error"] = lambda *_: _log.info("the JVM hung up on the accumulators")


def is_alive(session: SparkSession) -> bool:
    """Return True if a session still answers: its JVM or server lives and its context is not stopped."""
    try:
        return len(session.range(1).collect()) == 1
    except Exception:  # noqa: BLE001 - a session that cannot count to one is dead, whatever the error is
        return False


def abandon(session: SparkSession) -> None:
    """Discard a dead session, so that the next session of this process gets a new JVM.

    PySpark keeps its connection to a JVM for as long as the process lives. Stopping a dead session fails halfway.
    """
    with suppress(Exception):
        session.stop()
    classic = isinstance(session, SparkSession)
    if not classic:
        return  # a Connect server's: there is nothing of it in this process
    with suppress(Exception):
        session.sparkContext.stop()
    gateway = SparkContext._gateway  # noqa: SLF001 - PySpark offers no other way
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None  # noqa: SLF001
    SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001
    if gateway is not None:
        with suppress(Exception):
            gateway.shutdown()


def session_settings(cores: int) -> dict[str, str]:
    """Return the settings that can still be changed in a running session, even on a Connect server.

    Adaptive execution is off, because it would merge the Spark partitions that are subtasks. Spark starts no job to
    list files, because all files are known. Arrow batches are limited only in rows, by Spark's default. For a limit in
    bytes, Spark would add up the sizes of all columns after each row, which takes an eighth of an epoch.
    """
    return {
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(_NO_BOUND),
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
        "spark.sql.parquet.compression.codec": "zstd",
    }


def is_local(config: SparkConfig) -> bool:
    """Return whether the workers are this machine's own processes, of this environment."""
    in_this_process = config.master is None or config.master.startswith("local")
    return config.connect_url is None and in_this_process


def places(config: SparkConfig) -> dict[str, str]:
    """Return the settings by which a Spark of this machine keeps its temporary files and sockets in a new folder.

    A cluster decides that itself. Raises UnsafeFolderError.
    """
    if not is_local(config):
        return {}
    folder = spark_folder()
    return {TEMPORARY: str(folder)} | socket_settings(folder)


def classic_settings(config: SparkConfig) -> dict[str, str]:
    """Return all settings of a session that this process starts. Raise JarsError if a set of jars is missing."""
    sets = (jars for jars in map(jar_set, config.jar_sets) if not jars.apart)
    jars = dict.fromkeys([*config.jars, *(jar for each in sets for jar in jars_of(each))])
    settings = session_settings(config.cores) | {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.locality.wait": "0",
        "spark.driver.memory": config.memory,
        "spark.python.worker.reuse": "true",
        "spark.sql.catalogImplementation": "in-memory",
    }
    settings[JVM_OPTIONS] = LATE_C2
    if CLASS_ARCHIVE.exists():
        settings[JVM_OPTIONS] = f'{LATE_C2} "-XX:SharedArchiveFile={CLASS_ARCHIVE}" {SILENT}'
    if is_local(config):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if config.archive is not None:
        settings |= {"spark.archives": _unpacked(config.archive), WORKER_PYTHON: PACKED_PYTHON}
    if jars:
        settings["spark.jars"] = ",".join(str(jar) for jar in jars)
    if any(jar.name.startswith("delta-spark") for jar in jars):
        # Delta's default of fifty is for logs of millions of files. With fewer, a small table opens in a fraction of
        # the time.
        settings |= _DELTA | {"spark.databricks.delta.snapshotPartitions": str(config.cores)}
    return settings | dict(config.settings)


def _unpacked(archive: Path) -> str:
    """Return an archive as Spark takes it, with the name of the folder into which each executor unpacks it."""
    return f"{archive.absolute()}#{_PACKED}"


@contextmanager
def _locale_of_children() -> Iterator[None]:
    """Make child processes read file names as UTF-8, as Python does, even in the C locale."""
    given = next((value for name in _LOCALES if (value := os.environ.get(name))), "C")
    if given not in {"C", "POSIX"}:
        yield
        return
    before = os.environ.get("LC_ALL")
    os.environ["LC_ALL"] = "C.UTF-8"
    try:
        yield
    finally:
        if before is None:
            del os.environ["LC_ALL"]
        else:
            os.environ["LC_ALL"] = before


@contextmanager
def _output_of_children(log_file: Path | None) -> Iterator[tuple[Path, int] | None]:
    """Make child processes append their output to a file. Yield the file, and its size before their output.

    The JVM always announces an incubator module when it starts, and no option silences that. If it gets no memory, it
    says so on stdout.
    """
    if log_file is None:
        yield None
        return
    if log_file.parent == private_path():
        private_folder()
    log_file.parent.mkdir(parents=True, exist_ok=True)
    target = open_log(log_file)
    kept = [os.dup(number) for number in _OUTPUT]
    try:
        for number in _OUTPUT:
            os.dup2(target, number)
        yield log_file, os.fstat(target).st_size
    finally:
        for number, own in zip(_OUTPUT, kept, strict=True):
            os.dup2(own, number)
            os.close(own)
        os.close(target)


# ------------------------------------------------------------------
# Lets Spark read a warehouse or input in an object store: which jars it needs, and which settings.
#
# Spark's own reader of S3 is Hadoop's `s3a`. Its endpoint and region come from the variables that delta-rs reads. None
# of these settings has credentials: Hadoop's default chain takes them from the environment of its JVM, or from the
# machine's role. Other stores are read by tasks, with the library that writes there. Formats that only Spark can read,
# such as CSV, need a connector to these stores, which the user adds to Spark.


_S3A: Final = "spark.hadoop.fs.s3a."


def spark_reads(root: Root) -> bool:
    """Return whether Spark itself reads files at this address. Otherwise tasks read them."""
    return not isinstance(root, StoreUrl) or root.scheme == "s3"


def with_store(config: SparkConfig, root: Root) -> SparkConfig:
    """Return the configuration of a session that reads this warehouse or input. A setting that the user gave stays."""
    if not isinstance(root, StoreUrl) or not spark_reads(root):
        return config
    sets = tuple(dict.fromkeys([*config.jar_sets, S3A]))
    return replace(config, jar_sets=sets, settings={**s3a_settings(os.environ), **config.settings})


def s3a_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return Hadoop's settings for the store that these variables name. None of them is secret."""
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    settings = {f"{_S3A}endpoint.region": region} if region else {}
    if endpoint:
        encrypted = str(not endpoint.startswith("http://")).lower()
        settings |= {
            f"{_S3A}endpoint": endpoint,
            f"{_S3A}path.style.access": "true",
            f"{_S3A}connection.ssl.enabled": encrypted,
        }
    return settings
