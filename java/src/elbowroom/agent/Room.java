// SPDX-License-Identifier: Apache-2.0 OR MIT
package elbowroom.agent;

import elbowroom.View;
import java.lang.instrument.Instrumentation;
import java.lang.management.ManagementFactory;
import java.lang.management.MemoryUsage;
import java.util.ArrayList;
import java.util.List;
import javax.management.JMException;
import javax.management.ObjectName;

/** Looks at the room there is, once a period, and makes the virtual machine follow. Used by one thread; read by any. */
final class Room implements RoomMXBean {
    private final Options options;
    private final Machine machine;
    private final View view = new View();
    private final Beside beside = new Beside();
    private final Pools pools;
    private final String threadsRefused;
    private final String heapRefused;
    private final ZThreads zThreads;
    private final Knob knob;
    private final int percent;
    private final HeapPolicy policy = new HeapPolicy();

    private volatile int cpus;
    private volatile long memory;
    /** The most that effective memory can become. */
    private volatile long memoryMost;
    private volatile long target;
    private volatile HeapPolicy.Step step = new HeapPolicy.Step(HeapPolicy.Scenario.UNBOUND, 0, 0, false);
    private volatile long collections;
    private volatile boolean hasNative;

    Room(Options options, Instrumentation instrumentation) {
        this.options = options;
        machine = new Machine();
        cpus = machine.effectiveCpus();
        lookAtMemory();
        pools = new Pools(instrumentation, cpus);
        percent = options.percent > 0 ? options.percent : HeapTarget.percent(machine.maxHeap, memoryMost);
        target = machine.maxHeap;

        String strange = options.nativeCode ? machine.strange() : "native=off";
        strange = strange == null ? Native.load(instrumentation) : strange;
        if (strange == null) {
            int least = machine.collector.leastThreads(machine.number("GCDrainStackTargetSize", -1));
            strange = Native.machine(machine.version, machine.collector.ordinal(), least);
        }
        hasNative = strange == null;
        zThreads = hasNative && options.threads && machine.collector == Collector.Z ? ZThreads.of(machine) : null;
        if (!hasNative || zThreads != null) {
            threadsRefused = strange;
        } else {
            threadsRefused = options.threads ? Native.threads(machine.collections() > 0) : "threads=off";
        }
        if (!hasNative) {
            heapRefused = strange;
        } else {
            heapRefused = options.heap ? Native.heap() : "heap=off";
        }
        knob = Knob.of(machine, hasNative && heapRefused == null);
    }

    void look() {
        cpus = machine.effectiveCpus();
        lookAtMemory();
        if (options.pools) {
            pools.follow(cpus);
        }
        if (zThreads != null) {
            zThreads.follow(cpus);
        }
        if (options.heap) {
            follow(System.nanoTime() / 1_000_000);
        }
    }

    /** From the view page; without one from the machine, which knows no more than one number. */
    private void lookAtMemory() {
        long shown = view.memory();
        memory = shown > 0 ? shown : machine.effectiveMemory();
        memoryMost = shown > 0 ? Math.max(memory, view.memoryMost()) : memory;
    }

    private void follow(long now) {
        HeapPolicy.Look look = new HeapPolicy.Look();
        MemoryUsage heap = machine.heap();
        long others = beside.look(now, view.memoryUsed() - view.memoryInactiveFile(), heap.getCommitted());
        target = HeapTarget.of(memory, memoryMost, others, percent, machine.maxHeap);
        look.now = now;
        look.target = target;
        look.ceiling = HeapTarget.part(memoryMost, percent, machine.maxHeap);
        look.maxHeap = machine.maxHeap;
        look.used = heap.getUsed();
        look.committed = heap.getCommitted();
        look.live = target < machine.maxHeap ? machine.live() : 0;
        look.collecting = machine.collecting();
        if (hasNative) {
            Native.State state = Native.state();
            look.lifted = state.lifted();
            look.liftedTo = state.liftedTo();
        }

        HeapPolicy.Step next = policy.step(look);
        if (next.bound != 0 || step.bound != 0) {
            knob.bound(next.bound, next.ceiling, look.lifted);
        }
        // Only now: a bound that could not be taken away is taken away by a later look.
        step = next;
        if (step.collect && knob.needsCollections()) {
            collections++;
            knob.collect(step.bound, look.used);
        }
    }

    /** Gives everything back that was changed, for good. What cannot be given back keeps nothing else. */
    void release() {
        try {
            knob.release();
        } catch (Throwable refused) {
            // Then the heap is as large as it was last.
        }
        try {
            if (zThreads != null) {
                zThreads.release();
            }
        } catch (Throwable refused) {
            // Then there are as many threads as there were last.
        }
        try {
            pools.release();
        } catch (Throwable refused) {
            // Then they are as parallel as they were last.
        }
    }

    void register() {
        try {
            ManagementFactory.getPlatformMBeanServer().registerMBean(this, new ObjectName("elbowroom:type=Room"));
        } catch (JMException | RuntimeException refused) {
            // Nothing can look; everything else works.
        }
    }

    @Override
    public int getEffectiveCpus() {
        return cpus;
    }

    @Override
    public long getEffectiveMemory() {
        return memory;
    }

    @Override
    public long getVirtualMax() {
        return step.bound;
    }

    @Override
    public String getHeapScenario() {
        return step.scenario.name();
    }

    @Override
    public String getHeapKnob() {
        return knob.title();
    }

    @Override
    public long getCollections() {
        return collections;
    }

    @Override
    public long getLifts() {
        return hasNative ? Native.state().lifted() : 0;
    }

    @Override
    public long getGcThreadsTotal() {
        return zThreads != null ? zThreads.total() : hasNative ? Native.state().total() : 0;
    }

    @Override
    public long getGcThreadsWanted() {
        return zThreads != null ? zThreads.total() : hasNative ? Native.state().active() : 0;
    }

    @Override
    public long getGcThreadsGiven() {
        return zThreads != null ? zThreads.given() : hasNative ? Native.state().given() : 0;
    }

    @Override
    public long getGcThreadDecisions() {
        return hasNative ? Native.state().decisions() : 0;
    }

    @Override
    public long getGcThreadsCapped() {
        return hasNative ? Native.state().capped() : 0;
    }

    @Override
    public List<String> getExplanation() {
        List<String> lines = new ArrayList<>();
        lines.add("JDK " + machine.version + " with " + machine.collector.title + " sees " + cpus + " CPUs and "
                + mib(memory) + " of memory.");
        lines.add(explainThreads());
        if (machine.collector == Collector.G1 || machine.collector == Collector.PARALLEL) {
            lines.addAll(explainFewThreads(machine.number("ParallelGCThreads", cpus), cpus));
        }
        lines.addAll(explainHeap());
        lines.add("Common pool: " + pools.common() + ". Virtual threads: " + pools.scheduler() + ".");
        for (String word : options.ignored) {
            lines.add("Not understood, and ignored: " + word + ".");
        }
        return lines;
    }

    private String explainThreads() {
        if (threadsRefused != null) {
            return "GC threads are HotSpot's own: " + threadsRefused + ".";
        } else if (zThreads != null) {
            return "GC threads: " + zThreads.given() + " of " + zThreads.total() + ", by ZYoungGCThreads and ZOldGCThreads.";
        }
        Native.State state = Native.state();
        if (state.forbidden() > 0) {
            return "GC threads are HotSpot's own: this system allows no changed code.";
        } else if (state.decisions() == 0) {
            return "GC threads are governed from the first collection on.";
        } else if (state.placed() < state.prepared()) {
            return "GC threads of pauses are governed; those of concurrent marking are not, because collections had begun.";
        }
        return "GC threads: min(" + state.total() + " there are, " + state.active() + " HotSpot wanted, "
                + state.effectiveCpu() + " CPUs) gave " + state.given() + " at the last collection.";
    }

    /** A machine that started in a small view has few GC threads for good, whatever the view becomes. */
    static List<String> explainFewThreads(long made, int cpus) {
        // WorkerPolicy::parallel_worker_threads: all CPUs up to eight, then five of eight.
        int wanted = cpus <= 8 ? cpus : 8 + (cpus - 8) * 5 / 8;
        return made >= wanted ? List.of() : List.of("HotSpot has " + made + (made == 1 ? " GC thread" : " GC threads") + " since its start, and makes no more: for " + cpus
                + " CPUs start it with -XX:ParallelGCThreads=" + wanted + ".");
    }

    private List<String> explainHeap() {
        List<String> lines = new ArrayList<>();
        if (!options.heap) {
            lines.add("The heap is HotSpot's own: heap=off.");
            return lines;
        }
        long ceiling = HeapTarget.part(memoryMost, percent, machine.maxHeap);
        lines.add("Heap: effective memory leaves " + mib(target) + ", " + percent + " % of the most it can become is "
                + mib(ceiling) + ", the largest heap is " + mib(machine.maxHeap) + "; " + step.scenario + " by "
                + knob.title() + ".");
        if (knob.needsCollections() && heapRefused != null) {
            lines.add("Growth of the heap is not bounded: " + heapRefused + ".");
        }
        if (knob.needsCollections() && "true".equals(machine.flag("DisableExplicitGC"))) {
            lines.add("-XX:+DisableExplicitGC keeps the heap from shrinking.");
        }
        return lines;
    }

    private static String mib(long bytes) {
        return (bytes >> 20) + " MiB";
    }
}
