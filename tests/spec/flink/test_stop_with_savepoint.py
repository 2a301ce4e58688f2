"""A stop with a savepoint waits for the savepoint's result, and then for the ends of the tasks."""

import pytest

from checkpointing.coordinator.task import TaskState
from spec.flink.stop_with_savepoint import (
    RestartJob,
    RestartScheduler,
    SavepointCompleted,
    SavepointFailed,
    StopFailed,
    StopFailure,
    StopHandler,
    StopOrder,
    StopSucceeded,
    TasksEnded,
    UnsupportedStopEventError,
)

DONE = TasksEnded((TaskState.FINISHED, TaskState.FINISHED))


def test_a_good_savepoint_and_finished_tasks_stop_the_job():
    """The answer is the path of the savepoint."""
    handler = StopHandler()
    assert ((), (StopSucceeded("path"),)) == (handler.step(SavepointCompleted("path")), handler.step(DONE))


def test_a_failed_savepoint_lets_the_job_go_on():
    """Periodic checkpoints go on. This stop ignores how the tasks end later."""
    handler = StopHandler()
    effects = handler.step(SavepointFailed("why"))
    assert (RestartScheduler(), StopFailed(StopFailure.SAVEPOINT, "why")) == effects
    assert handler.step(DONE) == ()


def test_a_task_that_did_not_finish_restarts_the_job_and_keeps_the_savepoint():
    """Some tasks have committed and finished. So the whole job restarts from the good savepoint."""
    handler = StopHandler()
    handler.step(SavepointCompleted("path"))
    restart, failed = handler.step(TasksEnded((TaskState.FINISHED, TaskState.FAILED)))
    assert isinstance(restart, RestartJob)
    assert (StopFailure.STOPPING, "path") == (failed.failure, failed.savepoint)


def test_an_event_out_of_order_is_refused_and_changes_nothing():
    """Errors: the tasks' ends before the savepoint's result, and a second result."""
    handler = StopHandler()
    with pytest.raises(UnsupportedStopEventError):
        handler.step(DONE)
    handler.step(SavepointCompleted("path"))
    with pytest.raises(UnsupportedStopEventError):
        handler.step(SavepointFailed("again"))
    assert (StopSucceeded("path"),) == handler.step(DONE)
    with pytest.raises(UnsupportedStopEventError):
        handler.step(SavepointCompleted("again"))


def test_early_ends_wait_for_the_savepoints_result():
    """Whichever comes first, the handler gets the savepoint before the ends."""
    savepoint = SavepointCompleted("path")
    late, early = StopOrder(), StopOrder()
    assert [(savepoint,), (DONE,)] == [late.step(savepoint), late.step(DONE)]
    assert [(), (savepoint, DONE)] == [early.step(DONE), early.step(savepoint)]
