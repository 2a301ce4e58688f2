"""Finds the programs of Java, and the folder of the jars that the spec runs."""

import os
from pathlib import Path


def program(name: str) -> str:
    """Return the path of `java` or `javac` in JAVA_HOME, or without JAVA_HOME the bare name, for the PATH."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / name) if home else name


def jars_folder() -> Path:
    """Return the folder that TIDEMARK_JARS names, or else `.jars` of the checkout."""
    named = os.environ.get("TIDEMARK_JARS")
    return Path(named) if named else Path(__file__).parents[2] / ".jars"
