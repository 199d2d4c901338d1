/* SPDX-License-Identifier: Apache-2.0 OR MIT */

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;

/**
 * The application of the lab's job `pitfalls`: a thread, or two, that does the same piece of work over and over, and counts.
 *
 * <pre>Application WORK RATE HELD_MIB GROW_MIB GROW_FROM_MS GROW_UNTIL_MS SAMPLE_MS END_MS [FILE]</pre>
 *
 * WORK is `allocate` (an object that dies at once), `fill` (two threads, each with an array for half of HELD_MIB of objects, which it
 * empties when it is full), `touch` (one of the objects that it holds, all of its pages) or `read` (a
 * block of FILE at a random place); RATE is how often a second at most, 0 for as often as it can. It makes the objects it
 * holds and reads all of FILE, prints "ready", and takes its start (CLOCK_MONOTONIC, nanoseconds, which is what nanoTime
 * is on Linux) from its standard input. Meanwhile another thread may make more objects to hold. At the end it prints one
 * line per sample: milliseconds after the start, pieces done so far.
 */
public final class Application {
    private static final int PIECE = 64 << 10;
    private static final int PAGE = 4096;
    private static final int WARM = 256;
    private static final List<byte[]> held = new ArrayList<>();
    private static volatile Object newest;
    private static final AtomicLong done = new AtomicLong();
    private static volatile boolean over;

    private interface Work {
        void once() throws IOException;
    }

    public static void main(String[] args) throws Exception {
        long rate = Long.parseLong(args[1]);
        boolean fills = args[0].equals("fill");
        int heldMib = Integer.parseInt(args[2]);
        hold(fills ? 0 : heldMib);
        int growMib = Integer.parseInt(args[3]);
        long growFrom = Long.parseLong(args[4]), growUntil = Long.parseLong(args[5]);
        int sampleMs = Integer.parseInt(args[6]), samples = Integer.parseInt(args[7]) / sampleMs;
        Work work = fills ? filling(heldMib / 2) : work(args[0], args.length > 8 ? Path.of(args[8]) : null);
        Work secondWork = fills ? filling(heldMib / 2) : null;
        long[] at = new long[samples + 1], count = new long[samples + 1];

        System.out.println("ready");
        long start = Long.parseLong(new String(System.in.readNBytes(20)).trim());
        Thread worker = new Thread(() -> repeat(work, rate, start));
        Thread second = new Thread(() -> repeat(secondWork, 0, start));
        Thread grower = new Thread(() -> grow(growMib, start + growFrom * 1_000_000, start + growUntil * 1_000_000));
        worker.start();
        grower.start();
        if (fills) {
            second.start();
        }
        for (int i = 0; i <= samples; i++) {
            sleepUntil(start + (long) i * sampleMs * 1_000_000);
            at[i] = (System.nanoTime() - start) / 1_000_000;
            count[i] = done.get();
        }
        over = true;
        worker.join();
        grower.join();
        second.join();
        StringBuilder lines = new StringBuilder();
        for (int i = 0; i <= samples; i++) {
            lines.append(at[i]).append(' ').append(count[i]).append('\n');
        }
        System.out.print(lines);
    }

    private static Work work(String name, Path path) throws IOException {
        SplittableRandom random = new SplittableRandom(1);
        switch (name) {
            case "allocate":
                Work allocate = () -> newest = new byte[PIECE];
                for (int i = 0; i < WARM; i++) { // compiled, and almost nothing of the heap touched
                    allocate.once();
                }
                return allocate;
            case "touch":
                return () -> touch(held.get(random.nextInt(held.size())));
            case "read":
                FileChannel file = FileChannel.open(path, StandardOpenOption.READ);
                ByteBuffer block = ByteBuffer.allocateDirect(PIECE);
                long blocks = file.size() / PIECE;
                for (long i = 0; i < 2 * blocks; i++) { // a page is taken for one that is in use when it is read again
                    file.read(block.clear(), i % blocks * PIECE);
                }
                return () -> file.read(block.clear(), random.nextLong(blocks) * PIECE);
            default:
                throw new IllegalArgumentException(name);
        }
    }

    private static Work filling(int mib) {
        byte[][] array = new byte[Math.max(1, mib * ((1 << 20) / PIECE))][];
        int[] next = {0};
        return () -> {
            if (next[0] == array.length) {
                Arrays.fill(array, null);
                next[0] = 0;
            }
            array[next[0]++] = new byte[PIECE];
        };
    }

    private static void repeat(Work work, long rate, long start) {
        long pause = rate == 0 ? 0 : 1_000_000_000 / rate, next = start;
        sleepUntil(start);
        try {
            while (!over) {
                work.once();
                done.incrementAndGet();
                if (pause > 0) { // what it was late with is lost, not made up for
                    next = Math.max(next + pause, System.nanoTime());
                    sleepUntil(next);
                }
            }
        } catch (IOException e) {
            e.printStackTrace();
            System.exit(1);
        }
    }

    private static void grow(int mib, long from, long until) {
        for (int i = 0; i < mib && !over; i++) {
            sleepUntil(from + (until - from) * i / mib);
            hold(1);
        }
    }

    private static void hold(int mib) {
        for (int i = 0; i < mib * ((1 << 20) / PIECE); i++) {
            held.add(new byte[PIECE]); // with `touch`, nothing grows, so no other thread looks
        }
    }

    private static void touch(byte[] object) {
        for (int i = 0; i < object.length; i += PAGE) {
            object[i]++;
        }
    }

    private static void sleepUntil(long ns) {
        for (long left = ns - System.nanoTime(); left > 0; left = ns - System.nanoTime()) {
            LockSupport.parkNanos(left);
        }
    }
}
