"""docs/SETTINGS.md is generated from the settings model, and agrees with the command line."""

from pathlib import Path

from typer.main import get_command

from jobs.cli.main import app
from jobs.settings import TickSettings, flag_of, settings_table

ROOT = Path(__file__).resolve().parents[2]
NOT_SETTINGS = {"--from", "--claim", "--no-claim", "--dry-run", "--set"}


def test_the_document_has_the_models_settings():
    """After a change of a setting, type `.venv/bin/python -m jobs.settings > docs/SETTINGS.md`."""
    assert settings_table() == (ROOT / "docs" / "SETTINGS.md").read_text(encoding="utf-8")


def test_every_setting_has_a_meaning():
    """A row without a meaning helps nobody."""
    assert [] == [name for name, info in TickSettings.model_fields.items() if not info.description]


def test_the_flags_are_those_of_the_command():
    """Each flag of `tidemark run` that sets a value is in the table, and no others are."""
    options = {
        word
        for option in get_command(app).commands["run"].params
        if option.param_type_name == "option"
        for word in (*option.opts, *option.secondary_opts)
    }
    shown = {word for name in TickSettings.model_fields for word in (flag_of(name) or "").split("/") if word}
    assert options - NOT_SETTINGS == shown
