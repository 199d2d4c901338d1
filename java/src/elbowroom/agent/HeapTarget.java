// SPDX-License-Identifier: Apache-2.0 OR MIT
package elbowroom.agent;

/** From effective memory to VirtualMax: the heap is not all that a process needs memory for. */
final class HeapTarget {
    /** The heap's part of memory, in percent, where nothing else is known. */
    static final int USUAL = 75;

    /** More leaves no room for threads, code and classes. */
    static final int MOST = 95;

    /** No heap is made smaller, in bytes. */
    static final long LEAST = 16L << 20;

    private HeapTarget() {}

    /**
     * The part that lets a program start as it was configured. A heap that is more than the usual part of the memory that it may get
     * keeps its part, as long as it fits at all.
     */
    static int percent(long maxHeap, long memoryMost) {
        if (memoryMost <= 0 || maxHeap >= memoryMost) {
            return USUAL;
        }
        double part = Math.ceil(100.0 * maxHeap / memoryMost);
        return (int) Math.max(USUAL, Math.min(MOST, part));
    }

    /** That part of memory: at least {@link #LEAST}, at most the largest heap, which is no bound. */
    static long part(long memory, int percent, long maxHeap) {
        return Math.min(maxHeap, Math.max(Math.min(LEAST, maxHeap), memory / 100 * percent));
    }

    /**
     * VirtualMax: what effective memory leaves beside everything else in use, or the heap's part of effective memory, whichever is
     * larger. It is never more than the heap's part of the most that effective memory can become.
     *
     * <p>A heap that stopped at its part would never fill what the container is shown. Effective memory grows only for containers that
     * fill it (Adaptive Resource Views, algorithm 2: nine tenths). Beyond the view waits more memory or reclaim; beyond the hard limit
     * waits the end, so there the part stays as it is.
     */
    static long of(long memory, long memoryMost, long beside, int percent, long maxHeap) {
        long left = memory / 100 * MOST - beside;
        long most = part(memoryMost, percent, maxHeap);
        return Math.min(most, Math.max(left, part(memory, percent, maxHeap)));
    }
}
