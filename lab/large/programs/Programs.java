/* SPDX-License-Identifier: Apache-2.0 OR MIT */

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.StringReader;
import java.io.StringWriter;
import java.lang.management.ManagementFactory;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import javax.xml.transform.Templates;
import javax.xml.transform.stream.StreamResult;
import javax.xml.transform.stream.StreamSource;
import org.apache.lucene.analysis.standard.StandardAnalyzer;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.TextField;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.IndexWriter;
import org.apache.lucene.index.IndexWriterConfig;
import org.apache.lucene.index.Term;
import org.apache.lucene.search.BooleanClause;
import org.apache.lucene.search.BooleanQuery;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.PhraseQuery;
import org.apache.lucene.search.TermQuery;
import org.apache.lucene.search.TopDocs;
import org.apache.lucene.store.Directory;
import org.apache.lucene.store.FSDirectory;
import org.python.core.PyCode;
import org.python.util.PythonInterpreter;
import org.sunflow.Benchmark;

/**
 * Real libraries in place of the DaCapo programs of Adaptive Resource Views: the same five names, the same kind of work.
 *
 * <pre>Programs index DIR                      makes the index that lusearch asks
 *Programs PROGRAM THREADS WARM AMOUNT [DIR]   h2, jython, lusearch, sunflow, xalan or trees</pre>
 *
 * It does WARM parts of its work, says "ready", reads a moment of CLOCK_MONOTONIC in nanoseconds, waits for it, says "start" and the virtual
 * machine's age in milliseconds, does AMOUNT parts and says "done" and how many milliseconds they took. A part is the same work whatever the
 * number of threads.
 */
public final class Programs {
    private interface Work {
        /** Part `n`, by thread `thread`. */
        void part(int n, int thread) throws Exception;
    }

    private static volatile Throwable failure;
    private static volatile long seen;

    public static void main(String[] args) throws Exception {
        if (args[0].equals("index")) {
            index(Path.of(args[1]));
            return;
        }
        int threads = Integer.parseInt(args[1]), warm = Integer.parseInt(args[2]), amount = Integer.parseInt(args[3]);
        if (args[0].equals("jython")) {
            threads = 1;
        }
        Work work = work(args, threads);
        parallel(threads, warm, work);
        System.out.println("ready");
        long start = Long.parseLong(new BufferedReader(new InputStreamReader(System.in)).readLine().trim());
        for (long left = start - System.nanoTime(); left > 0; left = start - System.nanoTime()) {
            LockSupport.parkNanos(left);
        }
        System.out.println("start " + ManagementFactory.getRuntimeMXBean().getUptime());
        parallel(threads, amount, work);
        if (failure != null) {
            failure.printStackTrace();
            System.exit(1);
        }
        System.out.println("done " + (System.nanoTime() - start) / 1_000_000);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static Work work(String[] args, int threads) throws Exception {
        switch (args[0]) {
            case "h2":
                return h2(threads);
            case "jython":
                return jython();
            case "lusearch":
                return lusearch(Path.of(args[4]));
            case "sunflow":
                return sunflow(threads);
            case "xalan":
                return xalan();
            case "trees":
                return trees(threads);
            default:
                throw new IllegalArgumentException(args[0]);
        }
    }

    /** Threads take the next part that nobody has. */
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

    /** A part is 20 transactions: an update of one account and a look at fifty. */
    private static Work h2(int threads) throws Exception {
        int accounts = 50_000;
        String database = "jdbc:h2:mem:bank;DB_CLOSE_DELAY=-1";
        try (Connection bank = DriverManager.getConnection(database); Statement once = bank.createStatement()) {
            once.execute("CREATE TABLE account (id INT PRIMARY KEY, owner VARCHAR(40), balance BIGINT)");
            try (PreparedStatement insert = bank.prepareStatement("INSERT INTO account VALUES (?, ?, 1000)")) {
                for (int i = 0; i < accounts; i++) {
                    insert.setInt(1, i);
                    insert.setString(2, "owner of account " + i);
                    insert.execute();
                }
            }
        }
        PreparedStatement[] updates = new PreparedStatement[threads], selects = new PreparedStatement[threads];
        for (int i = 0; i < threads; i++) {
            Connection bank = DriverManager.getConnection(database);
            updates[i] = bank.prepareStatement("UPDATE account SET balance = balance + ? WHERE id = ?");
            selects[i] = bank.prepareStatement("SELECT owner, balance FROM account WHERE id BETWEEN ? AND ? ORDER BY balance, owner");
        }
        return (n, thread) -> {
            SplittableRandom random = new SplittableRandom(n);
            for (int i = 0; i < 20; i++) {
                // Accounts of its own: transactions do not wait for each other's rows.
                int own = (accounts - 50) / threads, from = own * thread + random.nextInt(own);
                updates[thread].setInt(1, i % 2 == 0 ? 1 : -1);
                updates[thread].setInt(2, from);
                updates[thread].execute();
                selects[thread].setInt(1, from);
                selects[thread].setInt(2, from + 50);
                try (ResultSet rows = selects[thread].executeQuery()) {
                    while (rows.next()) {
                        seen += rows.getString(1).length();
                    }
                }
            }
        };
    }

    private static final String SCRIPT = String.join("\n",
            "words = {}",
            "for i in range(4000):",
            "    key = 'word%d' % (i * 7919 % 1000)",
            "    words.setdefault(key, []).append((i, str(i)))",
            "pairs = sorted([(len(v), k) for k, v in words.items()])",
            "text = ' '.join([k for n, k in pairs])",
            "total = sum([len(w) for w in text.split(' ')])",
            "");

    /** A part is one run of a script, by one interpreter. */
    private static Work jython() {
        PythonInterpreter python = new PythonInterpreter();
        PyCode code = python.compile(SCRIPT);
        return (n, thread) -> python.exec(code);
    }

    private static final int WORDS = 20_000;

    /** Few words are in most documents, most words in few. */
    private static String word(SplittableRandom random) {
        double u = random.nextDouble();
        return "w" + Integer.toString((int) (WORDS * u * u * u), 36);
    }

    private static void index(Path path) throws Exception {
        try (Directory directory = FSDirectory.open(path);
                IndexWriter writer = new IndexWriter(directory, new IndexWriterConfig(new StandardAnalyzer()))) {
            SplittableRandom random = new SplittableRandom(11);
            for (int i = 0; i < 6000; i++) {
                StringBuilder text = new StringBuilder();
                for (int k = 0; k < 120; k++) {
                    text.append(word(random)).append(' ');
                }
                Document document = new Document();
                document.add(new TextField("text", text.toString(), Field.Store.YES));
                writer.addDocument(document);
            }
            writer.forceMerge(1);
        }
    }

    /** A part is 10 questions of three words and one of a phrase, and the best documents of each. */
    private static Work lusearch(Path path) throws Exception {
        IndexSearcher searcher = new IndexSearcher(DirectoryReader.open(FSDirectory.open(path)));
        return (n, thread) -> {
            SplittableRandom random = new SplittableRandom(n);
            for (int i = 0; i < 10; i++) {
                BooleanQuery.Builder query = new BooleanQuery.Builder();
                for (int k = 0; k < 3; k++) {
                    query.add(new TermQuery(new Term("text", word(random))), BooleanClause.Occur.SHOULD);
                }
                query.add(new PhraseQuery("text", word(random), word(random)), BooleanClause.Occur.SHOULD);
                TopDocs best = searcher.search(query.build(), 500);
                for (int k = 0; k < Math.min(20, best.scoreDocs.length); k++) {
                    seen += searcher.storedFields().document(best.scoreDocs[k].doc).get("text").length();
                }
            }
        };
    }

    /** A part is one picture of sunflow's own benchmark; its threads are sunflow's. */
    private static Work sunflow(int threads) {
        return new Work() {
            @Override
            public synchronized void part(int n, int thread) {
                Benchmark picture = new Benchmark(64, false, false, false, threads, false);
                picture.kernelBegin();
                picture.kernelMain();
            }
        };
    }

    private static final String SHEET = "<xsl:stylesheet version='1.0' xmlns:xsl='http://www.w3.org/1999/XSL/Transform'>"
            + "<xsl:template match='/'><table><xsl:for-each select='shelf/book'><xsl:sort select='title'/>"
            + "<tr><td><xsl:value-of select='title'/></td><td><xsl:value-of select='concat(author, \": \", price)'/></td></tr>"
            + "</xsl:for-each></table></xsl:template></xsl:stylesheet>";

    /** A part is five documents through a style sheet. */
    private static Work xalan() throws Exception {
        Templates sheet = new org.apache.xalan.processor.TransformerFactoryImpl().newTemplates(new StreamSource(new StringReader(SHEET)));
        SplittableRandom random = new SplittableRandom(3);
        StringBuilder text = new StringBuilder("<shelf>");
        for (int i = 0; i < 150; i++) {
            text.append("<book><title>").append(Long.toString(random.nextLong() >>> 1, 36)).append("</title><author>");
            text.append(Long.toString(random.nextLong() >>> 1, 36)).append("</author><price>");
            text.append(random.nextInt(100)).append("</price></book>");
        }
        String document = text.append("</shelf>").toString();
        return (n, thread) -> {
            for (int i = 0; i < 5; i++) {
                StringWriter out = new StringWriter();
                sheet.newTransformer().transform(new StreamSource(new StringReader(document)), new StreamResult(out));
                if (out.getBuffer().length() < document.length() / 2) {
                    throw new IllegalStateException("a document lost its books");
                }
            }
        };
    }

    private static final class Node {
        Node left;
        Node right;
    }

    private static Node tree(int depth) {
        Node node = new Node();
        if (depth > 1) {
            node.left = tree(depth - 1);
            node.right = tree(depth - 1);
        }
        return node;
    }

    /** A part is eight trees of 4095 nodes, of which one replaces another that lived. */
    private static Work trees(int threads) {
        Node[] live = new Node[800];
        return (n, thread) -> {
            for (int i = 0; i < 7; i++) {
                seen += tree(12).hashCode() & 1;
            }
            live[Math.floorMod(n * 7919, live.length)] = tree(12);
        };
    }
}
