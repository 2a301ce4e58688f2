"""Generates docs/SETTINGS.md from the settings model: every setting with its meaning, default and flag.

`python -m jobs.settings_table > docs/SETTINGS.md` writes it. A test fails if the file is stale.
"""

import re
import sys
from collections.abc import Iterator
from enum import Enum
from typing import Final

from jobs.settings import TickSettings

FLAGS: Final = {
    "spark_connect_url": "--spark-connect",
    "duration_ms": "--for",
    "interval_ms": "--interval",
    "until_caught_up": "--until-caught-up/--keep-waiting",
    "unaligned": "--unaligned/--no-unaligned",
    "hold": "--hold/--no-hold",
}
"""Flags with another name than their setting."""

_OWN: Final = (
    "checkpoints",
    "every_rows",
    "mode",
    "retained",
    "take_over",
    "allow_non_restored_state",
    "warehouse",
    "data",
    "parallelism",
    "spark_master",
    "spark_cores",
    "spark_memory",
    "spark_archive",
)
_FEATURE: Final = re.compile(r" \((?:[A-Z]\d+(?:, )?)+\)")
_HEAD: Final = """# Settings
You can set a value in several places. Each of these overrides the ones before it: the default, the pipeline,
`[tool.tidemark]` of the project (`warehouse` and `data` only), the environment variable, the arguments of
`build_definitions`, the command line or Dagster's launchpad. The variable of `retained` is `TIDEMARK_RETAINED`, and so
on. `tidemark run` takes every setting as `--set retained=5`. Some settings have a flag too. Times are milliseconds, or
text with a unit: `500ms`, `30s`, `5m`, `2h`.

| setting | meaning | default | flag |
|---|---|---|---|
"""


def settings_table() -> str:
    """Return the whole document."""
    return _HEAD + "".join(f"| {' | '.join(row)} |\n" for row in _rows())


def flag_of(name: str) -> str | None:
    """Return the flag of a setting, None if only `--set` gives it."""
    return FLAGS.get(name) or (f"--{name.replace('_', '-')}" if name in _OWN else None)


def _rows() -> Iterator[tuple[str, ...]]:
    for name, info in TickSettings.model_fields.items():
        meaning = _FEATURE.sub("", info.description or "").replace("\n", " ").replace("|", "or")
        flag = flag_of(name)
        yield f"`{name}`", meaning, _shown(info.default), f"`{flag}`" if flag else ""


def _shown(default: object) -> str:
    if default is None or default == ():
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    return f"`{default.value if isinstance(default, Enum) else default}`"


if __name__ == "__main__":
    sys.stdout.write(settings_table())
