// SPDX-License-Identifier: Apache-2.0 OR MIT
package elbowroom.agent;

/** How the heap of a collector is bounded. */
interface Knob {
    /** For people. */
    String title();

    /**
     * Bounds the heap to `bytes`, and to `ceiling` before an OutOfMemoryError; 0 takes a bound away. It stays where the
     * machine has lifted it more than `lifts` times.
     */
    void bound(long bytes, long ceiling, long lifts);

    /** Takes the bound away for good, with everything that was changed for it. */
    default void release() {
        bound(0, 0, Native.ANY_LIFTS);
    }

    /** Collects, so that what the bound leaves out is released. */
    void collect(long bound, long used);

    /** False for collectors that do this by themselves. */
    boolean needsCollections();

    /**
     * JDK 17 has the flag too. With it, machines that fought over two CPUs ended with an OutOfMemoryError at an object of a third of
     * their heap, of which most was free. Without it none did, nor any of JDK 21 and 25.
     */
    int SHENANDOAH_SINCE = 21;

    /** The best one for this machine; `nativeHeap` when the native half can bound this heap. */
    static Knob of(Machine machine, boolean nativeHeap) {
        switch (machine.collector) {
            case SHENANDOAH:
                return machine.version < SHENANDOAH_SINCE ? new NoKnob() : softMax(machine);
            case Z:
                return softMax(machine);
            case G1:
            case PARALLEL:
            case SERIAL:
                return new FreeRatio(machine, nativeHeap);
            default:
                return new NoKnob();
        }
    }

    static Knob softMax(Machine machine) {
        return machine.flag("SoftMaxHeapSize") == null ? new NoKnob() : new SoftMax(machine);
    }

    /** A collector that cannot be bounded. */
    final class NoKnob implements Knob {
        @Override
        public String title() {
            return "none";
        }

        @Override
        public void bound(long bytes, long ceiling, long lifts) {}

        @Override
        public void collect(long bound, long used) {}

        @Override
        public boolean needsCollections() {
            return false;
        }
    }

    /** ZGC and Shenandoah: the machine's own. */
    final class SoftMax implements Knob {
        private final Flag flag;

        SoftMax(Machine machine) {
            flag = new Flag(machine, "SoftMaxHeapSize");
        }

        @Override
        public String title() {
            return "SoftMaxHeapSize";
        }

        @Override
        public void bound(long bytes, long ceiling, long lifts) {
            long theirs = flag.theirs();
            flag.set(bytes == 0 ? theirs : Math.min(bytes, theirs));
        }

        @Override
        public void collect(long bound, long used) {}

        @Override
        public boolean needsCollections() {
            return false;
        }
    }

    /**
     * G1, ParallelGC and Serial: a full collection, with free ratios that leave no more than the bound. Growth is bounded by
     * the native half, where it knows how, and is not bounded otherwise.
     */
    final class FreeRatio implements Knob {
        private static final String SURVIVORS = "MinSurvivorRatio";
        /** A survivor space is at most this part of a young generation that was bounded; -XX:InitialSurvivorRatio is the same. */
        private static final int SMALL = 8;

        /** In percent: an eighth of what lives is a ninth of the heap. */
        static final long LEAST_FREE = 100 / (HeapPolicy.ROOM + 1);

        private final Machine machine;
        private final boolean nativeHeap;
        private int survivorsBefore;
        private final Flag least;
        private final Flag most;
        /** Whether free ratios are those of a collection, and with them the sizing of generations. */
        private boolean tight;
        private boolean resizing;

        FreeRatio(Machine machine, boolean nativeHeap) {
            this.machine = machine;
            this.nativeHeap = nativeHeap;
            least = new Flag(machine, "MinHeapFreeRatio");
            most = new Flag(machine, "MaxHeapFreeRatio");
        }

        @Override
        public String title() {
            return nativeHeap ? "VirtualMax" : "MaxHeapFreeRatio";
        }

        @Override
        public void bound(long bytes, long ceiling, long lifts) {
            if (nativeHeap) {
                Native.setVirtualMax(bytes, ceiling, lifts);
                keepSurvivorsSmall(bytes != 0);
            }
            loosen();
        }

        @Override
        public void release() {
            try {
                bound(0, 0, Native.ANY_LIFTS);
            } finally {
                if (survivorsBefore > 0) {
                    Native.setFlag(SURVIVORS, 4, survivorsBefore);
                }
            }
        }

        /**
         * ParallelGC gives two thirds of a young generation that is short of room to its survivor spaces, of which one is always empty.
         * It cannot take them back once old objects fill eden, and runs out of heap with a seventh of it free. From the first bound on,
         * where no setting said otherwise.
         */
        private void keepSurvivorsSmall(boolean bounded) {
            if (bounded && survivorsBefore == 0 && machine.collector == Collector.PARALLEL) {
                survivorsBefore = machine.isDefault(SURVIVORS) ? Native.flag(SURVIVORS, 4) : -1;
                if (survivorsBefore > 0 && survivorsBefore < SMALL) {
                    Native.setFlag(SURVIVORS, 4, SMALL);
                }
            }
        }

        @Override
        public boolean needsCollections() {
            return true;
        }

        @Override
        public void collect(long bound, long used) {
            tight = true;
            try {
                least.set(Math.min(least.theirs(), LEAST_FREE));
                most.set(ratio(sized(bound), used));
                resizing = nativeHeap && machine.collector == Collector.PARALLEL && resizeAtSystemGc(1, 0);
                System.gc();
            } finally {
                loosen();
            }
        }

        /**
         * Gives back the flags that a collection changed: after it, or, where the program's heap was too full for that, at the next
         * bound. The same where the least was refused, because the user has set the most below it meanwhile.
         */
        private void loosen() {
            if (tight) {
                boolean most = this.most.giveBack();
                boolean least = this.least.giveBack();
                if (resizing) {
                    resizeAtSystemGc(0, 1);
                }
                resizing = false;
                tight = !most || !least;
            }
        }

        /**
         * What of a bound the free ratios size: Serial's are of its old generation alone, and the young one is a fixed part of that
         * (DefNewGeneration::compute_new_size).
         */
        private long sized(long bound) {
            return machine.collector == Collector.SERIAL ? oldPart(bound, machine.number("NewRatio", 2)) : bound;
        }

        /** The old generation's part of a heap, where the old one is `newRatio` times as large as the young one. */
        static long oldPart(long bound, long newRatio) {
            return bound / (newRatio + 1) * newRatio;
        }

        /**
         * The part of the heap that may stay free so that all of it fits. Never less than what the bound leaves to living objects. A
         * program's own collection may come in between, and G1 of JDK 21 has no young region after a collection that left nothing free.
         */
        static long ratio(long bound, long used) {
            return used >= bound ? LEAST_FREE : Math.max(LEAST_FREE, Math.min(100, 100 * (bound - used) / bound));
        }

        /** ParallelGC sizes its generations after a System.gc() only when told so; true when that was changed. */
        private static boolean resizeAtSystemGc(int value, int from) {
            String name = "UseAdaptiveSizePolicyWithSystemGC";
            return Native.flag(name, 1) == from && Native.setFlag(name, 1, value);
        }
    }
}
