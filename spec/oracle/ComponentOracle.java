package org.apache.flink.runtime.checkpoint;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import org.apache.flink.api.common.JobID;
import org.apache.flink.core.execution.RecoveryClaimMode;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.core.fs.FSDataInputStream;
import org.apache.flink.runtime.checkpoint.CheckpointCoordinator.CheckpointTriggerRequest;
import org.apache.flink.runtime.executiongraph.ExecutionAttemptID;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyGroupRangeOffsets;
import org.apache.flink.runtime.state.KeyGroupsStateHandle;
import org.apache.flink.runtime.state.KeyedStateHandle;
import org.apache.flink.runtime.state.PhysicalStateHandleID;
import org.apache.flink.runtime.state.SharedStateRegistry;
import org.apache.flink.runtime.state.SharedStateRegistryImpl;
import org.apache.flink.runtime.state.SharedStateRegistryKey;
import org.apache.flink.runtime.state.StreamStateHandle;
import org.apache.flink.runtime.state.testutils.TestCompletedCheckpointStorageLocation;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.util.clock.ManualClock;

/**
 * Feeds random input to Flink's own components of the coordinator, and writes what they answered.
 *
 * <p>Arguments: the first seed, the seed after the last one, the components. Each line of the output is a case in the form of Flink's
 * own test cases as data.
 */
public final class ComponentOracle {
    private static final long NOW = 1_000_000;

    private final Random random;
    private final List<Object> steps = new ArrayList<>();
    private final List<Object> expect = new ArrayList<>();
    private final Map<String, Object> given = new LinkedHashMap<>();

    private ComponentOracle(long seed) {
        random = new Random(seed);
    }

    private Map<String, Object> play(String component, long seed) throws Exception {
        Object answered = expect;
        switch (component) {
            case "decider" -> decider();
            case "failure_manager" -> failureManager();
            case "subsume" -> store();
            case "registry" -> registry();
            case "key_groups" -> answered = keyGroups();
            case "keyed_state" -> answered = keyedState();
            default -> throw new IllegalArgumentException("there is no component " + component);
        }
        Map<String, Object> played = new LinkedHashMap<>();
        played.put("name", "ComponentOracle#" + component + "[" + seed + "]");
        played.put("kind", component);
        played.put("given", given);
        played.put("steps", steps);
        played.put("expect", answered);
        return played;
    }

    private int between(int least, int most) {
        return least + random.nextInt(most - least + 1);
    }

    private <T> T oneOf(List<T> choices) {
        return choices.get(random.nextInt(choices.size()));
    }

    /** Note what holds after the newest step. */
    private void holds(Map<String, Object> facts) {
        Map<String, Object> entry = new LinkedHashMap<>();
        entry.put("after", steps.size() - 1);
        entry.putAll(facts);
        expect.add(entry);
    }

    // ------------------------------------------------------------------ the coordinator's decisions

    private void decider() throws InterruptedException {
        int[] pending = {between(0, 2)};
        int[] cleaning = {between(0, 3)};
        boolean triggering = random.nextBoolean();
        int concurrent = between(1, 2);
        int queued = between(1, 4);
        int pause = oneOf(List.of(0, 10));
        int since = between(0, 20);
        given.putAll(Map.of("unit", "decider", "pending", pending[0], "cleaning", cleaning[0], "triggering", triggering));
        given.putAll(Map.of("max_concurrent", concurrent, "max_queued", queued, "min_pause_ms", pause, "ms_since_completion", since));
        ManualClock clock = new ManualClock(NOW * 1_000_000);
        CheckpointRequestDecider decider =
                new CheckpointRequestDecider(concurrent, (at, delay) -> {}, clock, pause, () -> pending[0], () -> cleaning[0], queued);
        Map<String, CheckpointTriggerRequest> requests = new LinkedHashMap<>();
        for (int step = between(3, 15); step > 0; step--) {
            Optional<CheckpointTriggerRequest> chosen = Optional.empty();
            switch (random.nextInt(4)) {
                case 0, 1 -> {
                    String name = "r" + requests.size();
                    CheckpointTriggerRequest request = request(name);
                    requests.put(name, request);
                    chosen = decider.chooseRequestToExecute(request, triggering, NOW - since);
                }
                case 2 -> {
                    steps.add(List.of("choose"));
                    chosen = decider.chooseQueuedRequestToExecute(triggering, NOW - since);
                }
                default -> {
                    String what = oneOf(List.of("pending", "cleaning", "triggering"));
                    int value = between(0, 2);
                    triggering = what.equals("triggering") ? value > 0 : triggering;
                    pending[0] = what.equals("pending") ? value : pending[0];
                    cleaning[0] = what.equals("cleaning") ? value : cleaning[0];
                    steps.add(List.of("set", what, what.equals("triggering") ? (Object) triggering : value));
                }
            }
            Map<String, Object> facts = new LinkedHashMap<>();
            CheckpointTriggerRequest taken = chosen.orElse(null);
            facts.put("chosen", requests.entrySet().stream().filter(entry -> entry.getValue() == taken).map(Map.Entry::getKey).findFirst().orElse(null));
            facts.put("queued", decider.getNumQueuedRequests());
            facts.put("future", futures(requests));
            holds(facts);
        }
    }

    /** Flink orders requests by the millisecond in which they were made, so no two of them share one. */
    private CheckpointTriggerRequest request(String name) throws InterruptedException {
        boolean savepoint = random.nextInt(3) == 0;
        boolean forced = random.nextInt(3) == 0;
        boolean periodic = random.nextBoolean();
        steps.add(List.of("request", name, Map.of("what", savepoint ? "savepoint" : "checkpoint", "forced", forced, "periodic", periodic)));
        SnapshotType type = savepoint ? SavepointType.savepoint(SavepointFormatType.CANONICAL) : CheckpointType.CHECKPOINT;
        CheckpointProperties properties = new CheckpointProperties(forced, type, false, false, false, false, false, false);
        CheckpointTriggerRequest request = new CheckpointTriggerRequest(properties, null, periodic);
        while (System.currentTimeMillis() <= request.timestamp) {
            Thread.sleep(1);
        }
        return request;
    }

    private static Map<String, String> futures(Map<String, CheckpointTriggerRequest> requests) {
        Map<String, String> told = new TreeMap<>();
        requests.forEach((name, request) -> told.put(name, future(request.getOnCompletionFuture())));
        return told;
    }

    private static String future(CompletableFuture<?> promise) {
        if (!promise.isDone()) {
            return "pending";
        }
        try {
            promise.join();
            return "ok";
        } catch (CompletionException error) {
            return "failed:" + ((CheckpointException) error.getCause()).getCheckpointFailureReason().name();
        }
    }

    private void failureManager() {
        int tolerable = between(0, 3);
        given.putAll(Map.of("unit", "failure_manager", "tolerable_failures", tolerable));
        int[] failed = {0};
        CheckpointFailureManager manager =
                new CheckpointFailureManager(tolerable, new CheckpointFailureManager.FailJobCallback() {
                    @Override
                    public void failJob(Throwable cause) {
                        failed[0]++;
                    }

                    @Override
                    public void failJobDueToTaskFailure(Throwable cause, ExecutionAttemptID task) {
                        failed[0]++;
                    }
                });
        CheckpointProperties properties = CheckpointProperties.forCheckpoint(CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION);
        List<CheckpointFailureReason> counted =
                List.of(CheckpointFailureReason.CHECKPOINT_EXPIRED, CheckpointFailureReason.IO_EXCEPTION, CheckpointFailureReason.CHECKPOINT_DECLINED);
        for (int step = between(3, 15); step > 0; step--) {
            int checkpoint = between(1, 8);
            if (random.nextInt(4) == 0) {
                steps.add(List.of("report", "completed", checkpoint));
                manager.handleCheckpointSuccess(checkpoint);
            } else {
                CheckpointFailureReason reason = random.nextBoolean() ? oneOf(counted) : oneOf(Arrays.asList(CheckpointFailureReason.values()));
                steps.add(List.of("report", "failed", checkpoint, Map.of("reason", reason.name())));
                manager.handleJobLevelCheckpointException(properties, new CheckpointException(reason), checkpoint);
            }
            holds(Map.of("job_failed", failed[0]));
        }
    }

    // ------------------------------------------------------------------ completed checkpoints and shared state

    private void store() throws Exception {
        int retained = between(1, 4);
        given.put("retained", retained);
        StandaloneCompletedCheckpointStore store = new StandaloneCompletedCheckpointStore(retained);
        int checkpoint = 0;
        for (int step = between(2, 12); step > 0; step--) {
            checkpoint += between(1, 2);
            String kind = oneOf(List.of("checkpoint", "checkpoint", "savepoint", "stop_savepoint"));
            steps.add(List.of("add", checkpoint, kind));
            store.addCheckpointAndSubsumeOldestOne(completed(checkpoint, properties(kind), null), new CheckpointsCleaner(), () -> {});
            holds(Map.of("retained", store.getAllCheckpoints().stream().map(CompletedCheckpoint::getCheckpointID).toList()));
        }
    }

    private static CheckpointProperties properties(String kind) {
        return switch (kind) {
            case "savepoint" -> CheckpointProperties.forSavepoint(true, SavepointFormatType.CANONICAL);
            case "stop_savepoint" -> CheckpointProperties.forSyncSavepoint(true, false, SavepointFormatType.CANONICAL);
            case "native_savepoint" -> CheckpointProperties.forSavepoint(true, SavepointFormatType.NATIVE);
            default -> CheckpointProperties.forCheckpoint(CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION);
        };
    }

    private static CompletedCheckpoint completed(long checkpoint, CheckpointProperties properties, CheckpointProperties restored) {
        return new CompletedCheckpoint(
                new JobID(), checkpoint, 0, 1, Collections.emptyMap(), Collections.emptyList(), properties, new TestCompletedCheckpointStorageLocation(), null, restored);
    }

    private void registry() {
        List<String> discarded = new ArrayList<>();
        SharedStateRegistry registry = new SharedStateRegistryImpl();
        Map<String, File> files = new TreeMap<>();
        int checkpoint = random.nextBoolean() ? restored(registry, files, discarded) : 0;
        int lowest = 0;
        for (int step = between(3, 15); step > 0; step--) {
            if (random.nextInt(4) > 0) {
                checkpoint += between(0, 1);
                String key = "K" + random.nextInt(4);
                File file = files.containsKey(key) && random.nextBoolean() ? files.get(key) : file(key, checkpoint, files, discarded);
                boolean prevents = random.nextInt(4) == 0;
                steps.add(List.of("register", key, file.label, checkpoint, Map.of("prevent_discarding_created_checkpoint", prevents)));
                File kept = (File) registry.registerReference(new SharedStateRegistryKey(key), file, checkpoint, prevents);
                kept.lastUsed = checkpoint;
                files.put(key, kept);
                holds(Map.of("result", kept.label, "discarded", new TreeSet<>(discarded)));
            } else {
                lowest = Math.max(lowest, between(Math.max(0, checkpoint - 2), checkpoint + 1));
                steps.add(List.of("unregister_unused", lowest));
                Set<Long> used = registry.unregisterUnusedState(lowest);
                int least = lowest;
                files.values().removeIf(file -> file.lastUsed < least);
                holds(Map.of("in_use", new TreeSet<>(used), "discarded", new TreeSet<>(discarded)));
            }
        }
    }

    /** Another object for the file that the key has, or a new file for a key that has none. */
    private File file(String key, int checkpoint, Map<String, File> files, List<String> discarded) {
        File known = files.get(key);
        return new File(known == null ? "h" + key + steps.size() : known.label.replace("'", "") + "'", discarded);
    }

    private int restored(SharedStateRegistry registry, Map<String, File> files, List<String> discarded) {
        int checkpoint = between(1, 3);
        String kind = oneOf(List.of("native_savepoint", "retained_checkpoint"));
        RecoveryClaimMode mode = oneOf(List.of(RecoveryClaimMode.CLAIM, RecoveryClaimMode.NO_CLAIM));
        Map<String, String> keys = new TreeMap<>();
        for (int key = 0; key < between(1, 3); key++) {
            File file = new File("r" + key, discarded);
            file.lastUsed = checkpoint;
            files.put("K" + key, file);
            keys.put("K" + key, file.label);
            registry.registerReference(new SharedStateRegistryKey("K" + key), file, checkpoint, false);
        }
        given.put("restored", Map.of("id", checkpoint, "kind", kind, "mode", mode.name(), "keys", keys));
        registry.registerAllAfterRestored(completed(checkpoint, properties("checkpoint"), properties(kind)), mode);
        return checkpoint;
    }

    /** A file; two objects whose labels differ only in a quote are the same one. */
    private static final class File implements StreamStateHandle {
        private final String label;
        private final List<String> book;
        private int lastUsed;

        private File(String label, List<String> book) {
            this.label = label;
            this.book = book;
        }

        @Override
        public void discardState() {
            book.add(label);
        }

        @Override
        public boolean equals(Object other) {
            return other instanceof File file && file.label.replace("'", "").equals(label.replace("'", ""));
        }

        @Override
        public int hashCode() {
            return label.replace("'", "").hashCode();
        }

        @Override
        public long getStateSize() {
            return 1;
        }

        @Override
        public FSDataInputStream openInputStream() {
            throw new UnsupportedOperationException("nobody reads this file");
        }

        @Override
        public Optional<byte[]> asBytesIfInMemory() {
            return Optional.empty();
        }

        @Override
        public PhysicalStateHandleID getStreamStateHandleID() {
            return new PhysicalStateHandleID(label.replace("'", ""));
        }
    }

    // ------------------------------------------------------------------ rescaling

    private Map<String, Object> keyGroups() {
        int most = oneOf(List.of(between(1, 20), between(1, 500), 32768));
        int parallelism = between(1, Math.min(most, 300));
        given.putAll(Map.of("max_parallelism", most, "parallelism", parallelism));
        List<KeyGroupRange> ranges = StateAssignmentOperation.createKeyGroupPartitions(most, parallelism);
        return Map.of(
                "ranges", ranges.stream().map(ComponentOracle::bounds).toList(),
                "sizes", ranges.stream().map(KeyGroupRange::getNumberOfKeyGroups).toList());
    }

    private static List<Integer> bounds(KeyGroupRange range) {
        return List.of(range.getStartKeyGroup(), range.getEndKeyGroup());
    }

    private Map<String, Object> keyedState() {
        int most = oneOf(List.of(between(1, 20), 128));
        int before = between(1, Math.min(most, 20));
        int after = between(1, Math.min(most, 20));
        given.putAll(Map.of("max_parallelism", most, "old_parallelism", before, "new_parallelism", after));
        List<KeyedStateHandle> handles = new ArrayList<>();
        for (KeyGroupRange range : StateAssignmentOperation.createKeyGroupPartitions(most, before)) {
            handles.add(new KeyGroupsStateHandle(new KeyGroupRangeOffsets(range), new File(String.valueOf(handles.size()), new ArrayList<>())));
        }
        List<Object> gets = new ArrayList<>();
        for (KeyGroupRange range : StateAssignmentOperation.createKeyGroupPartitions(most, after)) {
            List<KeyedStateHandle> got = new ArrayList<>();
            StateAssignmentOperation.extractIntersectingState(handles, range, got);
            gets.add(got.stream().map(ComponentOracle::part).toList());
        }
        return Map.of("new_subtask_gets", gets);
    }

    private static List<Object> part(KeyedStateHandle handle) {
        KeyGroupsStateHandle groups = (KeyGroupsStateHandle) handle;
        return List.of(Integer.parseInt(((File) groups.getDelegateStateHandle()).label), bounds(groups.getKeyGroupRange()));
    }

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        for (String component : Arrays.asList(arguments).subList(2, arguments.length)) {
            for (long seed = Long.parseLong(arguments[0]); seed < Long.parseLong(arguments[1]); seed++) {
                System.out.println(json.writeValueAsString(new ComponentOracle(seed).play(component, seed)));
            }
        }
    }
}
