// SPDX-License-Identifier: Apache-2.0 OR MIT
package elbowroom.agent;

/**
 * GC threads of ZGC with generations, which asks no function that could be asked first: its director reads two flags anew for
 * every cycle. They only ever go down from what they were; ConcGCThreads, by which it sizes its data, is left alone.
 */
final class ZThreads {
    private static final String[] FLAGS = {"ZYoungGCThreads", "ZOldGCThreads"};

    private final int[] before = new int[FLAGS.length];
    private int last = -1;

    private ZThreads() {}

    /** {@code null} where this is no such machine. */
    static ZThreads of(Machine machine) {
        ZThreads threads = new ZThreads();
        long most = machine.number("ConcGCThreads", 0);
        for (int i = 0; i < FLAGS.length; i++) {
            threads.before[i] = Native.flag(FLAGS[i], 4);
            if (threads.before[i] < 1 || threads.before[i] > most) {
                return null;
            }
        }
        return threads;
    }

    void follow(int cpus) {
        if (cpus == last) {
            return;
        }
        for (int i = 0; i < FLAGS.length; i++) {
            Native.setFlag(FLAGS[i], 4, Math.max(1, Math.min(before[i], cpus)));
        }
        last = cpus;
    }

    /** As many as there were before. */
    void release() {
        follow(Integer.MAX_VALUE);
    }

    int total() {
        return before[0];
    }

    int given() {
        return Math.max(1, Math.min(before[0], last < 0 ? before[0] : last));
    }
}
