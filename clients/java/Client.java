// A producer and a worker in Java, with JDBC. See docs/reference/protocol.md for what each call does.
//
//     java -cp postgresql.jar Client.java enqueue TASK ARGS QUEUE [KEY]    in one transaction with its own row
//     java -cp postgresql.jar Client.java worker QUEUE                     runs jobs until TERM or INT
//
// PGQUEUE_JDBC names the database (jdbc:postgresql://...), PGQUEUE_LEASE the lease in seconds (30).
import java.sql.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Function;
import org.postgresql.PGConnection;

public class Client {
    record Job(String outcome, long id, String task, String args, long reservation) {}
    record End(Job job, String error) {}
    interface Handler { void run(Connection db, Job job) throws Exception; }

    static final double LEASE = Double.parseDouble(System.getenv().getOrDefault("PGQUEUE_LEASE", "30"));

    static final Map<String, Handler> HANDLERS = Map.of(
        "note", (db, job) -> {
            String statement = "insert into client_notes (job_id, args) values (?, ?::jsonb) returning seconds";
            Thread.sleep((long) ((Double) ask(db, statement, job.id, job.args).get(0)[0] * 1000));
        },
        "fail", (db, job) -> { throw new IllegalStateException("no such order"); });

    static Connection connect() throws SQLException {
        return DriverManager.getConnection(System.getenv("PGQUEUE_JDBC"));
    }

    static List<Object[]> ask(Connection db, String statement, Object... values) throws SQLException {
        try (PreparedStatement prepared = db.prepareStatement(statement)) {
            for (int i = 0; i < values.length; i++) prepared.setObject(i + 1, values[i]);
            List<Object[]> rows = new ArrayList<>();
            try (ResultSet found = prepared.executeQuery()) {
                while (found.next()) {
                    Object[] row = new Object[found.getMetaData().getColumnCount()];
                    for (int i = 0; i < row.length; i++) row[i] = found.getObject(i + 1);
                    rows.add(row);
                }
            }
            return rows;
        }
    }

    static Object enqueue(String task, String args, String queue, String key) throws SQLException {
        try (Connection db = connect()) {
            db.setAutoCommit(false);
            ask(db, "insert into client_orders (note) values (?) returning 1", task);
            Object id = ask(db, "select pgqueue.enqueue(?, ?::jsonb, queue => ?, key => ?)", task, args, queue, key).get(0)[0];
            db.commit();
            return id;
        }
    }

    final String queue, name = "java:" + ProcessHandle.current().pid() + ":" + Long.toHexString(new Random().nextLong());
    final ExecutorService threads = Executors.newCachedThreadPool();
    volatile boolean stopping = false;
    Connection db;

    Client(String queue) { this.queue = queue; }

    void work() throws Exception {
        Thread me = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopping = true;
            while (me.isAlive()) LockSupport.parkNanos(1_000_000); // the JVM ends when this hook does
            Runtime.getRuntime().halt(0); // not 143: it has ended in good order
        }));
        db = connect();
        String hello = "pgqueue.hello(?, array[?], '{\"client\": \"java\"}')";
        Object channel = ask(db, "select " + hello, name, queue).get(0)[0];
        db.createStatement().execute("listen \"" + channel + "\"");
        List<End> ended = List.of();
        for (int polls = 0; !stopping;) {
            List<Job> job = exchange(1, ended);
            ended = job.isEmpty() ? List.of() : attempt(job.get(0));
            if (!job.isEmpty()) {
                polls = 0;
                continue;
            }
            // Registered as idle, it polls four times in a second, and then blocks until it is notified or a job is due.
            double seconds = (Double) ask(db, "select least(extract(epoch from call_again_in),"
                + " extract(epoch from next_due - now()))::float8, case when not registered then " + hello + " end"
                + " from pgqueue.idle(?, array[?])", name, queue, name, queue).get(0)[0];
            long until = System.nanoTime() + (long) ((++polls <= 4 ? 0.25 : Math.max(seconds, 0.01)) * 1e9);
            PGConnection ear = db.unwrap(PGConnection.class);
            while (!stopping && System.nanoTime() < until && ear.getNotifications(100).length == 0);
        }
        exchange(0, ended);
        ask(db, "select pgqueue.bye(?)", name);
    }

    /** Reports how the last job ended, until that is stored, and claims `max`: one or none. Returns the job. */
    List<Job> exchange(int max, List<End> ended) throws Exception {
        List<End> good = ended.stream().filter(end -> end.error == null).toList();
        List<End> bad = ended.stream().filter(end -> end.error != null).toList();
        while (true) {
            List<Job> rows = new ArrayList<>();
            for (Object[] row : ask(db, "select outcome, id, task, args::text, reservation from pgqueue.exchange("
                + "?, ?, array[?], lease => make_interval(secs => ?), completed => ?, completed_reservations => ?, failed => ?,"
                + " failed_reservations => ?, errors => array(select jsonb_build_object('message', e) from unnest(?) e))",
                name, max, queue, LEASE, array(good, Job::id), array(good, Job::reservation), array(bad, Job::id),
                array(bad, Job::reservation), db.createArrayOf("text", bad.stream().map(End::error).toArray()))) {
                rows.add(new Job((String) row[0], row[1] == null ? 0 : (Long) row[1], (String) row[2], (String) row[3],
                    row[4] == null ? 0 : (Long) row[4]));
            }
            List<Job> reserved = rows.stream().filter(row -> row.outcome.equals("reserved")).toList();
            if (rows.stream().noneMatch(row -> row.outcome.equals("locked"))) return reserved;
            // Another session has its row: nothing was changed. A job that waited for it would lose its lease.
            release(reserved.stream().map(job -> new End(job, null)).toList());
            max = 0;
            Thread.sleep(100);
        }
    }

    void release(List<End> jobs) throws SQLException {
        ask(db, "select pgqueue.release(?, ?)", array(jobs, Job::id), array(jobs, Job::reservation));
    }

    Array array(List<End> ends, Function<Job, Long> of) throws SQLException {
        return db.createArrayOf("bigint", ends.stream().map(end -> of.apply(end.job)).toArray());
    }

    /** Runs one job to its end in a thread, and extends its lease meanwhile, every third of it. */
    List<End> attempt(Job job) throws Exception {
        CountDownLatch over = new CountDownLatch(1);
        Future<?> handler = threads.submit(() -> {
            try (Connection own = connect()) {
                if (!HANDLERS.containsKey(job.task)) throw new IllegalStateException("there is no task " + job.task);
                HANDLERS.get(job.task).run(own, job);
            } finally { over.countDown(); }
            return null;
        });
        List<End> me = List.of(new End(job, null));
        while (true) {
            try {
                handler.get((long) (LEASE * 1000 / 3), TimeUnit.MILLISECONDS);
                return me;
            } catch (ExecutionException failed) {
                return List.of(new End(job, failed.getCause().toString().replace("\0", ""))); // a text takes no zero
            } catch (TimeoutException running) {
                List<Object[]> rows = ask(db, "select cancel_requested from pgqueue.extend(?, ?, make_interval(secs => ?)),"
                    + " pgqueue.beat(?)", array(me, Job::id), array(me, Job::reservation), LEASE, name);
                if (!rows.isEmpty() && !(Boolean) rows.get(0)[0]) continue;
                // No row: the lease is lost. True: a user asked to cancel; given back, the job ends as cancelled.
                handler.cancel(true);
                over.await();
                release(me);
                return List.of();
            }
        }
    }

    public static void main(String[] given) throws Exception {
        try {
            if (!given[0].equals("enqueue")) new Client(given[1]).work();
            else System.out.println(enqueue(given[1], given[2], given[3], given.length > 4 ? given[4] : null));
        } catch (Throwable failed) {
            failed.printStackTrace();
            Runtime.getRuntime().halt(1); // at once: the hook would exit with 0, and another worker will run its job
        }
    }
}
