"""Runs Debezium's engine in a separate process, and writes what the engine delivers to standard output, in lines.

`python -m jobs.sources.debezium.engine` is started by `running.RunningEngine`. The first line of the program's input is
the JSON text of the settings. So no argument, environment variable or file contains a password. Each further line is a
place of the server's log (`binlog.000003 1189`). Once everything before the newest of these places has been delivered,
the program answers `I`. It does not answer older places. When the input ends, the program stops, so it does not outlive
the process that started it.

| line begins with | then comes                                                                                       |
|------------------|--------------------------------------------------------------------------------------------------|
| `S`              | a number, a space, and the schema of the events with this number                                 |
| `E`              | the number of the schema, a space, and an event                                                  |
| `T`, `D`, `N`    | the begin or end of a transaction, a change of a table, a notification: offset, a tab, and event |
| `C`              | the offset behind the event before, which is a transaction of its own: a TRUNCATE                |
| `H`              | a line of the schema history, which goes before the event that needs it                          |
| `I`              | the place that was reached                                                                       |
| `F`              | why the engine ended                                                                             |

The engine needs its offset and its schema history in files, which lie in a temporary folder. The next engine begins
from the copies of them in the staged log, not from these files.
"""

import json
import os
import secrets
import select
import shutil
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import jpype

PREFIX: Final = "tidemark"
"""The name of the engine in its own offsets, topics and history."""

_MARK: Final = f"{PREFIX}.mark"
"""The topic of a mark: a record that this program puts behind all that the engine has read. Its value is a place."""
_LOOK_S: Final = 0.05
_JVM: Final = (
    "-Xmx768m",
    "-XX:+UseSerialGC",
    "-Djava.util.logging.config.file=/dev/null",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka=error",
)


class Lines:
    """Writes lines to the reader. Several threads may write."""

    def __init__(self, file: int) -> None:
        self._file = open(file, "wb", buffering=1 << 16)  # noqa: SIM115 - open as long as the process lives
        self._lock = threading.Lock()

    def write(self, lines: Sequence[str]) -> None:
        """Write whole lines. Block while the reader is slower than the writer."""
        with self._lock:
            self._file.write("".join(f"{line}\n" for line in lines).encode())
            self._file.flush()


class Delivery:
    """Receives the engine's batches (`ChangeConsumer`)."""

    def __init__(self, lines: Lines, history: Path) -> None:
        self._lines, self._history = lines, history
        self._read = history.stat().st_size
        self._schemas = jpype.JClass("java.util.IdentityHashMap")()
        self._converter = _converter(schemas=True)
        self._place: tuple[str, int] | None = None
        self._lock = threading.Lock()

    def expect(self, place: tuple[str, int]) -> None:
        """Expect this place of the server's log: once all lines before it are written, the line `I` is written."""
        with self._lock:
            self._place = place

    @property
    def place(self) -> tuple[str, int] | None:
        """The expected place, or None if it was reached."""
        return self._place

    def reached(self, place: tuple[str, int]) -> list[str]:
        """Return the line `I` if the expected place lies at this place or before it. Otherwise return no line."""
        with self._lock:
            expected = self._place
            if expected is None or not _is_behind(place, expected):
                return []
            self._place = None
        return [f"I{_line_of(expected)}"]

    def handle(self, records: Any, committer: Any) -> None:  # noqa: ANN401 - objects of Java
        """Write a batch. The lines of history that its events need are written first."""
        lines = self._history_lines()
        for record in records:
            if str(record.destination()) == _MARK:
                lines += self.reached(_place_in(json.loads(str(record.value()))))
                continue
            lines += self._lines_of(record)
            committer.markProcessed(record)
        self._lines.write(lines)
        committer.markBatchFinished()

    def _lines_of(self, record: Any) -> list[str]:  # noqa: ANN401
        topic, value = str(record.destination()), record.value()
        if value is None or topic.startswith("__debezium-heartbeat"):
            return []
        kind = {f"{PREFIX}.transaction": "T", PREFIX: "D", f"{PREFIX}.notifications": "N"}.get(topic)
        source = record.sourceRecord()
        offset = {str(name): _plain(each) for name, each in dict(source.sourceOffset()).items()}
        if kind is not None:
            line = f"{kind}{json.dumps(offset)}\t{value}"
            if kind == "T" and json.loads(str(value)).get("status") == "BEGIN":  # its offset is where it begins
                return [*self.reached((str(offset.get("file")), int(offset.get("pos") or 0))), line]
            return [line]
        schema, lines = source.valueSchema(), []
        number = self._schemas.get(schema)
        if number is None:
            number = self._schemas.size()
            self._schemas.put(schema, number)
            lines.append(f"S{number} {self._converter.asJsonSchema(schema)}")
        lines.append(f"E{number} {value}")
        if str(source.value().getString("op")) == "t":  # TRUNCATE commits itself, and Debezium tells no end of it
            gtid = _plain(source.value().getStruct("source").getString("gtid"))
            lines.append(f"C{json.dumps(behind(offset, gtid))}")
        return lines

    def _history_lines(self) -> list[str]:
        if self._history.stat().st_size == self._read:
            return []
        with self._history.open("rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]
        self._read += len(whole) + 1 if whole else 0
        return [f"H{line}" for line in whole.decode().splitlines() if line]


def behind(offset: dict[str, Any], gtid: str | None) -> dict[str, Any]:
    """Return the offset behind a statement. `gtid` is the statement's GTID, if it has one.

    With GTIDs, Debezium's own offset lies before the statement, so an engine that resumes from that offset repeats the
    statement. An offset has the GTIDs that were read: MariaDB's `0-1-9` is the newest of domain 0, and MySQL's
    `uuid:1-9` is the range of all that come from a server.
    """
    if not gtid:
        return offset
    known = [each.strip() for each in str(offset.get("gtids") or "").split(",") if each.strip()]
    server, is_mysql, number = gtid.rpartition(":")
    if is_mysql:
        known = [each for each in known if not each.startswith(f"{server}:")] + [
            f"{next((each for each in known if each.startswith(f'{server}:')), server)}:{number}"
        ]
    else:
        domain = f"{gtid.partition('-')[0]}-"
        known = [*(each for each in known if not each.startswith(domain)), gtid]
    place = {name: each for name, each in offset.items() if name in ("ts_sec", "file", "pos", "server_id")}
    return place | {"gtids": ",".join(known)}


def _plain(value: Any) -> Any:  # noqa: ANN401
    """Convert a Java value to a JSON value."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, jpype.JClass("java.lang.Boolean")):
        return bool(value)
    return int(value) if isinstance(value, jpype.JClass("java.lang.Number")) else str(value)


class DebeziumEngine:
    """The engine, and its progress as its metrics report it."""

    def __init__(self, settings: dict[str, Any], folder: Path, lines: Lines) -> None:
        """Write the offset and the history of the settings into files. The metrics' names contain `connector`."""
        self._connector, self._lines = settings["connector"], lines
        history, offsets = folder / "history", folder / "offsets"
        history.write_text("".join(f"{line}\n" for line in settings["history"]))
        named = settings["properties"] | {
            "name": PREFIX,
            "topic.prefix": PREFIX,
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": str(offsets),
            "offset.flush.interval.ms": "0",
            "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
            "schema.history.internal.file.filename": str(history),
            "notification.enabled.channels": "sink",
            "notification.sink.topic.name": f"{PREFIX}.notifications",
        }
        if settings["certificates"]:
            named |= _trusting(settings["certificates"], folder / "trusted")
        if settings["offset"]:
            _write_offset(offsets, settings["offset"])
        self.delivery = Delivery(lines, history)
        properties = jpype.JClass("java.util.Properties")()
        for name, value in named.items():
            properties.setProperty(name, value)
        debezium = jpype.JClass("io.debezium.engine.DebeziumEngine")
        done = jpype.JProxy(_named("CompletionCallback"), {"handle": self._ended})
        take = {"handleBatch": self.delivery.handle, "supportsTombstoneEvents": lambda: True}
        consumer = jpype.JProxy(_named("ChangeConsumer"), take)
        builder = debezium.create(jpype.JClass("io.debezium.engine.format.Json")).using(properties)
        self._engine = builder.notifying(consumer).using(jpype.JObject(done, _named("CompletionCallback"))).build()
        self._thread = threading.Thread(target=self._engine.run, daemon=True)
        self._marked: tuple[str, int] | None = None
        self._file = ""
        self._beans = jpype.JClass("java.lang.management.ManagementFactory").getPlatformMBeanServer()

    def start(self) -> None:
        """Start the engine."""
        self._thread.start()

    def close(self) -> None:
        """Stop the engine."""
        self._engine.close()

    def look(self) -> None:
        """Put a mark into the engine's queue, once the engine has read the server's log up to the expected place.

        The engine reports an event as read when all records of the event are in the queue. So the mark is delivered
        behind all records from before the place, however long that takes.
        """
        place = self.delivery.place
        if place is None or place == self._marked or not self._has_read(place):
            return
        queue = self._queue()
        if queue.remainingCapacity() * 2 < queue.totalCapacity():  # a full one would hold up this thread
            return
        self._marked = place
        text = jpype.JClass("org.apache.kafka.connect.data.SchemaBuilder").string().name(_MARK).build()
        record = jpype.JClass("org.apache.kafka.connect.source.SourceRecord")
        mark = record(_java_map({}), _java_map({}), _MARK, text, _line_of(place))
        queue.enqueue(jpype.JClass("io.debezium.pipeline.DataChangeEvent")(mark))

    def _has_read(self, place: tuple[str, int]) -> bool:
        """Return True if the engine has read the server's log up to this place.

        The engine updates the name of its log file before the position in that file. So the name must be the same as at
        the last look.
        """
        name = f"debezium.{self._connector}:type=connector-metrics,context=streaming,server={PREFIX}"
        bean = jpype.JClass("javax.management.ObjectName")(name)
        if not self._beans.isRegistered(bean):
            return False
        before, wanted = self._file, ("Connected", "BinlogFilename", "BinlogPosition")
        connected, file, position = (self._beans.getAttribute(bean, each) for each in wanted)
        self._file = str(file)
        return bool(connected) and self._file == before and _is_behind((self._file, int(position)), place)

    def _queue(self) -> Any:  # noqa: ANN401
        """Return the queue from which the engine takes its records. It is a private field of the engine's task."""
        tasks: list[Any] = []
        self._engine.runWithTask(tasks.append)
        field = tasks[0].getClass().getDeclaredField("queue")
        field.setAccessible(True)
        return field.get(tasks[0])

    def _ended(self, succeeded: Any, message: Any, error: Any) -> None:  # noqa: ANN401
        told = [] if succeeded else [str(message)]
        while error is not None and len(told) < 10:  # noqa: PLR2004 - a chain of causes has an end
            told.append(str(error.getMessage()))
            error = error.getCause()
        self._lines.write(["F" + " | ".join(dict.fromkeys(" ".join(each.split()) for each in told))])


def _named(interface: str) -> str:
    return f"io.debezium.engine.DebeziumEngine${interface}"


def _is_behind(place: tuple[str, int], other: tuple[str, int]) -> bool:
    """Return True if the first place is equal to the second one, or lies behind it."""
    return (_number(place[0]), place[1]) >= (_number(other[0]), other[1])


def _number(file: str) -> int:
    """Return the number of a log file, which may have more than six digits."""
    digits = file.rpartition(".")[2]
    return int(digits) if digits.isdecimal() else -1


def _write_offset(path: Path, offset: dict[str, Any]) -> None:
    """Write the offset as the engine's own store does."""
    store = jpype.JClass("org.apache.kafka.connect.storage.FileOffsetBackingStore")(_converter(schemas=False))
    plain = "org.apache.kafka.connect.json.JsonConverter"
    settings = _java_map(
        {
            "offset.storage.file.filename": str(path),
            "bootstrap.servers": "none:1",  # which the store's settings must have, and the store does not use
            "key.converter": plain,
            "value.converter": plain,
        }
    )
    store.configure(jpype.JClass("org.apache.kafka.connect.runtime.standalone.StandaloneConfig")(settings))
    store.start()
    values = jpype.JClass("java.util.HashMap")()
    key = json.dumps([PREFIX, {"server": PREFIX}], separators=(",", ":"))
    values.put(_bytes(key), _bytes(json.dumps(offset, separators=(",", ":"))))
    store.set(values, None).get()
    store.stop()


def _trusting(certificates: str, path: Path) -> dict[str, str]:
    """Write the certificates of a PEM text into a Java key store. Return the properties that name the store.

    Debezium's reader of the log uses the properties `database.*`. Its MariaDB client has other names for them,
    `driver.*`.
    """
    store = jpype.JClass("java.security.KeyStore").getInstance("PKCS12")
    word = secrets.token_hex(16)  # such a store has a password, and the certificates in it are public
    store.load(None, word)
    text = jpype.JClass("java.io.ByteArrayInputStream")(jpype.JArray(jpype.JByte)(certificates.encode()))
    found = jpype.JClass("java.security.cert.CertificateFactory").getInstance("X.509").generateCertificates(text)
    for number, each in enumerate(found):
        store.setCertificateEntry(f"{number}", each)
    out = jpype.JClass("java.io.FileOutputStream")(str(path))
    store.store(out, word)
    out.close()
    return {
        "database.ssl.truststore": str(path),
        "database.ssl.truststore.password": word,
        "driver.trustStore": str(path),
        "driver.trustStorePassword": word,
    }


def _converter(*, schemas: bool) -> Any:  # noqa: ANN401
    converter = jpype.JClass("org.apache.kafka.connect.json.JsonConverter")()
    converter.configure(_java_map({"schemas.enable": str(schemas).lower()}), False)  # noqa: FBT003 - Java
    return converter


def _java_map(values: dict[str, str]) -> Any:  # noqa: ANN401
    made = jpype.JClass("java.util.HashMap")()
    for name, value in values.items():
        made.put(name, value)
    return made


def _bytes(text: str) -> Any:  # noqa: ANN401
    return jpype.JClass("java.nio.ByteBuffer").wrap(jpype.JArray(jpype.JByte)(text.encode()))


def _places(pending: bytearray) -> list[tuple[str, int]] | None:
    """Return the places that the input has brought, or None at the end of the input."""
    ready, _, _ = select.select([0], [], [], _LOOK_S)
    if ready:
        found = os.read(0, 1 << 16)
        if not found:
            return None
        pending += found
    whole, _, rest = bytes(pending).rpartition(b"\n")
    pending[:] = rest
    return [_place_in(line.decode()) for line in whole.splitlines()]


def _line_of(place: tuple[str, int]) -> str:
    return f"{place[0]} {place[1]}"


def _place_in(line: str) -> tuple[str, int]:
    """Return the place of the server's log that a line names, such as `binlog.000003 1189`."""
    file, position = line.split()
    return file, int(position)


def _first_line() -> bytes:
    found = bytearray()
    while not found.endswith(b"\n"):
        part = os.read(0, 1)
        if not part:
            break
        found += part
    return bytes(found)


def main() -> None:
    """Run the engine until the input ends."""
    out = os.dup(1)
    os.dup2(2, 1)  # what Java prints is no line of ours
    settings = json.loads(_first_line() or b"null")
    if settings is None:
        return
    lines, folder = Lines(out), Path(tempfile.mkdtemp(prefix="tidemark-engine-"))
    try:
        jpype.startJVM(*_JVM, classpath=settings["jars"])
        engine = DebeziumEngine(settings, folder, lines)
        engine.start()
        delivery, pending = engine.delivery, bytearray()
        while (found := _places(pending)) is not None:
            if found:
                delivery.expect(found[-1])
            engine.look()
        threading.Timer(3, os._exit, (0,)).start()  # an engine that does not stop must not stay
        engine.close()
    except BrokenPipeError:
        pass
    except jpype.JException as error:
        lines.write([f"F{error}".replace("\n", " ")])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
