"""Reads Kafka topics. Only this package uses Kafka's client, which the extra `kafka` installs."""
