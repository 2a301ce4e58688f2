"""Fill the virtual environment that runs this script with exactly what the lock files name.

pip installs `uv` and the build backends; `uv` installs the rest, three times as fast, and then this project. Only what
a lock file names is fetched, since builds run without isolation. This script needs nothing but the standard library and
the environment's own pip.

`make_environment.py locks/spark-4.0.lock` takes the packages in that file instead of those of the same name in
`requirements.lock`.
"""

import ast
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
LOCK = "requirements.lock"

UV_NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
"""The names of pip's settings in uv, which reads neither pip's files nor pip's variables."""

STORED = "pyspark:--build-option=--compression=stored"
"""pyspark comes as source: its 450 MB of jars, compressed already, are not compressed again to be unpacked at once."""


def pip_settings() -> dict[str, str]:
    """Return pip's settings from its files and from the environment, which wins."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True)
    settings: dict[str, str] = {}
    for line in sorted(listed.stdout.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        settings[name.rpartition(".")[2]] = str(ast.literal_eval(value))
    return settings


def uv_environment() -> dict[str, str]:
    """Return the environment for uv: this process's own, and pip's settings where uv has no setting of its own."""
    environment = dict(os.environ)
    for name, value in pip_settings().items():
        if name in UV_NAMES:
            environment.setdefault(UV_NAMES[name], ",".join(value.split()) if name == "find-links" else value)
    if not environment.get("HOME"):
        environment.setdefault("UV_NO_CACHE", "1")
    environment["VIRTUAL_ENV"] = str(BIN.parent)
    return environment


def step(what: str, command: list[str], environment: dict[str, str] | None = None) -> None:
    """Run one step, and print how long it took. If the step fails, end with a message."""
    started = time.monotonic()
    print(f"environment: {what}", file=sys.stderr, flush=True)  # noqa: T201 - this is a command
    code = subprocess.run(command, check=False, cwd=ROOT, env=environment).returncode  # noqa: S603 - the fixed commands below
    if code:
        sys.exit(f"environment: {what} failed; see above, then make env again")
    print(f"environment: {what}, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)  # noqa: T201


def entries(lock: str) -> dict[str, str]:
    """Return the entries of a lock file by the names of the packages. A package may have one for each Python."""
    found: dict[str, str] = {}
    for text in re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE):
        name = re.match(r"[A-Za-z0-9._-]*", text)[0]
        found[name] = found.get(name, "") + text
    return found


def main(others: list[str]) -> None:
    """Install in three steps: uv and build backends, the locked packages, this project."""
    locked: dict[str, str] = {}
    for each in (LOCK, *others):
        locked |= entries((ROOT / each).read_text())
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    step("uv and build backends, by pip", [*pip, "--require-hashes", "-r", "bootstrap.lock"])
    uv, environment = [str(BIN / "uv"), "pip"], uv_environment()
    with tempfile.NamedTemporaryFile("w", suffix=".lock") as file:
        file.write("".join(locked.values()))
        file.flush()
        step(
            "locked packages, by uv (a minute or two the first time)",
            [*uv, "sync", "--no-build-isolation", "--config-settings-package", STORED, "--require-hashes", file.name],
            environment,
        )
    step(
        "this project", [*uv, "install", "--no-build-isolation", "--quiet", "--no-deps", "--editable", "."], environment
    )


if __name__ == "__main__":
    main(sys.argv[1:])
