"""Finds unread records that are gone, and says which ones, and what the user can do."""

from checkpointing.identifiers import VertexId
from jobs.sources.kafka.cluster import ClusterLook, Extent
from jobs.sources.kafka.position import KafkaPosition, TopicPartition, split_of
from jobs.sources.port import SourceError


def held(look: ClusterLook, place: TopicPartition, position: KafkaPosition | None, source: VertexId) -> Extent:
    """Return the content of a Kafka partition. Raise SourceError if a record from the position on is missing."""
    extent = look.partitions.get(place)
    if extent is None:
        read = "" if position is None else f", and the job has read it up to offset {position.offset:,}"
        raise SourceError(
            f"partition {place} is gone{read}: its topic was deleted, or made again with fewer. Make the topic again, "
            f"then {reset_command(source, place)}; or give the source a new id, which reads the remaining topics from "
            "their start"
        )
    if position is None:
        return extent
    if position.topic_id != extent.topic_id:
        raise SourceError(
            f"topic {place.topic} was deleted and made again: it had the id {position.topic_id} when the job read "
            f"partition {place.partition} up to offset {position.offset:,}, and has the id {extent.topic_id} now. To "
            f"read the new topic from its first record: {reset_command(source, place)}. Its other partitions are new "
            "too: without --split, the command moves all of them"
        )
    if position.offset < extent.first:
        raise SourceError(
            f"partition {place} has lost records that were not read: offsets {position.offset:,} to "
            f"{extent.first - 1:,} were deleted, mostly because the topic's retention is too short. To go on without "
            f"them: {reset_command(source, place)}. So that it does not happen again, keep the topic's records longer "
            "(retention.ms, retention.bytes) or run the pipeline more often"
        )
    if position.offset > extent.end:
        raise SourceError(
            f"partition {place} ends at offset {extent.end:,}, and the job has read it up to offset "
            f"{position.offset:,}: the cluster has lost records at its end, as after an unclean election of a leader. "
            f"The tables hold them. To read what comes from now on: {reset_command(source, place, 'latest')}"
        )
    return extent


def reset_command(source: VertexId, place: TopicPartition, words: str = "earliest") -> str:
    """Return the command that moves the split of a Kafka partition."""
    return f"tidemark reset PIPELINE {source} --split {split_of(place)} --to {words}"
