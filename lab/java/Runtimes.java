/* SPDX-License-Identifier: Apache-2.0 OR MIT */

import java.io.StringReader;
import java.io.StringWriter;
import java.lang.management.ManagementFactory;
import java.lang.management.MemoryUsage;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.concurrent.locks.LockSupport;
import javax.management.JMException;
import javax.management.MBeanServer;
import javax.management.ObjectName;
import javax.xml.transform.Templates;
import javax.xml.transform.TransformerFactory;
import javax.xml.transform.stream.StreamResult;
import javax.xml.transform.stream.StreamSource;

/**
 * Programs of the lab's job `runtimes`.
 *
 * <pre>Runtimes START_NS trees THREADS LIVE_MIB GARBAGE_MIB   trees that live for a while, and seven times as many that die
 *Runtimes START_NS graph THREADS LIVE_MIB GARBAGE_MIB   garbage beside a graph that lives, every node of it to be marked
 *Runtimes START_NS xslt THREADS DOCUMENTS 0             documents through a style sheet of the class library's own XSLT
 *Runtimes START_NS h2 THREADS TRANSACTIONS ACCOUNTS     transfers between accounts in an H2 database in memory, from the class path
 *Runtimes START_NS grow LIVE_MIB PER_S HOLD_MS          1 MiB more and half of it less, again and again, then held</pre>
 *
 * START_NS is of CLOCK_MONOTONIC, which is what nanoTime is on Linux; with 0 it starts at once. The last line that it prints is
 * "done MILLISECONDS". `grow` prints "at MILLISECONDS USED COMMITTED VIRTUAL_MAX" before, in MiB, five times a second; VIRTUAL_MAX is
 * 0 where nothing bounds the heap.
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

    private interface Work {
        void run(int thread) throws Exception;
    }

    private static volatile Throwable failure;
    private static volatile long seen;

    public static void main(String[] args) throws Exception {
        long start = Long.parseLong(args[0]);
        int[] numbers = new int[args.length - 2];
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] = Integer.parseInt(args[i + 2]);
        }
        start = start == 0 ? System.nanoTime() : start;
        sleepUntil(start);
        switch (args[1]) {
            case "trees":
                parallel(numbers[0], thread -> trees(thread, numbers[1] / numbers[0], numbers[2] / numbers[0]));
                break;
            case "graph":
                Node[] graph = graph(numbers[1]);
                parallel(numbers[0], thread -> disturb(graph, thread, numbers[2] / numbers[0]));
                break;
            case "xslt":
                Templates sheet = TransformerFactory.newInstance().newTemplates(new StreamSource(new StringReader(SHEET)));
                String document = document(400);
                parallel(numbers[0], thread -> transform(sheet, document, numbers[1] / numbers[0]));
                break;
            case "h2":
                open(numbers[2]);
                parallel(numbers[0], thread -> transfer(thread, numbers[1] / numbers[0], numbers[2]));
                break;
            case "grow":
                grow(start, numbers[0], numbers[1], numbers[2]);
                break;
            default:
                throw new IllegalArgumentException(args[1]);
        }
        if (failure != null) {
            System.err.println(failure);
            System.exit(1);
        }
        System.out.println("done " + (System.nanoTime() - start) / 1_000_000);
    }

    private static void parallel(int threads, Work work) throws InterruptedException {
        List<Thread> all = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            int number = i;
            Thread thread = new Thread(() -> {
                try {
                    work.run(number);
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

    /** Of eight trees one replaces another that lived; the others die at once. */
    private static void trees(int seed, int liveMib, int garbageMib) {
        SplittableRandom random = new SplittableRandom(seed);
        Node[] live = new Node[(int) Math.max(1, ((long) liveMib << 20) / TREE_BYTES)];
        for (int i = 0; i < live.length; i++) {
            live[i] = tree(DEPTH);
        }
        for (long left = ((long) garbageMib << 20) / TREE_BYTES; left > 0; left--) {
            Node made = tree(DEPTH);
            if (left % 8 == 0) {
                live[random.nextInt(live.length)] = made;
            }
        }
        if (count(live[0]) != (1 << DEPTH) - 1) {
            throw new IllegalStateException("a tree lost nodes");
        }
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

    private static int count(Node node) {
        return node == null ? 0 : 1 + count(node.left) + count(node.right);
    }

    /** Nodes that each know two others at random. */
    private static Node[] graph(int mib) {
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

    /** New nodes in the place of old ones: a write to an old object for each, and as much garbage. */
    private static void disturb(Node[] graph, int seed, int garbageMib) {
        SplittableRandom random = new SplittableRandom(seed);
        for (long left = ((long) garbageMib << 20) / TREE_BYTES; left > 0; left--) {
            Node made = tree(DEPTH);
            for (int i = 0; i < 16; i++) {
                Node node = graph[random.nextInt(graph.length)];
                node.value += made.value;
                node.left = graph[random.nextInt(graph.length)];
            }
        }
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

    private static void transform(Templates sheet, String document, int times) throws Exception {
        for (int i = 0; i < times; i++) {
            StringWriter out = new StringWriter();
            sheet.newTransformer().transform(new StreamSource(new StringReader(document)), new StreamResult(out));
            if (out.getBuffer().length() < document.length() / 2) {
                throw new IllegalStateException("a document lost its books");
            }
        }
    }

    private static final String DATABASE = "jdbc:h2:mem:bank;DB_CLOSE_DELAY=-1";

    private static void open(int accounts) throws SQLException {
        try (Connection bank = DriverManager.getConnection(DATABASE); Statement once = bank.createStatement()) {
            once.execute("CREATE TABLE account (id INT PRIMARY KEY, owner VARCHAR(40), balance BIGINT)");
            try (PreparedStatement insert = bank.prepareStatement("INSERT INTO account VALUES (?, ?, 1000)")) {
                for (int i = 0; i < accounts; i++) {
                    insert.setInt(1, i);
                    insert.setString(2, "owner of account " + i);
                    insert.execute();
                }
            }
        }
    }

    /** From one account to another, and a look at the sum of some: each a transaction. */
    private static void transfer(int seed, int transactions, int accounts) throws SQLException {
        SplittableRandom random = new SplittableRandom(seed);
        String change = "UPDATE account SET balance = balance + ? WHERE id = ?";
        String look = "SELECT owner, balance FROM account WHERE id BETWEEN ? AND ? ORDER BY balance, owner";
        try (Connection bank = DriverManager.getConnection(DATABASE);
                PreparedStatement update = bank.prepareStatement(change);
                PreparedStatement select = bank.prepareStatement(look)) {
            for (int i = 0; i < transactions; i++) {
                int from = random.nextInt(accounts - 50), sign = i % 2 == 0 ? 1 : -1;
                update.setInt(1, sign);
                update.setInt(2, from);
                update.execute();
                select.setInt(1, from);
                select.setInt(2, from + 50);
                try (ResultSet rows = select.executeQuery()) {
                    while (rows.next()) {
                        seen += rows.getString(1).length();
                    }
                }
            }
        }
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
