// SPDX-License-Identifier: Apache-2.0 OR MIT
package elbowroom.agent;

/** From effective memory to VirtualMax: the heap is not all that a process needs memory for. */
final class HeapTarget {
    /** The heap's part of effective memory, in percent. */
    static final int USUAL = 75;

    /** More leaves no room for threads, code and classes. */
    static final int MOST = 95;

    /** No heap is made smaller, in bytes. */
    static final long LEAST = 16L << 20;

    private HeapTarget() {}

    /**
     * The part that lets a program start as it was configured: a heap that is more than the usual part of the memory it
     * started with keeps its part, as long as it fits at all.
     */
    static int percent(long maxHeap, long memoryAtStart) {
        if (memoryAtStart <= 0 || maxHeap >= memoryAtStart) {
            return USUAL;
        }
        double part = Math.ceil(100.0 * maxHeap / memoryAtStart);
        return (int) Math.max(USUAL, Math.min(MOST, part));
    }

    /** VirtualMax: at least {@link #LEAST}, at most the largest heap, which is no bound. */
    static long of(long effectiveMemory, int percent, long maxHeap) {
        long part = effectiveMemory / 100 * percent;
        return Math.min(maxHeap, Math.max(Math.min(LEAST, maxHeap), part));
    }
}
