"""Makes sure that the machine has the MariaDB server that tests start, and installs it on Debian."""

import os
import shutil
import subprocess
import sys

PROGRAMS = ("mariadbd", "mariadb-install-db", "my_print_defaults")
PACKAGES = "mariadb-server-core mariadb-client-core"


def missing() -> list[str]:
    """Return the programs that this machine lacks."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


def main() -> None:
    """Install the package unless the programs are here. On failure, print the reason and exit 1."""
    if not missing():
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for words in ("update -qq", f"install -y -qq --no-install-recommends {PACKAGES}"):
            command = ["apt-get", *words.split()]
            subprocess.run(command, check=False, env=environment, stdout=subprocess.DEVNULL)  # noqa: S603
    if missing():
        sys.exit(
            f"tidemark: {' and '.join(missing())} of MariaDB are missing, and tests of sources start this server: "
            f"install it (Debian: apt-get install {PACKAGES})."
        )


if __name__ == "__main__":
    main()
