/* SPDX-License-Identifier: Apache-2.0 OR MIT */

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.StringReader;
import java.io.StringWriter;
import java.lang.management.ManagementFactory;
import java.lang.management.MemoryUsage;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import javax.management.JMException;
import javax.management.MBeanServer;
import javax.management.ObjectName;
import javax.xml.transform.Templates;
import javax.xml.transform.TransformerFactory;
import javax.xml.transform.stream.StreamResult;
import javax.xml.transform.stream.StreamSource;

/**
 * Programs of the lab's job `runtimes` that need nothing but the class library, and how all its programs are measured.
 *
 * <pre>Runtimes trees THREADS WARM AMOUNT LIVE_MIB   a part: eight trees of 4095 nodes, of which one replaces another that lived
 *Runtimes graph THREADS WARM AMOUNT LIVE_MIB   a part: a tree of garbage beside a graph that lives, every node of it to be marked
 *Runtimes xslt THREADS WARM AMOUNT            a part: a document through a style sheet of the class library's own XSLT
 *Runtimes grow LIVE_MIB PER_S HOLD_MS         1 MiB more and half of it less, again and again, then held</pre>
 *
 * A program does WARM parts of its work, says "ready", reads a moment of CLOCK_MONOTONIC in nanoseconds (which is what nanoTime is on
 * Linux), waits for it, says "start" and the virtual machine's age in milliseconds, does AMOUNT parts and says "done" and how many
 * milliseconds they took. A part is the same work whatever the number of threads. `grow` says "at MILLISECONDS USED COMMITTED VIRTUAL_MAX"
 * too, in MiB, five times a second; VIRTUAL_MAX is 0 where nothing bounds the heap.
 */
public final class Runtimes {
    private static final int SAMPLE_MS = 200;
    /** Levels of a tree, and about how many bytes it has. */
    private static final int DEPTH = 12;
    private static final int TREE_BYTES = 24 * (1 << DEPTH);
    private static final int CHUNK = 64 << 10;

    private static final class Node {
        Node left;
        Node right;
        int value;
    }

    /** What a program does again and again. */
    interface Work {
        /** Part `n`, by thread `thread`. */
        void part(int n, int thread) throws Exception;
    }

    private static volatile Throwable failure;
    static volatile long seen;

    public static void main(String[] args) throws Exception {
        if (args[0].equals("grow")) {
            grow(begin(), Integer.parseInt(args[1]), Integer.parseInt(args[2]), Integer.parseInt(args[3]));
            return;
        }
        int threads = Integer.parseInt(args[1]);
        measure(threads, Integer.parseInt(args[2]), Integer.parseInt(args[3]), work(args, threads));
    }

    private static Work work(String[] args, int threads) throws Exception {
        switch (args[0]) {
            case "trees":
                return trees(Integer.parseInt(args[4]));
            case "graph":
                return graph(threads, Integer.parseInt(args[4]));
            case "xslt":
                return xslt();
            default:
                throw new IllegalArgumentException(args[0]);
        }
    }

    /** A warm-up, the moment to begin, the work, and how long it took. */
    static void measure(int threads, int warm, int amount, Work work) throws Exception {
        parallel(threads, warm, work);
        long start = begin();
        parallel(threads, amount, work);
        if (failure != null) {
            failure.printStackTrace();
            System.exit(1);
        }
        done(start);
    }

    private static long begin() throws IOException {
        System.out.println("ready");
        long start = Long.parseLong(new BufferedReader(new InputStreamReader(System.in)).readLine().trim());
        sleepUntil(start);
        System.out.println("start " + ManagementFactory.getRuntimeMXBean().getUptime());
        return start;
    }

    private static void done(long start) {
        System.out.println("done " + (System.nanoTime() - start) / 1_000_000);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    /** Threads take the next part that no other has. */
    private static void parallel(int threads, int amount, Work work) throws InterruptedException {
        AtomicInteger next = new AtomicInteger();
        List<Thread> all = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            int number = i;
            Thread thread = new Thread(() -> {
                try {
                    for (int n = next.getAndIncrement(); n < amount && failure == null; n = next.getAndIncrement()) {
                        work.part(n, number);
                    }
                } catch (Throwable thrown) {
                    failure = thrown;
                }
            });
            thread.start();
            all.add(thread);
        }
        for (Thread thread : all) {
            thread.join();
        }
    }

    private static Work trees(int liveMib) {
        Node[] live = new Node[(int) Math.max(1, ((long) liveMib << 20) / TREE_BYTES)];
        for (int i = 0; i < live.length; i++) {
            live[i] = tree(DEPTH);
        }
        return (n, thread) -> {
            for (int i = 0; i < 7; i++) {
                seen += tree(DEPTH).value;
            }
            live[Math.floorMod(n * 7919, live.length)] = tree(DEPTH);
        };
    }

    private static Node tree(int depth) {
        Node node = new Node();
        node.value = depth;
        if (depth > 1) {
            node.left = tree(depth - 1);
            node.right = tree(depth - 1);
        }
        return node;
    }

    /** Nodes that each know two others at random. */
    private static Node[] nodes(int mib) {
        SplittableRandom random = new SplittableRandom(7);
        Node[] nodes = new Node[(int) (((long) mib << 20) / 28)]; // a node, and where the array has it
        for (int i = 0; i < nodes.length; i++) {
            nodes[i] = new Node();
        }
        for (Node node : nodes) {
            node.left = nodes[random.nextInt(nodes.length)];
            node.right = nodes[random.nextInt(nodes.length)];
        }
        return nodes;
    }

    /** A write to an old object for each of sixteen nodes, and as much garbage. */
    private static Work graph(int threads, int liveMib) {
        Node[] graph = nodes(liveMib);
        SplittableRandom[] randoms = new SplittableRandom[threads];
        for (int i = 0; i < threads; i++) {
            randoms[i] = new SplittableRandom(i);
        }
        return (n, thread) -> {
            Node made = tree(DEPTH);
            for (int i = 0; i < 16; i++) {
                Node node = graph[randoms[thread].nextInt(graph.length)];
                node.value += made.value;
                node.left = graph[randoms[thread].nextInt(graph.length)];
            }
        };
    }

    private static final String SHEET = "<xsl:stylesheet version='1.0' xmlns:xsl='http://www.w3.org/1999/XSL/Transform'>"
            + "<xsl:template match='/'><table><xsl:for-each select='shelf/book'><xsl:sort select='title'/>"
            + "<tr><td><xsl:value-of select='title'/></td><td><xsl:value-of select='count(../book[price &lt; current()/price])'/></td></tr>"
            + "</xsl:for-each></table></xsl:template></xsl:stylesheet>";

    private static String document(int books) {
        SplittableRandom random = new SplittableRandom(3);
        StringBuilder text = new StringBuilder("<shelf>");
        for (int i = 0; i < books; i++) {
            text.append("<book><title>").append(Long.toString(random.nextLong() >>> 1, 36)).append("</title><price>");
            text.append(random.nextInt(100)).append("</price></book>");
        }
        return text.append("</shelf>").toString();
    }

    private static Work xslt() throws Exception {
        Templates sheet = TransformerFactory.newInstance().newTemplates(new StreamSource(new StringReader(SHEET)));
        String document = document(400);
        return (n, thread) -> {
            StringWriter out = new StringWriter();
            sheet.newTransformer().transform(new StreamSource(new StringReader(document)), new StreamResult(out));
            if (out.getBuffer().length() < document.length() / 2) {
                throw new IllegalStateException("a document lost its books");
            }
        };
    }

    /** The paper's micro-benchmark: what lives grows by half of what is allocated. */
    private static void grow(long start, int liveMib, int perSecond, int holdMs) throws InterruptedException {
        ArrayDeque<byte[]> held = new ArrayDeque<>();
        int chunks = (1 << 20) / CHUNK, most = liveMib * chunks;
        long next = start, sample = start, end = Long.MAX_VALUE;
        while (next < end) {
            for (int i = 0; i < chunks; i++) {
                held.add(new byte[CHUNK]);
            }
            for (int i = 0; i < chunks / 2 || held.size() > most; i++) {
                held.remove();
            }
            if (held.size() >= most && end == Long.MAX_VALUE) {
                end = System.nanoTime() + holdMs * 1_000_000L;
            }
            if (System.nanoTime() >= sample) {
                say(System.nanoTime() - start);
                sample += SAMPLE_MS * 1_000_000L;
            }
            next = Math.max(next + 1_000_000_000L / perSecond, System.nanoTime());
            sleepUntil(next);
        }
        done(start);
    }

    private static void say(long sinceNs) {
        MemoryUsage heap = ManagementFactory.getMemoryMXBean().getHeapMemoryUsage();
        System.out.println("at " + sinceNs / 1_000_000 + " " + (heap.getUsed() >> 20) + " " + (heap.getCommitted() >> 20) + " "
                + (virtualMax() >> 20));
    }

    private static long virtualMax() {
        try {
            MBeanServer server = ManagementFactory.getPlatformMBeanServer();
            ObjectName room = new ObjectName("elbowroom:type=Room");
            return server.isRegistered(room) ? (Long) server.getAttribute(room, "VirtualMax") : 0;
        } catch (JMException absent) {
            return 0;
        }
    }

    private static void sleepUntil(long at) {
        for (long left = at - System.nanoTime(); left > 0; left = at - System.nanoTime()) {
            LockSupport.parkNanos(left);
        }
    }
}
