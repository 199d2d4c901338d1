/* SPDX-License-Identifier: Apache-2.0 OR MIT */

import java.io.StringReader;
import java.io.StringWriter;
import java.nio.file.Path;
import java.util.SplittableRandom;
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
 * Real libraries in place of the DaCapo programs of Adaptive Resource Views: the same names, the same kind of work.
 *
 * <pre>Programs index DIR                      makes the index that lusearch asks
 *Programs PROGRAM THREADS WARM AMOUNT [DIR]   h2, jython, lusearch, sunflow or xalan; as `Runtimes` measures</pre>
 */
public final class Programs {
    private static volatile long seen;

    public static void main(String[] args) throws Exception {
        if (args[0].equals("index")) {
            index(Path.of(args[1]));
            return;
        }
        int threads = args[0].equals("jython") ? 1 : Integer.parseInt(args[1]);
        Runtimes.measure(threads, Integer.parseInt(args[2]), Integer.parseInt(args[3]), work(args, threads));
    }

    private static Runtimes.Work work(String[] args, int threads) throws Exception {
        switch (args[0]) {
            case "h2":
                return new Tpcc(threads);
            case "jython":
                return jython();
            case "lusearch":
                return lusearch(Path.of(args[4]));
            case "sunflow":
                return sunflow(threads);
            case "xalan":
                return xalan();
            default:
                throw new IllegalArgumentException(args[0]);
        }
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
    private static Runtimes.Work jython() {
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
    private static Runtimes.Work lusearch(Path path) throws Exception {
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
    private static Runtimes.Work sunflow(int threads) {
        return new Runtimes.Work() {
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
    private static Runtimes.Work xalan() throws Exception {
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
}
