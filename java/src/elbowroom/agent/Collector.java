// SPDX-License-Identifier: Apache-2.0 OR MIT
package elbowroom.agent;

import java.util.Collection;

/** The collectors of HotSpot, in the order of native/machine.h. */
enum Collector {
    SERIAL("Serial"),
    PARALLEL("ParallelGC"),
    G1("G1"),
    SHENANDOAH("Shenandoah"),
    Z("ZGC"),
    OTHER("another collector");

    final String title;

    Collector(String title) {
        this.title = title;
    }

    /** By the names of the machine's garbage collector beans. */
    static Collector of(Collection<String> beans) {
        for (String bean : beans) {
            if (bean.equals("Copy") || bean.equals("MarkSweepCompact")) {
                return SERIAL;
            } else if (bean.startsWith("PS ")) {
                return PARALLEL;
            } else if (bean.startsWith("G1 ")) {
                return G1;
            } else if (bean.startsWith("Shenandoah")) {
                return SHENANDOAH;
            } else if (bean.startsWith("ZGC")) {
                return Z;
            }
        }
        return OTHER;
    }

    /**
     * The fewest GC threads it may run, of several: see native/rule.h for why ParallelGC needs two. With
     * -XX:GCDrainStackTargetSize=0 it drains its stacks, and one is enough.
     */
    int leastThreads(long drainStackTarget) {
        return this == PARALLEL && drainStackTarget != 0 ? 2 : 1;
    }
}
