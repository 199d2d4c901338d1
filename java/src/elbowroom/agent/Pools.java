// SPDX-License-Identifier: Apache-2.0 OR MIT
package elbowroom.agent;

import java.lang.instrument.Instrumentation;
import java.lang.management.ManagementFactory;
import java.lang.management.PlatformManagedObject;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.concurrent.ForkJoinPool;
import java.util.function.IntSupplier;

/**
 * The parallelism of the common pool and of the scheduler of virtual threads, by their own interfaces.
 *
 * <p>Neither is touched before effective CPU first changes, because to look at a pool is to make it. A pool is left alone where a
 * property of the program sets its parallelism, or where its parallelism is neither HotSpot's nor ours: the program has set it.
 */
final class Pools {
    private static final String COMMON = "java.util.concurrent.ForkJoinPool.common.parallelism";
    private static final String SCHEDULER = "jdk.virtualThreadScheduler.parallelism";

    /** How parallel a pool is; not to be known, or not to be changed, in some machines. */
    interface Width {
        /** 0 where there is no such pool. */
        int get() throws ReflectiveOperationException;

        void set(int parallelism) throws ReflectiveOperationException;

        /** As HotSpot would make it at this moment: the first look at a pool may be what makes it. */
        int made();
    }

    /** A pool that its program may change too. */
    static final class Pool {
        private final Width width;
        /** As HotSpot made it, and what we wrote last; 0 is never. */
        private int before;
        private int written;
        private boolean isTheirs;
        private String says = "untouched";

        Pool(Width width) {
            this.width = width;
        }

        @Override
        public String toString() {
            return says;
        }

        /** HotSpot makes it `made` wide for as many CPUs as there were, and `parallelism` for those that there are. */
        void follow(int made, int parallelism) {
            try {
                int found = width.get();
                isTheirs |= written > 0 ? found != written : found != made && found != parallelism && found != width.made();
                if (found == 0) {
                    says = "absent";
                } else if (isTheirs) {
                    says = "settled by the program";
                } else {
                    width.set(parallelism);
                    before = before > 0 ? before : found;
                    written = parallelism;
                    says = Integer.toString(parallelism);
                }
            } catch (NoSuchMethodException older) {
                says = "fixed: JDK 19 and later can change it";
            } catch (ReflectiveOperationException | RuntimeException refused) {
                says = "fixed: " + refused.getMessage();
            }
        }

        void release() throws ReflectiveOperationException {
            if (before > 0 && width.get() == written) {
                width.set(before);
            }
        }
    }

    private final Pool common;
    private final Pool scheduler;
    private int last;

    Pools(Instrumentation instrumentation, int cpusAtStart) {
        common = new Pool(new ForkJoin(ForkJoinPool::commonPool, () -> commonFor(availableProcessors())));
        scheduler = new Pool(scheduler(instrumentation));
        last = cpusAtStart;
    }

    /** For people: what became of each. */
    String common() {
        return System.getProperty(COMMON) != null ? "settled by " + COMMON : common.toString();
    }

    String scheduler() {
        return System.getProperty(SCHEDULER) != null ? "settled by " + SCHEDULER : scheduler.toString();
    }

    void follow(int cpus) {
        if (cpus == last) {
            return;
        }
        if (System.getProperty(COMMON) == null) {
            common.follow(commonFor(last), commonFor(cpus));
        }
        if (System.getProperty(SCHEDULER) == null) {
            scheduler.follow(last, cpus);
        }
        last = cpus;
    }

    /** The thread that waits for a parallel stream helps: the pool is made with one fewer than there are CPUs. */
    private static int commonFor(int cpus) {
        return Math.max(1, cpus - 1);
    }

    /** As parallel as each was before, where the program has not changed it since. */
    void release() throws ReflectiveOperationException {
        try {
            common.release();
        } finally {
            scheduler.release();
        }
    }

    private static Width scheduler(Instrumentation instrumentation) {
        int version = Runtime.version().feature();
        if (version >= 24) {
            return new SchedulerBean();
        }
        return version >= 21 ? new ForkJoin(() -> schedulerField(instrumentation), Pools::availableProcessors) : new Absent();
    }

    private static int availableProcessors() {
        return Runtime.getRuntime().availableProcessors();
    }

    /** JDK 21 to 23 have a scheduler and no interface to it; agents may open a module for themselves. */
    private static ForkJoinPool schedulerField(Instrumentation instrumentation) throws ReflectiveOperationException {
        Modules.openJavaLang(instrumentation);
        Field field = Class.forName("java.lang.VirtualThread").getDeclaredField("DEFAULT_SCHEDULER");
        field.setAccessible(true);
        return (ForkJoinPool) field.get(null);
    }

    /** Where there are no virtual threads. */
    private static final class Absent implements Width {
        @Override
        public int get() {
            return 0;
        }

        @Override
        public void set(int parallelism) {}

        @Override
        public int made() {
            return 0;
        }
    }

    /** ForkJoinPool.setParallelism came with JDK 19. */
    private static final class ForkJoin implements Width {
        /** Asked each time: to have the pool is to make it. */
        interface Source {
            ForkJoinPool pool() throws ReflectiveOperationException;
        }

        private final Source source;
        private final IntSupplier made;

        ForkJoin(Source source, IntSupplier made) {
            this.source = source;
            this.made = made;
        }

        /** Where it cannot be changed it is not touched. */
        @Override
        public int get() throws ReflectiveOperationException {
            setter();
            return source.pool().getParallelism();
        }

        @Override
        public void set(int parallelism) throws ReflectiveOperationException {
            setter().invoke(source.pool(), parallelism);
        }

        @Override
        public int made() {
            return made.getAsInt();
        }

        private static Method setter() throws NoSuchMethodException {
            return ForkJoinPool.class.getMethod("setParallelism", int.class);
        }
    }

    /** The scheduler's own interface, since JDK 24. */
    private static final class SchedulerBean implements Width {
        @Override
        public int get() throws ReflectiveOperationException {
            return (int) type().getMethod("getParallelism").invoke(bean());
        }

        @Override
        public void set(int parallelism) throws ReflectiveOperationException {
            type().getMethod("setParallelism", int.class).invoke(bean(), parallelism);
        }

        @Override
        public int made() {
            return availableProcessors();
        }

        private static Class<? extends PlatformManagedObject> type() throws ReflectiveOperationException {
            return Class.forName("jdk.management.VirtualThreadSchedulerMXBean").asSubclass(PlatformManagedObject.class);
        }

        private static PlatformManagedObject bean() throws ReflectiveOperationException {
            return ManagementFactory.getPlatformMXBean(type());
        }
    }
}
