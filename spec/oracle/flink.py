"""Compiles small programs against Flink's own classes, and runs them to get Flink's answers."""

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from spec.flink.java import jars_folder, program

VERSION: Final = "2.3.0"
SOURCES: Final = Path(__file__).parent
LOCKED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "flink-core-2.3.0.jar": "26b63fadf4808727cfbdc5271ee600144dacf15db8aab5a77c1e59005ea140aa",
        "flink-core-api-2.3.0.jar": "f9f3c9bdb4e0c0d0f15b3e2e4def4ee6cd56edfc55c9514b9004a1db4a51e351",
        "flink-metrics-core-2.3.0.jar": "ea5f85e7490ab3363230f771edb78ea69856ac2eaf75e340db99c67f2c72b982",
        "flink-runtime-2.3.0.jar": "490e92d30cbd766e070f2bfc3c011b1830dc165894be2735a5585b8b9e76cb69",
        "flink-runtime-2.3.0-tests.jar": "6a125e5cacae3de26aecd6456eda97778b43f7f72668a844ec1e1febaef66930",
        "flink-annotations-2.3.0.jar": "43eef36e172f5bc727a63c75347ba5cc4ceeb569f5daaf64421da248c224308a",
        "flink-shaded-guava-33.5.0-jre-21.0.jar": "6644e530e098362a964467902b5ecf615aca63ca4424351b69e37108aa09b288",
        "flink-shaded-jackson-2.20.1-21.0.jar": "696df51ebc642b2832db3b02517e60fee8d96fb1fe23f519c9897d02ff845ab2",
        "flink-shaded-netty-4.2.6.Final-21.0.jar": "2b0272b90e844cfafa9fc378bb8cd9f0fb50199b819368211082ba46acf19184",
        "slf4j-api-1.7.36.jar": "d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0",
    }
)
"""The SHA-256 of every jar. `.ci/fetch_flink.py` fetches the jars."""

_TIMEOUT_S: Final = 300


class FlinkError(Exception):
    """Flink's classes are missing, or cannot be compiled against or run.

    The message gives the reason, and the command to type.
    """


def folder() -> Path:
    """Return the folder of Flink's jars."""
    return jars_folder() / f"flink-{VERSION}"


def answers(main: str, components: Iterable[str], seeds: range) -> list[dict[str, Any]]:
    """Return the cases that the program `main` makes: random input for each component and seed, and Flink's answers.

    The cases lie in the order of the components. Raises FlinkError if a jar is missing or the program fails.
    """
    jars = _class_path()
    class_path = f"{_compiled(jars)}{os.pathsep}{jars}"
    said = _run(["java", "-cp", class_path, main, str(seeds.start), str(seeds.stop), *components])
    return [json.loads(line) for line in said.splitlines()]


def _compiled(jars: str) -> Path:
    """Return the folder of the compiled sources. Compile them first if they have changed."""
    sources = sorted(SOURCES.glob("*.java"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    classes = folder() / f"classes-{digest}"
    if not classes.exists():
        made = Path(tempfile.mkdtemp(prefix=".classes-", dir=folder()))
        _run(["javac", "-nowarn", "-cp", jars, "-d", str(made), *map(str, sources)])
        made.replace(classes)
    return classes


def _class_path() -> str:
    missing = next((name for name in LOCKED if not (folder() / name).exists()), None)
    if missing is not None:
        raise FlinkError(f"{folder() / missing} is missing: fetch Flink's jars with 'make flink-oracle'")
    return os.pathsep.join(str(folder() / name) for name in LOCKED)


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603
            [program(command[0]), *command[1:]], check=False, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except FileNotFoundError:
        raise FlinkError(
            f"there is no {command[0]}: Flink's classes need a JDK 17, on the PATH or in JAVA_HOME"
        ) from None
    except subprocess.TimeoutExpired:
        raise FlinkError(f"{command[0]} took more than {_TIMEOUT_S} s") from None
    if done.returncode:
        words = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise FlinkError(f"{command[0]} failed. It said last:\n{words}")
    return done.stdout
