"""The launchpad's fields: the settings of a tick as a Dagster configuration schema.

Only fields that the user sets are passed on. Pipeline and environment decide the others.
"""

from enum import Enum
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

import dagster as dg

from jobs.settings import Layer, TickSettings, launchpad_layer

REPORT_EVERY: Final = "report_every"
REPORT_EVERY_DEFAULT: Final = 5

OF_CANCEL: Final = "retain_on_cancellation"
"""The setting that only the cancellation job uses."""

_FIRST: Final = ("until_caught_up", "checkpoints", "duration_ms", "hold", "take_over", "warehouse", "data")
"""The fields that users set most often. They come first."""


def launchpad_schema() -> dict[str, dg.Field]:
    """Return the configuration of a tick: every setting that a tick uses. None of them is required."""
    names = [*_FIRST, *(name for name in TickSettings.model_fields if name not in (*_FIRST, OF_CANCEL))]
    fields = {name: _field(name) for name in names}
    fields[REPORT_EVERY] = dg.Field(
        dg.Int,
        is_required=False,
        default_value=REPORT_EVERY_DEFAULT,
        description=(
            "Report each n-th checkpoint as materializations while the tick runs; the last one always is. "
            "Each report is an event for every table."
        ),
    )
    return fields


FOLDERS: Final = ("warehouse", "data")
"""Fields that jobs which read a warehouse need too, if the tick was given them."""


def setting_fields(*names: str) -> dict[str, dg.Field]:
    """Return the fields of these settings, for Dagster jobs other than the tick. No field is required."""
    return {name: _field(name) for name in names}


def given_settings(config: dict[str, Any]) -> Layer:
    """Return a run's configuration as a layer of settings."""
    return launchpad_layer({name: value for name, value in config.items() if name != REPORT_EVERY})


def _field(name: str) -> dg.Field:
    found = TickSettings.model_fields[name]
    default = _shown(found.default)
    said = f" Default, if neither pipeline nor environment sets it: {default}." if default else ""
    return dg.Field(
        _dagster_type(name, _plain(found.annotation)), is_required=False, description=f"{found.description}{said}"
    )


def _plain(annotation: Any) -> Any:  # noqa: ANN401 - any type that a field may have
    """Return the type of a field's value, without None and without validators."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return _plain(next(each for each in get_args(annotation) if each is not type(None)))
    return annotation


def _dagster_type(name: str, plain: Any) -> Any:  # noqa: ANN401 - Dagster's own union of configuration types
    if plain is bool:
        return dg.Bool
    if isinstance(plain, type) and issubclass(plain, Enum):
        return dg.Enum(plain.__name__, [dg.EnumValue(member.value) for member in plain])
    if get_origin(plain) is tuple:
        return [str]
    if plain is int and not name.endswith("_ms"):
        return dg.Int
    return dg.String


def _shown(default: object) -> str:
    if default is None or default == ():
        return ""
    return str(default.value if isinstance(default, Enum) else default)
