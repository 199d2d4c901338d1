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
    /** What each was when it was first touched; 0 is never. */
    private int commonBefore;
    private int schedulerBefore;
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
        // The thread that waits for a parallel stream helps: the pool is made with one fewer than there are CPUs.
        common = System.getProperty(COMMON) != null ? "settled by " + COMMON : common(Math.max(1, cpus - 1));
        scheduler = System.getProperty(SCHEDULER) != null ? "settled by " + SCHEDULER : scheduler(cpus);
        last = cpus;
    }

    /** As parallel as each was before. */
    void release() throws ReflectiveOperationException {
        try {
            if (commonBefore > 0) {
                set(ForkJoinPool.commonPool(), commonBefore);
            }
        } finally {
            if (schedulerBefore > 0) {
                setScheduler(schedulerBefore);
            }
        }
    }

    /** ForkJoinPool.setParallelism came with JDK 19. */
    private String common(int parallelism) {
        try {
            int before = set(ForkJoinPool.commonPool(), parallelism);
            commonBefore = commonBefore > 0 ? commonBefore : before;
            return Integer.toString(parallelism);
        } catch (NoSuchMethodException older) {
            return "fixed: JDK 19 and later can change it";
        } catch (ReflectiveOperationException | RuntimeException refused) {
            return "fixed: " + refused.getMessage();
        }
    }

    /** Returns what it was. */
    private static int set(ForkJoinPool pool, int parallelism) throws ReflectiveOperationException {
        int before = pool.getParallelism();
        ForkJoinPool.class.getMethod("setParallelism", int.class).invoke(pool, parallelism);
        return before;
    }

    private String scheduler(int parallelism) {
        try {
            int before = setScheduler(parallelism);
            schedulerBefore = schedulerBefore > 0 ? schedulerBefore : before;
            return before > 0 ? Integer.toString(parallelism) : "absent";
        } catch (ReflectiveOperationException | RuntimeException refused) {
            return "fixed: " + refused.getMessage();
        }
    }

    /** Returns what it was; 0 where there is no scheduler. */
    private int setScheduler(int parallelism) throws ReflectiveOperationException {
        int version = Runtime.version().feature();
        if (version >= 24) {
            return setByBean(parallelism);
        }
        return version >= 21 ? setByField(parallelism) : 0;
    }

    private static int setByBean(int parallelism) throws ReflectiveOperationException {
        Class<? extends PlatformManagedObject> type =
                Class.forName("jdk.management.VirtualThreadSchedulerMXBean").asSubclass(PlatformManagedObject.class);
        PlatformManagedObject bean = ManagementFactory.getPlatformMXBean(type);
        int before = (int) type.getMethod("getParallelism").invoke(bean);
        type.getMethod("setParallelism", int.class).invoke(bean, parallelism);
        return before;
    }

    /** JDK 21 to 23 have a scheduler and no interface to it; agents may open a module for themselves. */
    private int setByField(int parallelism) throws ReflectiveOperationException {
        Modules.openJavaLang(instrumentation);
        Field field = Class.forName("java.lang.VirtualThread").getDeclaredField("DEFAULT_SCHEDULER");
        field.setAccessible(true);
        return set((ForkJoinPool) field.get(null), parallelism);
    }
}
