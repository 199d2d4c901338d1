/* SPDX-License-Identifier: Apache-2.0 OR MIT */

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.SplittableRandom;

/**
 * The five transactions of TPC-C in their parts of a hundred, in an H2 database in memory: a warehouse for each ten threads, a district for
 * each thread, 300 customers a district, 5,000 items. A part is ten transactions. Like DaCapo's h2, it is no TPC-C result: there are no
 * terminals that think.
 */
final class Tpcc implements Runtimes.Work {
    private static final int DISTRICTS = 10;
    private static final int CUSTOMERS = 300;
    private static final int ITEMS = 5000;
    private static final String[] TABLES = {
        "warehouse (w INT PRIMARY KEY, name VARCHAR(10), tax INT, ytd BIGINT)",
        "district (w INT, d INT, tax INT, ytd BIGINT, next INT, PRIMARY KEY (w, d))",
        "customer (w INT, d INT, c INT, last VARCHAR(16), balance BIGINT, payments INT, data VARCHAR(250), PRIMARY KEY (w, d, c))",
        "history (w INT, d INT, c INT, amount INT, data VARCHAR(24))",
        "orders (w INT, d INT, o INT, c INT, carrier INT, count INT, PRIMARY KEY (w, d, o))",
        "new_order (w INT, d INT, o INT, PRIMARY KEY (w, d, o))",
        "line (w INT, d INT, o INT, number INT, i INT, quantity INT, amount INT, info VARCHAR(24), PRIMARY KEY (w, d, o, number))",
        "item (i INT PRIMARY KEY, name VARCHAR(24), price INT, data VARCHAR(50))",
        "stock (w INT, i INT, quantity INT, ytd INT, info VARCHAR(24), PRIMARY KEY (w, i))",
    };

    /** A district's connection; threads share none. */
    private static final class Terminal {
        final Connection connection;
        final SplittableRandom random;
        final int w;
        final int d;
        final PreparedStatement[] statements;

        Terminal(Connection connection, int number) throws SQLException {
            this.connection = connection;
            random = new SplittableRandom(number);
            w = number / DISTRICTS;
            d = number % DISTRICTS;
            connection.setAutoCommit(false);
            statements = new PreparedStatement[SQL.length];
            for (int i = 0; i < SQL.length; i++) {
                statements[i] = connection.prepareStatement(SQL[i]);
            }
        }

        int update(int statement, Object... values) throws SQLException {
            return bind(statement, values).executeUpdate();
        }

        /** The first column of the first row; 0 where there is none. */
        int look(int statement, Object... values) throws SQLException {
            try (ResultSet rows = bind(statement, values).executeQuery()) {
                return rows.next() ? rows.getInt(1) : 0;
            }
        }

        private PreparedStatement bind(int statement, Object... values) throws SQLException {
            for (int i = 0; i < values.length; i++) {
                statements[statement].setObject(i + 1, values[i]);
            }
            return statements[statement];
        }
    }

    private static final String[] SQL = {
        "SELECT next FROM district WHERE w = ? AND d = ? FOR UPDATE",
        "UPDATE district SET next = next + 1 WHERE w = ? AND d = ?",
        "INSERT INTO orders VALUES (?, ?, ?, ?, 0, ?)",
        "INSERT INTO new_order VALUES (?, ?, ?)",
        "SELECT price FROM item WHERE i = ?",
        "UPDATE stock SET quantity = CASE WHEN quantity > 20 THEN quantity - ? ELSE quantity + 91 END, ytd = ytd + 1 WHERE w = ? AND i = ?",
        "INSERT INTO line VALUES (?, ?, ?, ?, ?, ?, ?, 'as it comes')",
        "UPDATE warehouse SET ytd = ytd + ? WHERE w = ?",
        "UPDATE district SET ytd = ytd + ? WHERE w = ? AND d = ?",
        "UPDATE customer SET balance = balance - ?, payments = payments + 1 WHERE w = ? AND d = ? AND c = ?",
        "INSERT INTO history VALUES (?, ?, ?, ?, 'paid at the counter')",
        "SELECT COALESCE(MAX(o), 0) FROM orders WHERE w = ? AND d = ? AND c = ? AND o > ?",
        "SELECT SUM(amount) FROM line WHERE w = ? AND d = ? AND o = ?",
        "SELECT COALESCE(MIN(o), 0) FROM new_order WHERE w = ? AND d = ?",
        "DELETE FROM new_order WHERE w = ? AND d = ? AND o = ?",
        "UPDATE orders SET carrier = ? WHERE w = ? AND d = ? AND o = ?",
        "SELECT COUNT(DISTINCT s.i) FROM line l JOIN stock s ON s.w = l.w AND s.i = l.i WHERE l.w = ? AND l.d = ? AND l.o > ? AND s.quantity < 40",
    };

    private final Terminal[] terminals;

    Tpcc(int threads) throws SQLException {
        String database = "jdbc:h2:mem:tpcc;DB_CLOSE_DELAY=-1;LOCK_TIMEOUT=20000";
        try (Connection connection = DriverManager.getConnection(database); Statement once = connection.createStatement()) {
            for (String table : TABLES) {
                once.execute("CREATE TABLE " + table);
            }
            int warehouses = (threads + DISTRICTS - 1) / DISTRICTS;
            String places = "SYSTEM_RANGE(0, " + (warehouses - 1) + ") w, SYSTEM_RANGE(0, " + (DISTRICTS - 1) + ") d";
            once.execute("INSERT INTO warehouse SELECT x, 'house ' || x, 7, 0 FROM SYSTEM_RANGE(0, " + (warehouses - 1) + ")");
            once.execute("INSERT INTO district SELECT w.x, d.x, 5, 0, 1 FROM " + places);
            once.execute("INSERT INTO customer SELECT w.x, d.x, c.x, 'name of ' || c.x, 0, 0, RPAD('who buys things ', 250, 'and more ') FROM "
                    + places + ", SYSTEM_RANGE(0, " + (CUSTOMERS - 1) + ") c");
            once.execute("INSERT INTO item SELECT x, 'item ' || x, MOD(x * 37, 9900) + 100, RPAD('what it is ', 50, 'like ') FROM SYSTEM_RANGE(0, "
                    + (ITEMS - 1) + ")");
            once.execute("INSERT INTO stock SELECT w.x, i.x, MOD(i.x * 31, 90) + 10, 0, 'as it comes from it' FROM SYSTEM_RANGE(0, "
                    + (warehouses - 1) + ") w, SYSTEM_RANGE(0, " + (ITEMS - 1) + ") i");
        }
        terminals = new Terminal[threads];
        for (int i = 0; i < threads; i++) {
            terminals[i] = new Terminal(DriverManager.getConnection(database), i);
        }
    }

    @Override
    public void part(int n, int thread) throws SQLException {
        Terminal at = terminals[thread];
        for (int i = 0; i < 10; i++) {
            int kind = at.random.nextInt(100);
            if (kind < 45) {
                newOrder(at);
            } else if (kind < 88) {
                payment(at);
            } else if (kind < 92) {
                int order = at.look(11, at.w, at.d, at.random.nextInt(CUSTOMERS), latest(at) - 40);
                Runtimes.seen += at.look(12, at.w, at.d, order);
            } else if (kind < 96) {
                delivery(at);
            } else {
                Runtimes.seen += at.look(16, at.w, at.d, latest(at) - 20);
            }
            at.connection.commit();
        }
    }

    private static int latest(Terminal at) throws SQLException {
        return at.look(0, at.w, at.d);
    }

    private static void newOrder(Terminal at) throws SQLException {
        int order = latest(at), lines = 5 + at.random.nextInt(11);
        at.update(1, at.w, at.d);
        at.update(2, at.w, at.d, order, at.random.nextInt(CUSTOMERS), lines);
        at.update(3, at.w, at.d, order);
        // In the order of items: two orders never wait for each other.
        int item = at.random.nextInt(ITEMS / 20);
        for (int number = 0; number < lines; number++, item += 1 + at.random.nextInt(ITEMS / 20)) {
            int quantity = 1 + at.random.nextInt(10);
            int price = at.look(4, item);
            at.update(5, quantity, at.w, item);
            at.update(6, at.w, at.d, order, number, item, quantity, quantity * price);
        }
    }

    private static void payment(Terminal at) throws SQLException {
        int amount = 100 + at.random.nextInt(5000), customer = at.random.nextInt(CUSTOMERS);
        at.update(8, amount, at.w, at.d);
        at.update(9, amount, at.w, at.d, customer);
        at.update(10, at.w, at.d, customer, amount);
        // Last, as all districts of a house wait for it.
        at.update(7, amount, at.w);
    }

    /** The oldest order of the district that is still to be delivered. */
    private static void delivery(Terminal at) throws SQLException {
        int order = at.look(13, at.w, at.d);
        at.update(14, at.w, at.d, order);
        at.update(15, at.random.nextInt(10), at.w, at.d, order);
        Runtimes.seen += at.look(12, at.w, at.d, order);
    }
}
