// SPDX-License-Identifier: Apache-2.0 OR MIT
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.lang.ref.WeakReference;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
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
 * <p>Arguments: seconds, the files with the CPU quota and the memory limit, most CPUs, and the view page, where there is one. Begins when
 * the agent is ready, which changes G1's marking only before the first collection. Now and then more lives than the heap may have, so
 * that bounds are lifted. Not where the agent has no bound: JDK 11's ZGC runs out of memory of that by itself. Ends with 0 when every
 * graph was intact to the end, with 1 when one was not.
 */
public final class Stress {
    private static final int THREADS = 3;
    /** Small enough to be no object of G1's that has regions of its own, which its bound does not count. */
    private static final int PART = 64 << 10;
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

    /** The view page, as shim/view.h has it. */
    private static final class Page {
        private final ByteBuffer bytes;

        Page(Path path) throws IOException {
            try (FileChannel file = FileChannel.open(path, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
                bytes = file.map(FileChannel.MapMode.READ_WRITE, 0, 4096).order(ByteOrder.nativeOrder());
            }
        }

        void show(int cpus, long memory, long most, long used) {
            int generation = bytes.getInt(16) + 1;
            int at = 64 + 256 * (generation & 1);
            bytes.putInt(at, cpus).putLong(at + 16, memory).putLong(at + 24, most).putLong(at + 32, used);
            bytes.putInt(16, generation).putInt(20, generation);
        }
    }

    /** More than the bound lives, all at once, while nothing else changes: in one piece, which finds no room at all, or in many. */
    private static void squeeze(Random random, boolean inOne) throws InterruptedException {
        Runtime runtime = Runtime.getRuntime();
        // The bound is there, and what is committed beyond it mostly is not.
        for (int i = 0; i < 20 && (i < 3 || runtime.totalMemory() > runtime.maxMemory() / 3); i++) {
            Thread.sleep(50);
        }
        int part = inOne ? (int) (runtime.maxMemory() / 3) : PART;
        long[][] held = new long[inOne ? 1 : (int) (runtime.maxMemory() / 2 / part)][];
        long seed = random.nextLong();
        for (int i = 0; i < held.length; i++) {
            held[i] = new long[part / Long.BYTES];
            for (int word = 0; word < held[i].length; word += 512) {
                held[i][word] = seed + i + word;
            }
        }
        Thread.sleep(10);
        for (int i = 0; i < held.length; i++) {
            for (int word = 0; word < held[i].length; word += 512) {
                if (held[i][word] != seed + i + word) {
                    failure = "an array has another word than was written";
                    over = true;
                }
            }
        }
    }

    private static void change(Path quota, Path limit, int cpus, Page page, boolean bounded) {
        Random random = new Random(1);
        Runtime runtime = Runtime.getRuntime();
        long most = 2 * runtime.maxMemory();
        try {
            // cpu.max of cgroup v2 has the period too.
            String period = Files.readString(quota).trim().contains(" ") ? " 100000" : "";
            for (int n = 0; !over; n++) {
                int now = 1 + random.nextInt(cpus);
                boolean tight = bounded && n % 500 == 0;
                long memory = most / 16 + (tight ? 0 : (long) (random.nextDouble() * most));
                write(quota, String.format("%010d%s%n", 100_000 * now, period));
                write(limit, String.format("%015d%n", memory));
                if (page != null) {
                    page.show(now, memory, most + most / 16, runtime.totalMemory() + random.nextInt(50 << 20));
                }
                if (tight) {
                    squeeze(random, n % 1000 == 500);
                }
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
        Page page = arguments.length > 4 ? new Page(Path.of(arguments[4])) : null;
        boolean bounded = hasBound(awaitAgent(10));
        List<Thread> threads = new ArrayList<>();
        threads.add(new Thread(() -> change(Path.of(arguments[1]), Path.of(arguments[2]), cpus, page, bounded)));
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

    /** Looks for the agent's bean for at most `seconds`. */
    private static ObjectName awaitAgent(int seconds) throws Exception {
        ObjectName room = new ObjectName("elbowroom:type=Room");
        for (int i = 0; i < 100 * seconds && !ManagementFactory.getPlatformMBeanServer().isRegistered(room); i++) {
            Thread.sleep(10);
        }
        return room;
    }

    private static boolean hasBound(ObjectName room) throws Exception {
        MBeanServer server = ManagementFactory.getPlatformMBeanServer();
        return server.isRegistered(room) && !"none".equals(server.getAttribute(room, "HeapKnob"));
    }

    private static String agent() {
        try {
            MBeanServer server = ManagementFactory.getPlatformMBeanServer();
            ObjectName room = awaitAgent(60);
            return server.getAttribute(room, "GcThreadDecisions") + " decisions, " + server.getAttribute(room, "GcThreadsCapped")
                    + " capped, " + server.getAttribute(room, "Collections") + " collections, "
                    + server.getAttribute(room, "Lifts") + " lifts; " + String.join(" ", (String[]) server.getAttribute(room, "Explanation"));
        } catch (Exception absent) {
            return "no agent: " + absent;
        }
    }
}
