"""Decodes the change events that Debezium writes, whatever delivers them. Imports neither Kafka nor Debezium."""
