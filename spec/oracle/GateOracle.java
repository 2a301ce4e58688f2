package org.apache.flink.streaming.runtime.io.checkpointing;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetSocketAddress;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.PriorityQueue;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.core.memory.MemorySegmentFactory;
import org.apache.flink.metrics.SimpleCounter;
import org.apache.flink.runtime.checkpoint.CheckpointException;
import org.apache.flink.runtime.checkpoint.CheckpointFailureReason;
import org.apache.flink.runtime.checkpoint.CheckpointMetaData;
import org.apache.flink.runtime.checkpoint.CheckpointMetricsBuilder;
import org.apache.flink.runtime.checkpoint.CheckpointOptions;
import org.apache.flink.runtime.checkpoint.CheckpointType;
import org.apache.flink.runtime.checkpoint.SavepointType;
import org.apache.flink.runtime.checkpoint.channel.ChannelStateWriter;
import org.apache.flink.runtime.checkpoint.channel.InputChannelInfo;
import org.apache.flink.runtime.checkpoint.channel.ResultSubpartitionInfo;
import org.apache.flink.runtime.clusterframework.types.ResourceID;
import org.apache.flink.runtime.event.AbstractEvent;
import org.apache.flink.runtime.io.network.ConnectionID;
import org.apache.flink.runtime.io.network.PartitionRequestClient;
import org.apache.flink.runtime.io.network.TestingConnectionManager;
import org.apache.flink.runtime.io.network.TestingPartitionRequestClient;
import org.apache.flink.runtime.io.network.api.CancelCheckpointMarker;
import org.apache.flink.runtime.io.network.api.CheckpointBarrier;
import org.apache.flink.runtime.io.network.api.EndOfPartitionEvent;
import org.apache.flink.runtime.io.network.api.EventAnnouncement;
import org.apache.flink.runtime.io.network.api.serialization.EventSerializer;
import org.apache.flink.runtime.io.network.buffer.Buffer;
import org.apache.flink.runtime.io.network.buffer.FreeingBufferRecycler;
import org.apache.flink.runtime.io.network.buffer.NetworkBuffer;
import org.apache.flink.runtime.io.network.buffer.NetworkBufferPool;
import org.apache.flink.runtime.io.network.partition.ResultPartitionID;
import org.apache.flink.runtime.io.network.partition.ResultSubpartitionIndexSet;
import org.apache.flink.runtime.io.network.partition.consumer.BufferOrEvent;
import org.apache.flink.runtime.io.network.partition.consumer.CheckpointableInput;
import org.apache.flink.runtime.io.network.partition.consumer.InputChannel;
import org.apache.flink.runtime.io.network.partition.consumer.RemoteInputChannel;
import org.apache.flink.runtime.io.network.partition.consumer.SingleInputGate;
import org.apache.flink.runtime.io.network.partition.consumer.SingleInputGateBuilder;
import org.apache.flink.runtime.jobgraph.tasks.CheckpointableTask;
import org.apache.flink.runtime.mailbox.SyncMailboxExecutor;
import org.apache.flink.runtime.state.CheckpointStorageLocationReference;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.streaming.runtime.tasks.TestSubtaskCheckpointCoordinator;
import org.apache.flink.util.CloseableIterator;
import org.apache.flink.util.clock.Clock;
import org.apache.flink.util.function.ThrowingRunnable;

/**
 * Feeds random events to Flink's own input gate and barrier handlers, and writes what they did.
 *
 * <p>Arguments: the first seed, the seed after the last one, the modes. Each line of the output is a case in the form of Flink's own
 * test cases as data: the events, and in `expect` what Flink did. A case in which one of Flink's own assertions fails is left out.
 */
public final class GateOracle {
    private static final CheckpointStorageLocationReference PLACE = CheckpointStorageLocationReference.getDefault();

    private final String mode;
    private final Random random;
    private final int channels;
    private final boolean afterTasksFinished;
    private final Long timeoutMs;
    private final List<Object> events = new ArrayList<>();
    private final List<Object> expect = new ArrayList<>();
    private final ManualTime time = new ManualTime();
    private final Recorded recorded = new Recorded();
    private final List<Sender> senders = new ArrayList<>();
    private final List<Sender> stops = new ArrayList<>();
    private final SingleInputGate input;
    private final CheckpointBarrierHandler handler;
    private final CheckpointedInputGate gate;
    private final List<Integer> announced = new ArrayList<>();
    private final Map<Integer, Integer> conversions = new TreeMap<>();
    private int buffers;
    /**
     * The newest event is one that Tidemark knowingly answers otherwise, so the case ends before it. Flink ignores a cancel marker of a
     * checkpoint that is only announced, and aborts an unaligned checkpoint if any channel has the barrier of a newer one already.
     */
    private boolean differs;

    private GateOracle(String mode, long seed) throws Exception {
        this.mode = mode;
        random = new Random(seed);
        channels = 1 + random.nextInt(4);
        afterTasksFinished = random.nextInt(4) > 0;
        timeoutMs = random.nextInt(4) > 0 ? Long.valueOf(10 * (1 + random.nextInt(5))) : null;
        NetworkBufferPool pool = new NetworkBufferPool(channels * 2, 64);
        input =
                new SingleInputGateBuilder()
                        .setNumberOfChannels(channels)
                        .setSegmentProvider(pool)
                        .setBufferPoolFactory(pool.createBufferPool(channels, channels))
                        .setChannelStateWriter(recorded)
                        .build();
        for (int index = 0; index < channels; index++) {
            senders.add(new Sender(channel(index)));
        }
        input.setInputChannels(senders.stream().map(sender -> sender.channel).toArray(InputChannel[]::new));
        input.setup();
        input.requestPartitions();
        handler = handler();
        gate = new CheckpointedInputGate(input, handler, new NextPoll());
    }

    private RemoteInputChannel channel(int index) throws Exception {
        ConnectionID peer = new ConnectionID(ResourceID.generate(), new InetSocketAddress("localhost", 1), 0);
        ResultSubpartitionIndexSet subpartitions = new ResultSubpartitionIndexSet(0);
        return new RemoteInputChannel(
                input, index, new ResultPartitionID(), subpartitions, peer, new Connections(), 0, 0, 0, 1, new SimpleCounter(), new SimpleCounter(), recorded, new ArrayDeque<>());
    }

    private CheckpointBarrierHandler handler() {
        CheckpointableInput watched = new Watched(input);
        TestSubtaskCheckpointCoordinator subtask = new TestSubtaskCheckpointCoordinator(recorded);
        switch (mode) {
            case "aligned_blocking":
                return SingleCheckpointBarrierHandler.aligned("task", recorded, time, channels, time, afterTasksFinished, watched);
            case "at_least_once":
                return new CheckpointBarrierTracker(channels, recorded, time, afterTasksFinished);
            case "unaligned":
                return SingleCheckpointBarrierHandler.unaligned("task", recorded, subtask, time, channels, time, afterTasksFinished, watched);
            case "alternating":
                return SingleCheckpointBarrierHandler.alternating("task", recorded, subtask, time, channels, time, afterTasksFinished, watched);
            default:
                throw new IllegalArgumentException("there is no mode " + mode);
        }
    }

    private Map<String, Object> play(long seed) throws Exception {
        int length = 5 + random.nextInt(40);
        for (int step = 0; step < length && !differs && !senders.stream().allMatch(sender -> sender.ended); step++) {
            int told = expect.size();
            if (mode.equals("alternating") && random.nextInt(2) == 0) {
                pollOrWait();
            } else {
                arrive(senders.get(random.nextInt(channels)));
            }
            if (differs) {
                events.remove(events.size() - 1);
                expect.subList(told, expect.size()).clear();
            }
        }
        recorded.inFlight.forEach((checkpoint, ids) -> noteInFlight(checkpoint, ids));
        Map<String, Object> played = new LinkedHashMap<>();
        played.put("name", "GateOracle#" + mode + "[" + seed + "]");
        played.put("channels", channels);
        played.put("mode", mode);
        played.put("checkpoint_after_tasks_finished", afterTasksFinished);
        if (mode.equals("alternating")) {
            played.put("aligned_timeout_ms", timeoutMs);
        }
        played.put("events", events);
        played.put("expect", expect);
        played.put("asserted", Map.of());
        return played;
    }

    private void noteInFlight(long checkpoint, List<Integer> ids) {
        if (recorded.unaligned.contains(checkpoint) && !recorded.aborted.contains(checkpoint)
                && recorded.complete.get(checkpoint).isDone() && !recorded.complete.get(checkpoint).isCompletedExceptionally()) {
            expect.add(List.of("inflight", checkpoint, ids));
        }
    }

    // ------------------------------------------------------------------ events

    private void arrive(Sender sender) throws Exception {
        if (sender.ended) {
            return;
        }
        int dice = random.nextInt(20);
        if (dice < 9) {
            arriveBuffer(sender);
        } else if (dice < 17) {
            arriveBarrier(sender);
        } else if (dice < 19) {
            long checkpoint = nextCheckpoint(sender);
            happened(names("arrive_cancel", "cancel"), sender.index(), checkpoint);
            sender.send(event(new CancelCheckpointMarker(checkpoint), false));
        } else {
            happened(names("arrive_eop", "eop"), sender.index());
            sender.ended = true;
            sender.send(event(EndOfPartitionEvent.INSTANCE, false));
        }
        if (!mode.equals("alternating")) {
            pollAll();
        }
    }

    private void arriveBuffer(Sender sender) throws Exception {
        int id = mode.equals("alternating") ? buffers++ : events.size();
        int size = 4 + random.nextInt(20);
        if (mode.equals("alternating")) {
            happened("arrive_buffer", sender.index(), id);
        } else {
            happened("buffer", sender.index(), id, size);
        }
        NetworkBuffer buffer = new NetworkBuffer(MemorySegmentFactory.allocateUnpooledSegment(size), FreeingBufferRecycler.INSTANCE);
        buffer.getMemorySegment().putInt(0, id);
        buffer.setSize(size);
        sender.send(buffer);
    }

    private void arriveBarrier(Sender sender) throws Exception {
        long checkpoint = nextCheckpoint(sender);
        boolean savepoint = mode.equals("alternating") && checkpoint % 5 == 0;
        boolean unaligned = mode.equals("unaligned") || mode.equals("alternating") && !savepoint && timeoutMs != null && !sender.stopped && random.nextInt(6) == 0;
        if (mode.equals("alternating")) {
            Map<String, Object> options = savepoint ? Map.of("savepoint", true) : unaligned ? Map.of("unaligned", true) : Map.of();
            happened("arrive_barrier", sender.index(), checkpoint, options);
        } else {
            happened("barrier", sender.index(), checkpoint);
        }
        CheckpointBarrier barrier = new CheckpointBarrier(checkpoint, time.now, options(savepoint, unaligned));
        sender.send(event(barrier, unaligned));
    }

    private CheckpointOptions options(boolean savepoint, boolean unaligned) {
        if (mode.equals("at_least_once")) {
            return CheckpointOptions.notExactlyOnce(CheckpointType.CHECKPOINT, PLACE);
        }
        if (savepoint) {
            return CheckpointOptions.alignedNoTimeout(SavepointType.savepoint(SavepointFormatType.CANONICAL), PLACE);
        }
        if (unaligned) {
            return CheckpointOptions.unaligned(CheckpointType.CHECKPOINT, PLACE);
        }
        return mode.equals("alternating") && timeoutMs != null
                ? CheckpointOptions.alignedWithTimeout(CheckpointType.CHECKPOINT, PLACE, timeoutMs)
                : CheckpointOptions.alignedNoTimeout(CheckpointType.CHECKPOINT, PLACE);
    }

    /** Mostly the checkpoint that follows the channel's last one; sometimes one that leaves some out. */
    private long nextCheckpoint(Sender sender) {
        sender.last += random.nextInt(5) == 0 ? 2 : 1;
        return sender.last;
    }

    private void pollOrWait() throws Exception {
        if (random.nextInt(4) == 0) {
            long duration = 5L * (1 + random.nextInt(8));
            boolean fires = random.nextInt(4) > 0;
            happened("advance_ms", duration, fires ? "fire_timers" : "no_timers");
            time.advance(duration, fires);
            resume();
            return;
        }
        events.add(List.of("poll"));
        if (!poll(true)) {
            events.remove(events.size() - 1);
        }
    }

    private void pollAll() throws Exception {
        while (poll(false)) {
            // Each poll notes what it hands out.
        }
    }

    private boolean poll(boolean yields) throws Exception {
        Optional<BufferOrEvent> next = gate.pollNext();
        next.ifPresent(item -> handedOut(item, yields));
        resume();
        return next.isPresent();
    }

    /** Flink resumes channels in the order of a hash table. Here they go on in the order in which they stopped. */
    private void resume() {
        prioritise();
        List<Sender> resumed = stops.stream().filter(sender -> sender.resumed).toList();
        stops.removeAll(resumed);
        for (Sender sender : resumed) {
            sender.resumed = false;
            sender.stopped = false;
            sender.pass();
        }
    }

    /** Flink prioritises announced barriers in the order of a hash table, too. Here it happens in the order of their announcements. */
    private void prioritise() {
        List<Integer> channels = new ArrayList<>(conversions.keySet());
        channels.sort(Comparator.comparingInt(announced::indexOf));
        try {
            for (int channel : channels) {
                input.convertToPriorityEvent(channel, conversions.remove(channel));
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private void handedOut(BufferOrEvent item, boolean yields) {
        int channel = item.getChannelInfo().getInputChannelIdx();
        if (item.isBuffer()) {
            expect.add(yields ? List.of("yield", "buffer") : List.of("buffer", channel, id(item.getBuffer())));
        } else if (item.getEvent() instanceof EndOfPartitionEvent) {
            expect.add(yields ? List.of("yield", "eop") : List.of("eop", channel));
        } else if (yields && item.getEvent() instanceof CheckpointBarrier) {
            expect.add(List.of("yield", "barrier"));
        } else if (yields && item.getEvent() instanceof EventAnnouncement) {
            expect.add(List.of("yield", "announcement"));
            announced.remove(Integer.valueOf(channel));
            announced.add(channel);
        } else if (yields && item.getEvent() instanceof CancelCheckpointMarker marker) {
            differs |= marker.getCheckpointId() == handler.getLatestCheckpointId() && handler.isCheckpointPending();
        }
    }

    private String names(String alternating, String atOnce) {
        return mode.equals("alternating") ? alternating : atOnce;
    }

    private void happened(Object... event) {
        events.add(Arrays.asList(event));
    }

    private static Buffer event(AbstractEvent event, boolean priority) throws IOException {
        return EventSerializer.toBuffer(event, priority);
    }

    private static int id(Buffer buffer) {
        return buffer.getMemorySegment().getInt(buffer.getMemorySegmentOffset());
    }

    // ------------------------------------------------------------------ what stands around the gate

    /** The other end of a channel: after an item that blocks it, it sends nothing until the gate resumes it. */
    private final class Sender {
        private final RemoteInputChannel channel;
        private final Deque<Buffer> waiting = new ArrayDeque<>();
        private boolean stopped;
        private boolean resumed;
        private boolean ended;
        private int sequence;
        private long last;

        private Sender(RemoteInputChannel channel) {
            this.channel = channel;
        }

        private int index() {
            return channel.getChannelIndex();
        }

        private void send(Buffer buffer) throws IOException {
            if (buffer.getDataType().hasPriority()) {
                waiting.addFirst(buffer);
            } else {
                waiting.addLast(buffer);
            }
            pass();
        }

        private void pass() {
            while (!stopped && !waiting.isEmpty()) {
                Buffer buffer = waiting.removeFirst();
                if (buffer.getDataType().isBlockingUpstream()) {
                    stopped = true;
                    stops.add(this);
                }
                try {
                    channel.onBuffer(buffer, sequence++, 0, 0);
                } catch (IOException error) {
                    throw new UncheckedIOException(error);
                }
            }
        }
    }

    private final class Connections extends TestingConnectionManager {
        @Override
        public PartitionRequestClient createPartitionRequestClient(ConnectionID connection) {
            return new TestingPartitionRequestClient() {
                @Override
                public void resumeConsumption(RemoteInputChannel channel) {
                    senders.get(channel.getChannelIndex()).resumed = true;
                }
            };
        }
    }

    /** The input gate, with a note of every channel that is blocked or resumed. */
    private final class Watched implements CheckpointableInput {
        private final SingleInputGate input;

        private Watched(SingleInputGate input) {
            this.input = input;
        }

        private void note(String what, InputChannelInfo channel) {
            if (mode.equals("aligned_blocking")) {
                expect.add(List.of(what, channel.getInputChannelIdx()));
            }
        }

        @Override
        public void blockConsumption(InputChannelInfo channel) {
            note("blocked", channel);
            Sender sender = senders.get(channel.getInputChannelIdx());
            stops.remove(sender);
            stops.add(sender);
            input.blockConsumption(channel);
        }

        @Override
        public void resumeConsumption(InputChannelInfo channel) throws IOException {
            note("unblocked", channel);
            input.resumeConsumption(channel);
        }

        @Override
        public List<InputChannelInfo> getChannelInfos() {
            return input.getChannelInfos();
        }

        @Override
        public int getNumberOfInputChannels() {
            return input.getNumberOfInputChannels();
        }

        @Override
        public void checkpointStarted(CheckpointBarrier barrier) throws CheckpointException {
            prioritise();
            input.checkpointStarted(barrier);
        }

        @Override
        public void checkpointStopped(long checkpoint) {
            input.checkpointStopped(checkpoint);
        }

        @Override
        public int getInputGateIndex() {
            return input.getInputGateIndex();
        }

        @Override
        public void convertToPriorityEvent(int channel, int sequence) {
            conversions.put(channel, sequence);
        }
    }

    /** What the task is told, and the in-flight buffers that are stored. */
    private final class Recorded implements CheckpointableTask, ChannelStateWriter {
        private final List<Long> unaligned = new ArrayList<>();
        private final List<Long> aborted = new ArrayList<>();
        private final Map<Long, CompletableFuture<Void>> complete = new TreeMap<>();
        private final Map<Long, List<Integer>> inFlight = new TreeMap<>();

        @Override
        public CompletableFuture<Boolean> triggerCheckpointAsync(CheckpointMetaData metadata, CheckpointOptions options) {
            throw new UnsupportedOperationException("a gate's task is triggered by barriers");
        }

        @Override
        public void triggerCheckpointOnBarrier(CheckpointMetaData metadata, CheckpointOptions options, CheckpointMetricsBuilder metrics) {
            if (options.isUnalignedCheckpoint()) {
                unaligned.add(metadata.getCheckpointId());
            }
            complete.put(metadata.getCheckpointId(), handler.getAllBarriersReceivedFuture(metadata.getCheckpointId()));
            String kind = options.isUnalignedCheckpoint() ? "unaligned" : "aligned";
            expect.add(mode.equals("alternating") ? List.of("trigger", metadata.getCheckpointId(), kind) : List.of("trigger", metadata.getCheckpointId()));
        }

        @Override
        public void abortCheckpointOnBarrier(long checkpoint, CheckpointException cause) {
            resume();
            differs |= cause.getCheckpointFailureReason() == CheckpointFailureReason.CHECKPOINT_SUBSUMED;
            aborted.add(checkpoint);
            expect.add(List.of("abort", checkpoint, cause.getCheckpointFailureReason().name()));
        }

        @Override
        public Future<Void> notifyCheckpointCompleteAsync(long checkpoint) {
            return CompletableFuture.completedFuture(null);
        }

        @Override
        public Future<Void> notifyCheckpointAbortAsync(long checkpoint, long latestCompleted) {
            return CompletableFuture.completedFuture(null);
        }

        @Override
        public Future<Void> notifyCheckpointSubsumedAsync(long checkpoint) {
            return CompletableFuture.completedFuture(null);
        }

        @Override
        public void start(long checkpoint, CheckpointOptions options) {
            inFlight.putIfAbsent(checkpoint, new ArrayList<>());
        }

        @Override
        public void addInputData(long checkpoint, InputChannelInfo channel, int from, CloseableIterator<Buffer> data) {
            data.forEachRemaining(buffer -> inFlight.get(checkpoint).add(id(buffer)));
        }

        @Override
        public void addOutputData(long checkpoint, ResultSubpartitionInfo subpartition, int from, Buffer... data) {}

        @Override
        public void addOutputDataFuture(long checkpoint, ResultSubpartitionInfo subpartition, int from, CompletableFuture<List<Buffer>> data) {}

        @Override
        public void finishInput(long checkpoint) {}

        @Override
        public void finishOutput(long checkpoint) {}

        @Override
        public void abort(long checkpoint, Throwable cause, boolean cleanUp) {}

        @Override
        public ChannelStateWriteResult getAndRemoveWriteResult(long checkpoint) {
            return ChannelStateWriteResult.EMPTY;
        }

        @Override
        public void close() {}
    }

    /** Priority events wait for the next poll; Flink would interrupt the task for them. */
    private static final class NextPoll extends SyncMailboxExecutor {
        @Override
        public void execute(MailOptions options, ThrowingRunnable<? extends Exception> command, String description, Object... arguments) {}
    }

    /** A clock that stands still until it is moved, and the timers that wait for it. */
    private static final class ManualTime extends Clock implements BarrierAlignmentUtil.DelayableTimer {
        private record Timer(long at, Callable<?> action) {}

        private final PriorityQueue<Timer> timers = new PriorityQueue<>(Comparator.comparingLong(Timer::at));
        private long now;

        @Override
        public BarrierAlignmentUtil.Cancellable registerTask(Callable<?> action, Duration delay) {
            Timer timer = new Timer(now + delay.toMillis(), action);
            timers.add(timer);
            return () -> timers.remove(timer);
        }

        private void advance(long duration, boolean fires) throws Exception {
            now += duration;
            while (fires && !timers.isEmpty() && timers.peek().at() <= now) {
                timers.poll().action().call();
            }
        }

        @Override
        public long absoluteTimeMillis() {
            return now;
        }

        @Override
        public long relativeTimeMillis() {
            return now;
        }

        @Override
        public long relativeTimeNanos() {
            return now * 1_000_000;
        }
    }

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        for (String mode : Arrays.asList(arguments).subList(2, arguments.length)) {
            for (long seed = Long.parseLong(arguments[0]); seed < Long.parseLong(arguments[1]); seed++) {
                try {
                    System.out.println(json.writeValueAsString(new GateOracle(mode, seed).play(seed)));
                } catch (IllegalStateException error) {
                    System.err.println(mode + ", seed " + seed + ": " + error);
                }
            }
        }
    }
}
