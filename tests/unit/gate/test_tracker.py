"""The tracker of the at-least-once mode (C4)."""

from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.gate import AbortCheckpoint, Deliver, GatePolicy, Ignored, TriggerCheckpoint

POLICY = GatePolicy.AT_LEAST_ONCE


def _outcome(effects):
    return [
        (type(e).__name__, e.barrier.checkpoint if isinstance(e, TriggerCheckpoint) else e.checkpoint)
        for e in effects
        if isinstance(e, TriggerCheckpoint | AbortCheckpoint)
    ]


def test_nothing_is_ever_blocked(story, barrier):
    """Segments after a barrier are delivered before the last barrier comes. They count twice after a restore."""
    tale = story(POLICY)
    tale.put(0, barrier(1), 1)
    effects = tale.drain()
    assert Deliver(tale.channels[0], tale.segment(1)) in effects
    assert [] == _outcome(effects)


def test_a_newer_barrier_drops_no_older_pending_one(story, barrier):
    """Late barriers still complete an older checkpoint."""
    tale = story(POLICY)
    tale.put(0, barrier(1), barrier(2))
    tale.put(1, barrier(1), barrier(2))
    assert [("TriggerCheckpoint", 1), ("TriggerCheckpoint", 2)] == _outcome(tale.drain())


def test_completion_drops_all_older_checkpoints_silently(story, barrier):
    """When a checkpoint completes, older pending ones are dropped, and their late barriers are ignored."""
    tale = story(POLICY)
    tale.put(0, barrier(1), barrier(2))
    tale.put(1, barrier(2))
    assert [("TriggerCheckpoint", 2)] == _outcome(tale.drain())
    assert () == tale.gate.pending()
    tale.put(1, barrier(1))
    assert Ignored(tale.channels[1], barrier(1)) in tale.drain()


def test_a_cancel_aborts_its_checkpoint_and_all_older_ones_once(story, barrier, cancel):
    """cancel(2) aborts 1 and 2. The markers of the other channel change nothing."""
    tale = story(POLICY)
    tale.put(0, barrier(1), cancel(2))
    tale.put(1, cancel(1), cancel(2))
    assert [("AbortCheckpoint", 1), ("AbortCheckpoint", 2)] == _outcome(tale.drain())
    assert () == tale.gate.pending()


def test_an_id_is_aborted_once_even_with_one_open_channel(story, cancel, end):
    """A repeated cancel marker on the only open channel is ignored."""
    tale = story(POLICY)
    tale.put(1, end)
    tale.put(0, cancel(3), cancel(3))
    assert [("AbortCheckpoint", 3)] == _outcome(tale.drain())


def test_an_end_aligns_its_channel_for_every_pending_checkpoint(story, barrier, end):
    """With the flag, the latest checkpoint that the end completes triggers."""
    tale = story(POLICY)
    tale.put(0, barrier(1), barrier(2), barrier(3))
    tale.drain()
    tale.put(1, end)
    assert [("TriggerCheckpoint", 3)] == _outcome(tale.drain())


def test_without_the_flag_an_end_aborts_every_pending_checkpoint(story, barrier, end):
    """All pending ids are aborted for this reason, oldest first."""
    tale = story(POLICY, checkpoint_after_tasks_finished=False)
    tale.put(0, barrier(1), barrier(2))
    tale.drain()
    tale.put(1, end)
    effects = tale.drain()
    assert [("AbortCheckpoint", 1), ("AbortCheckpoint", 2)] == _outcome(effects)
    assert AbortCheckpoint(1, Reason.CHECKPOINT_DECLINED_INPUT_END_OF_STREAM) in effects


def test_at_most_fifty_checkpoints_are_remembered(story, barrier):
    """If one too many is pending, the oldest id is forgotten silently."""
    tale = story(POLICY)
    for number in range(1, 52):
        tale.put(0, barrier(number))
    assert [] == _outcome(tale.drain())
    assert tuple(range(2, 52)) == tale.gate.pending()


def test_each_checkpoint_has_its_own_alignment_time(story, barrier):
    """Time and bytes are counted from the checkpoint's own first barrier."""
    tale = story(POLICY)
    tale.put(0, barrier(1))
    tale.drain()
    tale.at(100)
    tale.put(0, 1, barrier(2), 2)
    tale.drain()
    tale.at(300)
    tale.put(1, barrier(1), barrier(2))
    triggers = [e for e in tale.drain() if isinstance(e, TriggerCheckpoint)]
    assert [(300, 20), (200, 10)] == [(t.alignment_ms, t.bytes_processed) for t in triggers]


def test_an_aborted_checkpoint_never_triggers(story, barrier, cancel):
    """Barriers of an aborted id are still counted, but complete nothing."""
    tale = story(POLICY, channels=3)
    tale.put(0, barrier(1))
    tale.put(1, cancel(1))
    tale.put(2, barrier(1))
    assert [("AbortCheckpoint", 1)] == _outcome(tale.drain())
    assert () == tale.gate.pending()


def test_with_one_open_channel_completion_drops_all_older_checkpoints_too(story, barrier, end):
    """Checkpoints 1 and 2 wait for the one open channel. 3 completes there, and then neither triggers."""
    told = story(GatePolicy.AT_LEAST_ONCE, 2)
    told.put(1, barrier(1), barrier(2), end)
    told.drain()
    assert (1, 2) == told.gate.pending()
    told.put(0, barrier(3), end)
    triggered = [effect.barrier.checkpoint for effect in told.drain() if isinstance(effect, TriggerCheckpoint)]
    assert [3] == triggered
    assert () == told.gate.pending()
