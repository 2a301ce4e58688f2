"""Ends the inputs of a job whose sources are bounded, and of a job that is drained (B4, Flink: FLIP-147).

A split that has ended is idle for ever, and no barrier waits for it. When all splits have ended, the sources send the
end of their data. Then the vertices emit what they hold back, one after the other, and the next checkpoint shows it.
If that checkpoint fails, another one follows. Its entry is finished: every subtask says so.

Flink ends each task by itself, and takes later checkpoints without it. Here one process runs all tasks, so they all
take part until the job has finished.
"""

from checkpointing.channel_items import EndOfData
from checkpointing.job.operator_run import InputEnd, OperatorRun
from checkpointing.job.wiring import Wiring
from checkpointing.messages import SourceEnded
from checkpointing.task.messages import SubtaskFinished


def split_ended(job: Wiring, fact: SourceEnded) -> None:
    """Note the end of a split. Behind the barrier of a stop it does not count: the next tick will meet it."""
    if job.readers.ended:
        job.readers.found_idle(fact.source, fact.split, job.now_ms)
    else:
        job.subtasks.step(job.readers.found_ended(fact.source, fact.split), SubtaskFinished())


def end_inputs(job: Wiring) -> None:
    """Once every split has ended, let the vertices emit what they hold back. A last checkpoint must show it."""
    if job.readers.all_ended and not job.data_ended and job.ending.takes_checkpoints:
        job.end_data()
        job.ending.uncommitted = True


def hand_end_on(job: Wiring, run: OperatorRun) -> None:
    """Note that the vertex has processed all its input and emitted what it held back. Send the end downstream."""
    run.input_end = InputEnd.HANDED_ON
    for subtask in run.vertex.subtasks():
        job.subtasks.step(subtask, SubtaskFinished())
        job.broadcast(subtask, EndOfData())
