// SPDX-License-Identifier: Apache-2.0 OR MIT
package elbowroom.agent;

/**
 * The elastic heap of Adaptive Resource Views, section 4.2, as a function of what was seen.
 *
 * <p>VirtualMax moves with effective memory. When it grows there is nothing to do but to say so. When it shrinks there are the
 * paper's three scenarios: committed memory fits; or only used memory fits, and the rest must be released; or not even that fits,
 * and the program's garbage must be collected first, again and again until it fits.
 *
 * <p>Differs from the paper in two ways. Collections back off while they do not help, because a heap full of living objects never
 * fits, and while the heap soon grows again, because not every machine's growth is bounded. And the bound of a program that cannot
 * live under it is lifted for a while, because a view is no reason to run out of memory. A program that only collects gets what the
 * hard limit leaves. Only one that would run out of heap gets more than that.
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
        /** VirtualMax as the hard limit has it: effective memory can grow so far. */
        long ceiling;
        long maxHeap;
        long used;
        long committed;
        /** Used after the last collection, or 0. */
        long live;
        /** Time spent in collections since the machine started, in milliseconds. */
        long collecting;
        /** How often the machine has lifted the bound itself: it had to choose between that and an OutOfMemoryError. */
        long lifted;
        /** What it has lifted it to; 0 is none. */
        long liftedTo;
    }

    /** What to do. */
    static final class Step {
        final Scenario scenario;
        /** The bound to set, in bytes; 0 is none. */
        final long bound;
        /** What to lift it to at once when it would be an OutOfMemoryError; 0 is none. */
        final long ceiling;
        /** Collect now. */
        final boolean collect;

        Step(Scenario scenario, long bound, long ceiling, boolean collect) {
            this.scenario = scenario;
            this.bound = bound;
            this.ceiling = ceiling;
            this.collect = collect;
        }
    }

    static final long FIRST_PAUSE = 1_000;
    static final long LONGEST_PAUSE = 64_000;
    /** How long a bound stays lifted that a program cannot live with. */
    static final long LIFT = 30_000;
    /** A program that collects for more than this part of WINDOW, in milliseconds, only collects. */
    static final double THRASHING = 0.5;
    static final long WINDOW = 5_000;
    /** Beyond what lives there must be this part of it, or every allocation is a collection. */
    static final int ROOM = 8;
    /** Less than this part less is no other target, and less than this part more no reason to collect. */
    static final int NOISE = 32;
    /** A collection that gave back less than this part of the heap did not help. */
    static final int HELPED = 32;

    private long target;
    /** The largest target since collections were last begun for one. */
    private long settled;
    private boolean first = true;
    private long nextCollection;
    private long pause = FIRST_PAUSE;
    /** The least before any collection that counts: less than only the last had is what a heap that comes and goes has by chance. */
    private long committedLeast;
    private long usedLeast;
    /** Since when it has fitted without a break. */
    private long fitsSince;
    private boolean fits;
    private long liftedUntil = Long.MIN_VALUE;
    private long liftedTo;
    private long liftedSeen;
    private long windowFrom;
    private long collectingBefore;

    Step step(Look look) {
        target = look.target;
        if (target > settled) {
            settled = target;
        }
        if (first || target < settled - settled / NOISE) {
            first = false;
            settled = target;
            nextCollection = look.now;
            forgetCollections();
            openWindow(look);
        }
        if (target >= look.maxHeap) {
            openWindow(look);
            liftedSeen = look.lifted;
            liftedUntil = Long.MIN_VALUE;
            seeItFit(look);
            return new Step(Scenario.UNBOUND, 0, 0, false);
        }
        long ceiling = look.ceiling < look.maxHeap ? look.ceiling : 0;
        if (cannotLive(look, ceiling)) {
            liftedUntil = look.now + LIFT;
        }
        // What lived then may be dead now.
        long live = Math.min(look.live, look.used);
        long needed = live + live / ROOM;
        if (look.now < liftedUntil) {
            openWindow(look);
            fits = false;
            long bound = liftedTo == 0 ? 0 : Math.min(look.maxHeap, Math.max(liftedTo, Math.max(target, needed)));
            return new Step(Scenario.LIFTED, bound, ceiling, false);
        }
        long bound = Math.min(look.maxHeap, Math.max(target, needed));
        // What lives leaves no more: it fits as well as it can.
        if (look.committed <= bound + bound / NOISE) {
            seeItFit(look);
            return new Step(Scenario.FITS, bound, ceiling, false);
        }
        fits = false;
        Scenario scenario = look.used <= target ? Scenario.RELEASE : Scenario.COLLECT;
        return new Step(scenario, bound, ceiling, isTimeToCollect(look));
    }

    /** The machine lifted the bound itself, or does nothing but collect under it although there is a higher one. */
    private boolean cannotLive(Look look, long ceiling) {
        boolean lifted = look.lifted > liftedSeen;
        liftedSeen = look.lifted;
        if (lifted) {
            liftedTo = look.liftedTo;
            return true;
        }
        long passed = look.now - windowFrom;
        if (passed < WINDOW || look.now < liftedUntil) {
            return false;
        }
        boolean thrashing = look.collecting - collectingBefore > THRASHING * passed;
        openWindow(look);
        if (thrashing && (ceiling == 0 || ceiling > target)) {
            liftedTo = ceiling;
            return true;
        }
        return false;
    }

    /** Counts collections from here on. */
    private void openWindow(Look look) {
        windowFrom = look.now;
        collectingBefore = look.collecting;
    }

    /** One that has fitted for the longest pause was not kept small by collections: they begin anew. */
    private void seeItFit(Look look) {
        fitsSince = fits ? fitsSince : look.now;
        fits = true;
        if (look.now - fitsSince >= LONGEST_PAUSE) {
            forgetCollections();
        }
    }

    private void forgetCollections() {
        pause = FIRST_PAUSE;
        committedLeast = Long.MAX_VALUE;
        usedLeast = Long.MAX_VALUE;
    }

    /** Repeated until it fits; twice as long between two when the last did not help, or not for long. */
    private boolean isTimeToCollect(Look look) {
        if (look.now < nextCollection) {
            return false;
        }
        boolean helped = isLess(look.committed, committedLeast) || isLess(look.used, usedLeast);
        pause = helped ? FIRST_PAUSE : Math.min(LONGEST_PAUSE, 2 * pause);
        nextCollection = look.now + pause;
        committedLeast = Math.min(committedLeast, look.committed);
        usedLeast = Math.min(usedLeast, look.used);
        return true;
    }

    private static boolean isLess(long now, long before) {
        return now < before - before / HELPED;
    }
}
