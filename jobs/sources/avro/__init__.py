"""Reads Avro's schemas and records. Only this package uses `fastavro`, which the extra `avro` installs."""
