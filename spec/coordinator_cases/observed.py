"""What a case may ask about the coordinator and its environment: one method a fact of the legend."""

from checkpointing.coordinator.messages import AnswerAcknowledge
from spec.coordinator_cases.statistics_facts import counters, history, latest, statistics_of
from spec.coordinator_cases.unit import Value
from spec.flink.completed_store import FlinkCheckpointStore, operator_states
from spec.flink.coordinator import FlinkCoordinator
from spec.flink.id_counter import CheckpointIdCounter


class ObservedCoordinator:
    """The facts of a coordinator under test; who drives it fills the attributes in."""

    abort_latest: dict[str, int]
    acknowledged: AnswerAcknowledge | None
    complete_subsumed: dict[str, int | None]
    coordinator_calls: dict[str, dict[str, list[int]]]
    counter: CheckpointIdCounter
    discarded: list[str]
    door: FlinkCoordinator
    finished_state_checked: int
    futures: dict[str, str]
    hook_calls: dict[str, dict[str, Value]]
    job_failed: int
    messages: dict[str, dict[str, list[int]]]
    registrations: dict[str, int]
    restored_state: dict[str, list[str]]
    result: Value
    store: FlinkCheckpointStore
    types: dict[str, dict[str, str]]

    def fact(self, name: str, expected: Value) -> Value:
        """Return what holds for a fact."""
        return getattr(self, f"_fact_{name}")(expected)

    def _fact_pending(self, _: Value) -> Value:
        return [pending.id for pending in self.door.pending]

    def _fact_completed(self, _: Value) -> Value:
        return [checkpoint.id for checkpoint in self.store.checkpoints]

    def _fact_future(self, _: Value) -> Value:
        return self.futures

    def _fact_acked(self, _: Value) -> Value:
        return {str(pending.id): len(pending.states) for pending in self.door.pending}

    def _fact_unacked(self, _: Value) -> Value:
        return {str(pending.id): len(pending.unacknowledged) for pending in self.door.pending}

    def _fact_ack_result(self, _: Value) -> Value:
        return None if self.acknowledged is None else self.acknowledged.result.value

    def _fact_ack_return(self, _: Value) -> Value:
        return None if self.acknowledged is None else self.acknowledged.accepted

    def _messages(self, sort: str, expected: Value) -> Value:
        return {task: self.messages[sort][task] for task in expected}

    def _fact_trigger_msgs(self, expected: Value) -> Value:
        return self._messages("trigger", expected)

    def _fact_complete_msgs(self, expected: Value) -> Value:
        return self._messages("complete", expected)

    def _fact_abort_msgs(self, expected: Value) -> Value:
        return self._messages("abort", expected)

    def _fact_abort_latest_completed(self, _: Value) -> Value:
        return self.abort_latest

    def _fact_complete_subsumed(self, _: Value) -> Value:
        return self.complete_subsumed

    def _fact_checkpoint_type(self, _: Value) -> Value:
        return self.types

    def _fact_timers(self, _: Value) -> Value:
        return len(self.door.pending)

    def _fact_periodic_timers(self, _: Value) -> Value:
        return int(self.door.has_periodic_timer)

    def _fact_queued(self, _: Value) -> Value:
        return self.door.queued

    def _fact_triggering(self, _: Value) -> Value:
        return self.door.is_triggering

    def _fact_next_id(self, _: Value) -> Value:
        return self.counter.next_id

    def _fact_recent_expired(self, _: Value) -> Value:
        return list(self.door.recent_expired)

    def _fact_can_be_subsumed(self, _: Value) -> Value:
        return {str(pending.id): pending.properties.can_be_subsumed for pending in self.door.pending}

    def _fact_discarded(self, expected: Value) -> Value:
        return [handle for handle in expected if self.discarded.count(handle) == 1]

    def _fact_not_discarded(self, expected: Value) -> Value:
        return [handle for handle in expected if handle not in self.discarded]

    def _fact_shared_registrations(self, expected: Value) -> Value:
        return {handle: self.registrations[handle] for handle in expected}

    def _fact_operator_states(self, _: Value) -> Value:
        return {str(checkpoint.id): operator_states(checkpoint) for checkpoint in self.store.checkpoints}

    def _fact_master_states(self, _: Value) -> Value:
        return {str(checkpoint.id): dict(checkpoint.master_states) for checkpoint in self.store.checkpoints}

    def _fact_hook_calls(self, expected: Value) -> Value:
        return {hook: self.hook_calls[hook] for hook in expected}

    def _fact_oc_calls(self, expected: Value) -> Value:
        return {name: self.coordinator_calls[name] for name in expected}

    def _fact_job_failed(self, _: Value) -> Value:
        return self.job_failed

    def _fact_counters(self, _: Value) -> Value:
        return counters(self.door.statistics)

    def _fact_stats(self, expected: Value) -> Value:
        return {id_: statistics_of(self.door.statistics, int(id_)) for id_ in expected}

    def _fact_history(self, _: Value) -> Value:
        return history(self.door.statistics)

    def _fact_latest(self, _: Value) -> Value:
        return latest(self.door.statistics)

    def _fact_finished_state_checked(self, _: Value) -> Value:
        return self.finished_state_checked

    def _fact_restored_state(self, expected: Value) -> Value:
        return {task: self.restored_state.get(task, []) for task in expected}

    def _fact_result(self, _: Value) -> Value:
        return self.result
