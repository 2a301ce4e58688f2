"""The outside sink that writes the rows of each checkpoint to a Kafka topic, in one transaction."""
