// A producer and a worker in TypeScript, with pg. See docs/reference/protocol.md for what each call does.
//
//     client enqueue TASK ARGS QUEUE [KEY]    enqueues in one transaction with a row; prints the job's id
//     client worker QUEUE                     runs jobs until TERM or INT
//
// PGQUEUE_DSN names the database, PGQUEUE_LEASE the lease in seconds (30).
import { Client } from "pg";

// The text of args: JSON.parse would round integers above 2^53.
type Job = { outcome: string; id: string; task: string; args: string; reservation: string };
type End = { job: Job; error?: string };

const lease = Number(process.env.PGQUEUE_LEASE ?? 30);
const connectionString = process.env.PGQUEUE_DSN;

async function connect(): Promise<Client> {
  const client = new Client({ connectionString });
  await client.connect();
  return client;
}

export async function enqueue(task: string, args: string, queue: string, key: string | null): Promise<string> {
  const db = await connect();
  try {
    await db.query("begin");
    await db.query("insert into client_orders (note) values ($1)", [task]);
    const { rows } = await db.query("select pgqueue.enqueue($1, $2::jsonb, queue => $3, key => $4) as id", [
      task, args, queue, key,
    ]);
    await db.query("commit");
    return rows[0].id;
  } finally {
    await db.end(); // without the commit, this rolls back
  }
}

const pause = (seconds: number, signal: AbortSignal) =>
  new Promise<void>((done, stop) => {
    signal.throwIfAborted();
    const timer = setTimeout(done, seconds * 1000);
    signal.addEventListener("abort", () => (clearTimeout(timer), stop(new Error("interrupted"))));
  });

// Each gets a connection of its own: the worker extends the lease on another one meanwhile.
const handlers: Record<string, (db: Client, job: Job, signal: AbortSignal) => Promise<void>> = {
  async note(db, job, signal) {
    const statement = "insert into client_notes (job_id, args) values ($1, $2) returning seconds";
    const { rows } = await db.query(statement, [job.id, job.args]);
    await pause(rows[0].seconds, signal);
  },
  async fail() {
    throw new Error("no such order");
  },
};

class Worker {
  private name = `typescript:${process.pid}:${Math.random().toString(36).slice(2)}`;
  private stopping = false;
  private wake = () => {};

  constructor(private queue: string) {}

  async run(): Promise<void> {
    const [db, ear] = [await connect(), await connect()];
    const hello = "pgqueue.hello($1, array[$2], '{\"client\": \"typescript\"}')";
    const { rows } = await db.query(`select ${hello} as channel`, [this.name, this.queue]);
    ear.on("notification", () => this.wake());
    await ear.query(`listen "${rows[0].channel}"`);
    for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => ((this.stopping = true), this.wake()));
    let ended: End | undefined;
    let polls = 0;
    while (!this.stopping) {
      const woken = new Promise<void>((wake) => (this.wake = wake)); // before the claim: no wake-up is missed
      const job = await this.exchange(db, 1, ended);
      ended = job && (await this.attempt(db, job));
      if (job) {
        polls = 0;
        continue;
      }
      const { rows: [idle] } = await db.query(
        `select least(extract(epoch from call_again_in), extract(epoch from next_due - now()))::float8 as seconds,
           case when not registered then ${hello} end
         from pgqueue.idle($1, array[$2])`, [this.name, this.queue]);
      // Registered as idle, it polls four times in a second, and then blocks until it is notified or a job is due.
      const seconds = ++polls <= 4 ? 0.25 : Math.max(idle.seconds, 0.01);
      let timer: NodeJS.Timeout;
      await Promise.race([woken, new Promise((done) => (timer = setTimeout(done, seconds * 1000)))]);
      clearTimeout(timer!);
    }
    await this.exchange(db, 0, ended);
    await db.query("select pgqueue.bye($1)", [this.name]);
    await Promise.all([db.end(), ear.end()]);
  }

  /** Reports how the last job ended, until that is stored, and claims `max`: one or none. Returns the job. */
  private async exchange(db: Client, max: number, end: End | undefined): Promise<Job | undefined> {
    const [good, bad] = end?.error === undefined ? [end ? [end] : [], []] : [[], [end]];
    for (;; max = 0) {
      const { rows } = await db.query(
        `select outcome, id, task, args::text, reservation from pgqueue.exchange(
           $1, $2, array[$3], lease => make_interval(secs => $4),
           completed => $5, completed_reservations => $6, failed => $7, failed_reservations => $8, errors => $9::jsonb[])`,
        [this.name, max, this.queue, lease, good.map((end) => end.job.id), good.map((end) => end.job.reservation),
         bad.map((end) => end.job.id), bad.map((end) => end.job.reservation),
         bad.map((end) => JSON.stringify({ message: end.error }))]);
      const job = rows.find((row) => row.outcome === "reserved");
      if (!rows.some((row) => row.outcome === "locked")) return job;
      // Another session has its row: nothing was changed. A job that waited for it would lose its lease.
      if (job) await db.query("select pgqueue.release($1, $2)", [[job.id], [job.reservation]]);
      await new Promise((done) => setTimeout(done, 100));
    }
  }

  /** Runs one job to its end, and extends its lease meanwhile, every third of it. */
  private async attempt(db: Client, job: Job): Promise<End | undefined> {
    const abort = new AbortController();
    const pair = [[job.id], [job.reservation]];
    let given_back = false;
    const timer = setInterval(async () => {
      const { rows } = await db.query(
        "select cancel_requested from pgqueue.extend($1, $2, make_interval(secs => $3)), pgqueue.beat($4)", [...pair, lease, this.name]);
      if (rows.length && !rows[0].cancel_requested) return;
      // No row: the lease is lost. True: a user asked to cancel; given back, the job ends as cancelled.
      given_back = true;
      abort.abort();
    }, (lease * 1000) / 3);
    let error: string | undefined;
    let own: Client | undefined;
    try {
      if (!Object.hasOwn(handlers, job.task)) throw new Error(`there is no task ${job.task}`);
      await handlers[job.task]((own = await connect()), job, abort.signal);
    } catch (caught) {
      error = (caught instanceof Error ? caught.message : String(caught)).replaceAll("\0", ""); // jsonb takes none
    } finally {
      await own?.end().catch(() => {});
      clearInterval(timer);
    }
    if (!given_back) return { job, error };
    await db.query("select pgqueue.release($1, $2)", pair);
  }
}

const [command, ...given] = process.argv.slice(2);
if (command === "enqueue") enqueue(given[0], given[1], given[2], given[3] ?? null).then(console.log);
else new Worker(given[0]).run();
