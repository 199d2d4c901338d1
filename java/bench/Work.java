// SPDX-License-Identifier: Apache-2.0 OR MIT

import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;

/** A fixed amount of work that makes garbage. Says what it took: wall, the process's CPU and the agent's thread's, in microseconds; collections. */
public final class Work {
    private static final int LIVE = 1 << 14;

    private Work() {
    }

    /** Arguments: objects to make. */
    public static void main(String[] args) {
        long objects = Long.parseLong(args[0]);
        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        com.sun.management.OperatingSystemMXBean process =
                (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        make(objects / 10);
        long cpu = process.getProcessCpuTime();
        long agent = agentTime(threads);
        long collections = collections();
        long begin = System.nanoTime();
        long sum = make(objects);
        long wall = System.nanoTime() - begin;
        agent = agentTime(threads) - agent;
        cpu = process.getProcessCpuTime() - cpu;
        collections = collections() - collections;
        System.out.println(wall / 1_000 + " " + cpu / 1_000 + " " + agent / 1_000 + " " + collections + " " + (sum & 1));
    }

    private static long make(long objects) {
        byte[][] live = new byte[LIVE][];
        long sum = 0;
        for (long i = 0; i < objects; i++) {
            byte[] made = new byte[64 + (int) (i & 1023)];
            live[(int) (i * 31 & LIVE - 1)] = made;
            sum += made.length;
        }
        return sum;
    }

    private static long agentTime(ThreadMXBean threads) {
        long time = 0;
        for (long id : threads.getAllThreadIds()) {
            var info = threads.getThreadInfo(id);
            if (info != null && info.getThreadName().equals("elbowroom")) {
                time += threads.getThreadCpuTime(id);
            }
        }
        return time;
    }

    private static long collections() {
        long count = 0;
        for (GarbageCollectorMXBean collector : ManagementFactory.getGarbageCollectorMXBeans()) {
            count += collector.getCollectionCount();
        }
        return count;
    }
}
