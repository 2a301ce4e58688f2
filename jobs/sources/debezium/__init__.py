"""Decodes the change events that Debezium writes, from whatever brings them. It imports neither Kafka nor Debezium."""
