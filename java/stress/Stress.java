// SPDX-License-Identifier: Apache-2.0 OR MIT
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.lang.ref.WeakReference;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.atomic.AtomicLong;
import javax.management.MBeanServer;
import javax.management.ObjectName;

/**
 * Object graphs that know their own checksums, while what the machine sees changes every few milliseconds.
 *
 * <p>Arguments: seconds, the files with the CPU quota and the memory limit, most CPUs.
 * Ends with 0 when every graph was intact to the end, with 1 when one was not.
 */
public final class Stress {
    private static final int THREADS = 3;
    private static volatile boolean over;
    private static final AtomicLong checked = new AtomicLong();
    private static volatile String failure;

    /** A tree whose sum was taken when it was made. */
    private static final class Tree {
        final Tree left;
        final Tree right;
        final long[] payload;
        final long sum;

        Tree(Random random, int depth) {
            left = depth > 0 ? new Tree(random, depth - 1) : null;
            right = depth > 0 ? new Tree(random, depth - 1) : null;
            payload = random.longs(random.nextInt(24)).toArray();
            sum = now();
        }

        long now() {
            long sum = payload.length;
            for (long word : payload) {
                sum = sum * 31 + word;
            }
            return sum * 31 + (left == null ? 1 : left.sum) * 17 + (right == null ? 1 : right.sum);
        }

        boolean isIntact() {
            return sum == now() && (left == null || left.isIntact()) && (right == null || right.isIntact());
        }
    }

    private static void mutate(int seed) {
        Random random = new Random(seed);
        List<Tree> old = new ArrayList<>();
        ArrayDeque<WeakReference<Tree>> weak = new ArrayDeque<>();
        while (!over) {
            Tree tree = new Tree(random, 6 + random.nextInt(5));
            weak.add(new WeakReference<>(tree));
            if (weak.size() > 500) {
                weak.remove();
            }
            if (old.size() < 60) {
                old.add(tree);
            } else if (random.nextInt(4) == 0) {
                check(old.set(random.nextInt(old.size()), tree));
            }
            if (random.nextInt(200) == 0) {
                // An object too large for a young generation.
                check(tree);
                long[] large = new long[100_000 + random.nextInt(400_000)];
                large[large.length - 1] = 7;
            }
            Tree alive = weak.peek().get();
            if (alive != null && random.nextInt(8) == 0) {
                check(alive);
            }
        }
        old.forEach(Stress::check);
    }

    private static void check(Tree tree) {
        if (!tree.isIntact()) {
            failure = "a tree has another sum than it was made with";
            over = true;
        }
        checked.incrementAndGet();
    }

    /** In place and of one length: a bind mount shows the file, not the name. */
    private static void write(Path file, String text) throws IOException {
        Files.write(file, text.getBytes(StandardCharsets.US_ASCII), StandardOpenOption.WRITE);
    }

    private static void change(Path quota, Path limit, int cpus) {
        Random random = new Random(1);
        long most = 2 * Runtime.getRuntime().maxMemory();
        try {
            // cpu.max of cgroup v2 has the period too.
            String period = Files.readString(quota).trim().contains(" ") ? " 100000" : "";
            while (!over) {
                write(quota, String.format("%010d%s%n", 100_000 * (1 + random.nextInt(cpus)), period));
                write(limit, String.format("%015d%n", most / 16 + (long) (random.nextDouble() * most)));
                Thread.sleep(1 + random.nextInt(5));
                if (random.nextInt(400) == 0) {
                    System.gc();
                }
            }
        } catch (IOException | InterruptedException error) {
            failure = error.toString();
            over = true;
        }
    }

    public static void main(String[] arguments) throws Exception {
        long seconds = Long.parseLong(arguments[0]);
        int cpus = Integer.parseInt(arguments[3]);
        List<Thread> threads = new ArrayList<>();
        threads.add(new Thread(() -> change(Path.of(arguments[1]), Path.of(arguments[2]), cpus)));
        for (int i = 0; i < THREADS; i++) {
            int seed = i;
            threads.add(new Thread(() -> mutate(seed)));
        }
        for (Thread thread : threads) {
            thread.setUncaughtExceptionHandler((who, error) -> {
                failure = error.toString();
                over = true;
            });
            thread.start();
        }
        long end = System.nanoTime() + seconds * 1_000_000_000L;
        while (!over && System.nanoTime() < end) {
            Thread.sleep(20);
        }
        over = true;
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.println((failure == null ? "intact" : failure) + ": " + checked + " graphs checked; " + agent());
        System.exit(failure == null ? 0 : 1);
    }

    private static String agent() {
        try {
            MBeanServer server = ManagementFactory.getPlatformMBeanServer();
            ObjectName room = new ObjectName("elbowroom:type=Room");
            for (int i = 0; i < 600 && !server.isRegistered(room); i++) {
                Thread.sleep(100);
            }
            return server.getAttribute(room, "GcThreadDecisions") + " decisions, " + server.getAttribute(room, "GcThreadsCapped")
                    + " capped, " + server.getAttribute(room, "Collections") + " collections, "
                    + server.getAttribute(room, "Lifts") + " lifts; " + String.join(" ", (String[]) server.getAttribute(room, "Explanation"));
        } catch (Exception absent) {
            return "no agent: " + absent;
        }
    }
}
