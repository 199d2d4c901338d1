// SPDX-License-Identifier: Apache-2.0 OR MIT
package elbowroom.agent;

/**
 * What a container needs memory for beside the heap: what is charged to it, less what the heap has committed.
 *
 * <p>Every look gives a number that is too small rather than too large: a heap does not touch all that it commits, and the
 * charge was counted a while ago. So the largest of some time counts: it is exact whenever the heap was full.
 */
final class Beside {
    /** What is charged is no older, in milliseconds. */
    static final long STALE = 2_000;
    /** A number counts for this long at least, and twice as long at most, in milliseconds. */
    static final long KEEP = 30_000;

    private long committedMost;
    private long committedAt;
    private long now;
    private long before;
    private long since;
    private boolean begun;

    /** In bytes; `charged` is 0 where it is not known, and then nothing is. */
    long look(long time, long charged, long committed) {
        if (!begun || committed >= committedMost || time - committedAt > STALE) {
            committedMost = committed;
            committedAt = time;
        }
        if (!begun || time - since > KEEP) {
            before = now;
            now = 0;
            since = time;
            begun = true;
        }
        now = Math.max(now, charged - committedMost);
        return Math.max(now, before);
    }
}
