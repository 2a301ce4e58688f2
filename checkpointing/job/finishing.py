"""Ends the inputs of a job whose sources are bounded, and of a job that is drained (B4, Flink: FLIP-147).

A split that has ended is idle for ever, and no barrier waits for it. When all splits have ended, the sources send the
end of their data. Then the vertices emit the rows that they hold back, one vertex after the other. The next checkpoint
shows these rows. If that checkpoint fails, another one follows. In its entry, every subtask is marked as finished.

In Flink, each task ends by itself, and later checkpoints do without it. Here one process runs all tasks, so they all
take part until the job has finished.
"""

from checkpointing.channel_items import EndOfData
from checkpointing.coordinator.messages import SchedulerStopped
from checkpointing.job.operator_run import InputEnd, OperatorRun
from checkpointing.job.wiring import Wiring
from checkpointing.messages import SourceEnded
from checkpointing.task.messages import SubtaskFinished


def split_ended(job: Wiring, fact: SourceEnded) -> None:
    """Record the end of a split. After the barrier of a stop, the next tick will find the end again."""
    if job.readers.ended:
        job.readers.found_idle(fact.source, fact.split, job.now_ms)
    else:
        job.subtasks.step(job.readers.found_ended(fact.source, fact.split), SubtaskFinished())


def end_inputs(job: Wiring) -> None:
    """Once every split has ended, let the vertices emit held rows, which a last checkpoint must show."""
    if job.readers.all_ended and not job.data_ended and job.ending.takes_checkpoints:
        job.end_data()
        job.ending.uncommitted = True


def hand_end_on(job: Wiring, run: OperatorRun) -> None:
    """Record that the vertex has processed all its input and emitted all its rows. Send the end of data downstream."""
    run.input_end = InputEnd.HANDED_ON
    for subtask in run.vertex.subtasks():
        job.subtasks.step(subtask, SubtaskFinished())
        job.broadcast(subtask, EndOfData())


def stop_scheduler(job: Wiring) -> None:
    """Stop periodic triggering, and abort what is not being committed, as Flink does for a job that fails.

    See Flink's CheckpointCoordinatorDeActivator. The savepoint of a stop has stopped the interval already, and may
    still wait for its turn.
    """
    if job.coordinator.goes_on:
        job.tell(SchedulerStopped())
        job.settle()
