// SPDX-License-Identifier: Apache-2.0 OR MIT
package elbowroom.agent;

import elbowroom.View;
import java.lang.instrument.Instrumentation;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** The agent's one thread. It is a guest: whatever goes wrong ends the thread and nothing else. */
public final class Agent implements Runnable {
    /** Failures in a row that are too many. */
    private static final int PATIENCE = 3;
    /** Lines on standard error are for people, and people read no more. */
    private static final int MOST_LINES = 40;
    /** No program waits longer for its heap to be bounded, in milliseconds. */
    private static final long LONGEST_START = 2_000;

    private static boolean started;

    private final Options options;
    private final Instrumentation instrumentation;
    private final CountDownLatch looked = new CountDownLatch(1);
    private int lines;

    private Agent(Options options, Instrumentation instrumentation) {
        this.options = options;
        this.instrumentation = instrumentation;
    }

    /** Once for a virtual machine, however often it is asked to. */
    public static synchronized void start(String text, Instrumentation instrumentation, boolean attached) {
        if (started) {
            return;
        }
        started = true;
        Agent agent = new Agent(Options.parse(text, attached), instrumentation);
        Thread thread = new Thread(null, agent, "elbowroom", 0, false);
        thread.setDaemon(true);
        thread.setContextClassLoader(null);
        thread.start();
        if (!attached && agent.options.heap && isTooLarge(Runtime.getRuntime().maxMemory(), new View(), agent.options.percent)) {
            agent.awaitFirstLook();
        }
    }

    /** A heap that does not fit must be bounded before the program fills it, which can take less than a second. */
    private static boolean isTooLarge(long maxHeap, View view, int percent) {
        int part = percent > 0 ? percent : HeapTarget.percent(maxHeap, view.memoryMost());
        return view.memory() > 0 && maxHeap > HeapTarget.part(view.memory(), part, maxHeap);
    }

    private void awaitFirstLook() {
        try {
            looked.await(LONGEST_START, TimeUnit.MILLISECONDS);
        } catch (InterruptedException early) {
            Thread.currentThread().interrupt();
        }
    }

    @Override
    public void run() {
        int failures = 0;
        Room room = null;
        try {
            room = new Room(options, instrumentation);
            long registerAt = System.nanoTime() + options.jmx * 1_000_000_000L;
            boolean registered = options.jmx < 0;
            List<String> said = List.of();
            while (failures < PATIENCE) {
                try {
                    room.look();
                    looked.countDown();
                    if (!registered && System.nanoTime() - registerAt >= 0) {
                        room.register();
                        registered = true;
                    }
                    said = options.log ? say(room.getExplanation(), said) : said;
                    failures = 0;
                } catch (OutOfMemoryError full) {
                    // The program's heap is full, which is no failure of ours. Nothing is made here: there is no room for it.
                } catch (RuntimeException | Error failure) {
                    failures++;
                    complain("a look failed: ", failure);
                }
                Thread.sleep(options.period);
            }
        } catch (Throwable any) {
            // Not even the class library of this machine is as expected.
            complain("nothing is governed: ", any);
        } finally {
            looked.countDown();
            // No thread will look again: what was bound must not stay so.
            if (room != null) {
                room.release();
            }
        }
    }

    private void complain(String what, Throwable why) {
        try {
            say(List.of(what + why), List.of());
        } catch (Throwable unsaid) {
            // There is no room for words, or the program's own stream refuses them.
        }
    }

    private List<String> say(List<String> now, List<String> before) {
        for (String line : now) {
            if (options.log && !before.contains(line) && lines < MOST_LINES) {
                lines++;
                System.err.println("elbowroom: " + line);
            }
        }
        return now;
    }
}
