// SPDX-License-Identifier: Apache-2.0 OR MIT
package elbowroom.agent;

/**
 * The elastic heap of Adaptive Resource Views, section 4.2, as a function of what was seen.
 *
 * <p>VirtualMax moves with effective memory. When it grows there is nothing to do but to say so. When it shrinks there are the
 * paper's three scenarios: what is committed fits; what is used fits, and the rest must be released; not even that fits, and
 * the program's garbage must go first, again and again until it fits.
 *
 * <p>Differs from the paper: collections back off while they do not help, because a heap full of living objects never fits;
 * and a program that only collects gets its bound lifted for a while, because a view is no reason to run out of memory.
 */
final class HeapPolicy {
    /** Where VirtualMax is, in the paper's order. */
    enum Scenario {
        UNBOUND,
        FITS,
        RELEASE,
        COLLECT,
        LIFTED
    }

    /** What was seen; sizes in bytes, time in milliseconds. */
    static final class Look {
        long now;
        /** VirtualMax as effective memory has it. */
        long target;
        long maxHeap;
        long used;
        long committed;
        /** Used after the last collection, or 0. */
        long live;
        /** Time spent in collections since the machine started, in milliseconds. */
        long collecting;
        /** How often the machine has lifted the bound itself: it had to choose between that and an OutOfMemoryError. */
        long lifted;
    }

    /** What to do. */
    static final class Step {
        final Scenario scenario;
        /** The bound to set, in bytes; 0 is none. */
        final long bound;
        /** Collect now. */
        final boolean collect;

        Step(Scenario scenario, long bound, boolean collect) {
            this.scenario = scenario;
            this.bound = bound;
            this.collect = collect;
        }
    }

    static final long FIRST_PAUSE = 1_000;
    static final long LONGEST_PAUSE = 64_000;
    /** How long a bound stays lifted that a program cannot live with. */
    static final long LIFT = 30_000;
    /** A program that collects more than this part of so much time, in milliseconds, only collects. */
    static final double THRASHING = 0.5;
    static final long WINDOW = 5_000;
    /** Beyond what lives there must be this part of it, or every allocation is a collection. */
    static final int ROOM = 8;
    /** A collection that gave back less than this part of the heap did not help. */
    static final int HELPED = 32;

    private long target = -1;
    private long nextCollection;
    private long pause = FIRST_PAUSE;
    private long committedBefore;
    private long usedBefore;
    private long liftedUntil = Long.MIN_VALUE;
    private long liftedSeen;
    private long windowFrom;
    private long collectingBefore;

    Step step(Look look) {
        if (look.target != target) {
            target = look.target;
            nextCollection = look.now;
            pause = FIRST_PAUSE;
            committedBefore = Long.MAX_VALUE;
            usedBefore = Long.MAX_VALUE;
            openWindow(look);
        }
        if (target >= look.maxHeap) {
            openWindow(look);
            liftedSeen = look.lifted;
            return new Step(Scenario.UNBOUND, 0, false);
        }
        if (cannotLive(look)) {
            liftedUntil = look.now + LIFT;
        }
        if (look.now < liftedUntil) {
            openWindow(look);
            return new Step(Scenario.LIFTED, 0, false);
        }
        // What lived then may be dead now.
        long live = Math.min(look.live, look.used);
        long bound = Math.min(look.maxHeap, Math.max(target, live + live / ROOM));
        if (look.committed <= target) {
            pause = FIRST_PAUSE;
            return new Step(Scenario.FITS, bound, false);
        }
        Scenario scenario = look.used <= target ? Scenario.RELEASE : Scenario.COLLECT;
        return new Step(scenario, bound, isTimeToCollect(look));
    }

    /** The machine lifted the bound itself, or does nothing but collect under it. */
    private boolean cannotLive(Look look) {
        boolean lifted = look.lifted > liftedSeen;
        liftedSeen = look.lifted;
        long passed = look.now - windowFrom;
        if (passed < WINDOW) {
            return lifted;
        }
        boolean thrashing = look.collecting - collectingBefore > THRASHING * passed;
        openWindow(look);
        return lifted || thrashing;
    }

    /** Counts collections from here on. */
    private void openWindow(Look look) {
        windowFrom = look.now;
        collectingBefore = look.collecting;
    }

    /** Repeated until it fits; twice as long between two when the last did not help. */
    private boolean isTimeToCollect(Look look) {
        if (look.now < nextCollection) {
            return false;
        }
        boolean helped = isLess(look.committed, committedBefore) || isLess(look.used, usedBefore);
        pause = helped ? FIRST_PAUSE : Math.min(LONGEST_PAUSE, 2 * pause);
        nextCollection = look.now + pause;
        committedBefore = look.committed;
        usedBefore = look.used;
        return true;
    }

    private static boolean isLess(long now, long before) {
        return now < before - before / HELPED;
    }
}
