"""Asks a schema registry. Only this package uses the registry's client, which the extra `registry` installs."""
