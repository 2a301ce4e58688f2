"""Fetches the jars of Flink that `spec.oracle` runs: once, by the Ivy that Spark ships, and with a check.

`spark-submit --packages` takes no classifier, but Flink's test harnesses need one. So Ivy is started directly.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from jobs.spark.jars import JarsError, fetch_locked, spark_home
from spec.oracle.flink import LOCKED, VERSION, folder

MODULES = (
    *(
        (f"org.apache.flink:flink-{name}:{VERSION}", ("",))
        for name in ("core", "core-api", "metrics-core", "annotations")
    ),
    (f"org.apache.flink:flink-runtime:{VERSION}", ("", "tests")),
    ("org.apache.flink:flink-shaded-guava:33.5.0-jre-21.0", ("",)),
    ("org.apache.flink:flink-shaded-jackson:2.20.1-21.0", ("",)),
    ("org.apache.flink:flink-shaded-netty:4.2.6.Final-21.0", ("",)),
    ("org.slf4j:slf4j-api:1.7.36", ("",)),
)
"""The Maven coordinates, each with the classifiers of its jars."""


def main() -> None:
    """Fetch the locked jars that are missing. On failure, print the reason and exit 1."""
    try:
        fetch_locked(folder(), LOCKED, lambda work: retrieve(work, MODULES))
    except JarsError as error:
        sys.exit(f"tidemark: Flink's classes cannot be had. {error}")


SETTINGS = """<ivysettings><settings defaultResolver="central"/><resolvers>
<ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers></ivysettings>"""


def retrieve(
    work: Path, modules: Iterable[tuple[str, tuple[str, ...]]], kind: str = "jar", *, poms: bool = True
) -> dict[str, Path]:
    """Make Ivy fetch these modules into a folder. Return their files by name. Raise JarsError if Ivy fails.

    `kind` is the ending of the files' names. Without `poms`, Ivy does not fetch the modules' POM files.
    """
    (work / "ivy.xml").write_text(_ivy_module(modules, kind, "master" if poms else "default"), encoding="utf-8")
    (work / "settings.xml").write_text(SETTINGS, encoding="utf-8")
    (ivy,) = (spark_home() / "jars").glob("ivy-*.jar")
    pattern = str(work / "jars" / "[artifact]-[revision](-[classifier]).[ext]")
    command = [
        "java",
        "-jar",
        str(ivy),
        "-ivy",
        str(work / "ivy.xml"),
        *(() if poms else ("-settings", str(work / "settings.xml"))),
        "-cache",
        str(work / "cache"),
        "-retrieve",
        pattern,
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        words = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise JarsError(f"Ivy could not fetch them; is the network reachable? It said last:\n{words}")
    return {path.name: path for path in (work / "jars").glob(f"*.{kind}")}


def _ivy_module(modules: Iterable[tuple[str, tuple[str, ...]]], kind: str, part: str) -> str:
    dependencies = "".join(_dependency(coordinate, classifiers, kind, part) for coordinate, classifiers in modules)
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="tidemark" module="oracle"/><configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )


def _dependency(coordinate: str, classifiers: Iterable[str], kind: str, part: str) -> str:
    group, name, version = coordinate.split(":")
    marks = (f' m:classifier="{classifier}"' if classifier else "" for classifier in classifiers)
    artifacts = "".join(f'<artifact name="{name}" type="{kind}" ext="{kind}"{mark}/>' for mark in marks)
    return (
        f'<dependency org="{group}" name="{name}" rev="{version}" transitive="false" conf="default->{part}">'
        f"{artifacts}</dependency>"
    )


if __name__ == "__main__":
    main()
