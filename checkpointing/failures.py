"""The reasons why a checkpoint failed or was refused (Flink: `CheckpointFailureReason`).

Each reason has a message. `pre_flight` is true if the checkpoint failed before it was pending. The failure policy
decides which reasons count (E5).
"""

from enum import Enum

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


class CheckpointFailureReason(Enum):
    """Reason = (pre_flight, message). The names are Flink's, except QUALITY, TABLE_CHANGED and FENCED."""

    PERIODIC_SCHEDULER_SHUTDOWN = (True, "the periodic scheduler is shut down")
    TOO_MANY_CHECKPOINT_REQUESTS = (True, "too many checkpoint requests are queued")
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = (True, "the minimum pause between checkpoints is not over")
    NOT_ALL_REQUIRED_TASKS_RUNNING = (True, "not all required subtasks are running")
    IO_EXCEPTION = (True, "an input or output error struck while the checkpoint was triggered")
    BLOCKING_OUTPUT_EXIST = (True, "a blocking output exists")
    CHECKPOINT_ASYNC_EXCEPTION = (False, "the asynchronous part of a snapshot failed")
    CHANNEL_STATE_SHARED_STREAM_EXCEPTION = (False, "the shared stream of channel state failed")
    CHECKPOINT_EXPIRED = (False, "the checkpoint expired before it completed")
    CHECKPOINT_SUBSUMED = (False, "a newer checkpoint completed first")
    CHECKPOINT_DECLINED = (False, "a subtask declined the checkpoint")
    CHECKPOINT_DECLINED_TASK_NOT_READY = (False, "a subtask was not ready")
    CHECKPOINT_DECLINED_TASK_CLOSING = (False, "a subtask is closing")
    CHECKPOINT_DECLINED_SUBSUMED = (False, "the barrier of a newer checkpoint came first")
    CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER = (False, "a cancel marker came")
    CHECKPOINT_DECLINED_INPUT_END_OF_STREAM = (False, "an input ended during the alignment")
    CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED = (False, "the alignment held more than max_alignment_bytes")
    CHECKPOINT_COORDINATOR_SHUTDOWN = (False, "the coordinator shut down")
    CHECKPOINT_COORDINATOR_SUSPEND = (False, "the coordinator was suspended")
    JOB_FAILOVER_REGION = (False, "part of the job failed over")
    TASK_FAILURE = (False, "a subtask failed")
    TASK_CHECKPOINT_FAILURE = (False, "a subtask failed to take its snapshot")
    UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE = (False, "the notification of a subtask failed")
    FINALIZE_CHECKPOINT_FAILURE = (False, "the checkpoint could not be finalised")
    TRIGGER_CHECKPOINT_FAILURE = (False, "the checkpoint could not be triggered")
    QUALITY = (False, "a suite rejected the rows staged since the last completed checkpoint")
    TABLE_CHANGED = (False, "an output table or its sink does not take what is to be published")
    FENCED = (False, "another coordinator has claimed the job")

    def __init__(self, pre_flight: bool, message: str) -> None:  # noqa: FBT001 - enum value
        self.pre_flight = pre_flight
        self.message = message

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Persist a reason by its name: the message may be reworded."""
        del source, handler
        names: list[str] = [reason.name for reason in cls]
        return core_schema.json_or_python_schema(
            json_schema=core_schema.no_info_after_validator_function(
                lambda name: cls[name], core_schema.literal_schema(names)
            ),
            python_schema=core_schema.is_instance_schema(cls),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda reason: reason.name),
        )
