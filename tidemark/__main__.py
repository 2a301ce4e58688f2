"""The command `tidemark`, also as `python -m tidemark`."""

import sys

from tidemark._packages import HiddenPackageError, must_be_ours

_TYPED_OR_SET_WRONGLY = 2


def main() -> None:
    """Run the command line and exit. If other packages hide Tidemark's packages, report that in one sentence."""
    try:
        must_be_ours()
    except HiddenPackageError as error:
        sys.stderr.write(f"tidemark: {error}\n")
        sys.exit(_TYPED_OR_SET_WRONGLY)
    from jobs.cli.main import main as command  # noqa: PLC0415 - not before the packages are known to be ours

    command()


if __name__ == "__main__":
    main()
