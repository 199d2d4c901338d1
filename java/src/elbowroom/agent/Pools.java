// SPDX-License-Identifier: Apache-2.0 OR MIT
package elbowroom.agent;

import java.lang.instrument.Instrumentation;
import java.lang.management.ManagementFactory;
import java.lang.management.PlatformManagedObject;
import java.lang.reflect.Field;
import java.util.concurrent.ForkJoinPool;

/**
 * The parallelism of the common pool and of the scheduler of virtual threads, by their own interfaces.
 *
 * <p>Neither is touched before effective CPU is first another than it was, because to look at a pool is to make it; nor at all
 * where a property of the program says how parallel it is to be.
 */
final class Pools {
    private static final String COMMON = "java.util.concurrent.ForkJoinPool.common.parallelism";
    private static final String SCHEDULER = "jdk.virtualThreadScheduler.parallelism";

    private final Instrumentation instrumentation;
    private int last;
    private String common = "untouched";
    private String scheduler = "untouched";

    Pools(Instrumentation instrumentation, int cpusAtStart) {
        this.instrumentation = instrumentation;
        last = cpusAtStart;
    }

    /** For people: what became of each. */
    String common() {
        return common;
    }

    String scheduler() {
        return scheduler;
    }

    void follow(int cpus) {
        if (cpus == last) {
            return;
        }
        last = cpus;
        // The thread that waits for a parallel stream helps: the pool is made with one fewer than there are CPUs.
        common = System.getProperty(COMMON) != null ? "settled by " + COMMON : common(Math.max(1, cpus - 1));
        scheduler = System.getProperty(SCHEDULER) != null ? "settled by " + SCHEDULER : scheduler(cpus);
    }

    /** ForkJoinPool.setParallelism came with JDK 19. */
    private static String common(int parallelism) {
        try {
            setParallelism(ForkJoinPool.commonPool(), parallelism);
            return Integer.toString(parallelism);
        } catch (NoSuchMethodException older) {
            return "fixed: JDK 19 and later can change it";
        } catch (ReflectiveOperationException | RuntimeException refused) {
            return "fixed: " + refused.getMessage();
        }
    }

    private static void setParallelism(Object pool, int parallelism) throws ReflectiveOperationException {
        ForkJoinPool.class.getMethod("setParallelism", int.class).invoke(pool, parallelism);
    }

    private String scheduler(int parallelism) {
        int version = Runtime.version().feature();
        try {
            if (version >= 24) {
                setByBean(parallelism);
            } else if (version >= 21) {
                setByField(parallelism);
            } else {
                return "absent";
            }
            return Integer.toString(parallelism);
        } catch (ReflectiveOperationException | RuntimeException refused) {
            return "fixed: " + refused.getMessage();
        }
    }

    private static void setByBean(int parallelism) throws ReflectiveOperationException {
        Class<? extends PlatformManagedObject> type =
                Class.forName("jdk.management.VirtualThreadSchedulerMXBean").asSubclass(PlatformManagedObject.class);
        type.getMethod("setParallelism", int.class).invoke(ManagementFactory.getPlatformMXBean(type), parallelism);
    }

    /** JDK 21 to 23 have a scheduler and no interface to it; agents may open a module for themselves. */
    private void setByField(int parallelism) throws ReflectiveOperationException {
        Modules.openJavaLang(instrumentation);
        Field field = Class.forName("java.lang.VirtualThread").getDeclaredField("DEFAULT_SCHEDULER");
        field.setAccessible(true);
        setParallelism(field.get(null), parallelism);
    }
}
