"""Writes records with the serializers of Confluent's client, as producers do. The serializers register the schemas."""

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, record_subject_name_strategy
from confluent_kafka.schema_registry import topic_record_subject_name_strategy as topic_record_name
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

STRATEGIES = {"record": record_subject_name_strategy, "topic-record": topic_record_name}


def client(registry):
    return SchemaRegistryClient({"url": registry.url})


def named(strategy):
    return {} if strategy == "topic" else {"subject.name.strategy": STRATEGIES[strategy]}


def serializer(registry, schema):
    return AvroSerializer(client(registry), Schema(schema, "AVRO"))


def avro(registry, topic, schema, rows, strategy="topic", references=()):
    """Write rows as Avro records, and return their bytes."""
    serializer = AvroSerializer(client(registry), Schema(schema, "AVRO", list(references)), conf=named(strategy))
    values = [serializer(row, SerializationContext(topic.name, MessageField.VALUE)) for row in rows]
    topic.write(values)
    return values


def in_json(registry, topic, schema, rows, strategy="topic"):
    serializer = JSONSerializer(schema, client(registry), conf=named(strategy))
    topic.write([serializer(row, SerializationContext(topic.name, MessageField.VALUE)) for row in rows])


def messages(registry, topic, *found):
    """Write Protobuf messages. The test has made their classes."""
    serializer = ProtobufSerializer(type(found[0]), client(registry), {"use.deprecated.format": False})
    topic.write([serializer(each, SerializationContext(topic.name, MessageField.VALUE)) for each in found])
