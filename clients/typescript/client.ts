// A producer and a worker in TypeScript, with pg. See docs/reference/protocol.md for what each call does.
//
//     client enqueue TASK ARGS QUEUE [KEY]    enqueues in one transaction with a row; prints the job's id
//     client worker QUEUE                     runs jobs until TERM or INT
//
// PGQUEUE_DSN names the database, PGQUEUE_LEASE the lease in seconds (30).
import { Client } from "pg";

type Job = { outcome: string; id: string; task: string; args: any; reservation: string };
type End = { job: Job; error?: string };

const lease = Number(process.env.PGQUEUE_LEASE ?? 30);
const connectionString = process.env.PGQUEUE_DSN;

async function connect(): Promise<Client> {
  const client = new Client({ connectionString });
  await client.connect();
  return client;
}

export async function enqueue(task: string, args: object, queue: string, key: string | null): Promise<string> {
  const db = await connect();
  try {
    await db.query("begin");
    await db.query("insert into client_orders (note) values ($1)", [task]);
    const { rows } = await db.query("select pgqueue.enqueue($1, $2::jsonb, queue => $3, key => $4) as id", [
      task, JSON.stringify(args), queue, key,
    ]);
    await db.query("commit");
    return rows[0].id;
  } finally {
    await db.end(); // without the commit, this rolls back
  }
}

const pause = (seconds: number, signal: AbortSignal) =>
  new Promise<void>((done, stop) => {
    const timer = setTimeout(done, seconds * 1000);
    signal.addEventListener("abort", () => (clearTimeout(timer), stop(new Error("interrupted"))));
  });

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
    const hello = "select pgqueue.hello($1, array[$2], '{\"client\": \"typescript\"}') as channel";
    const { rows } = await db.query(hello, [this.name, this.queue]);
    ear.on("notification", () => this.wake());
    await ear.query(`listen "${rows[0].channel}"`);
    for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => ((this.stopping = true), this.wake()));
    let ended: End[] = [];
    let polls = 0;
    while (!this.stopping) {
      const woken = new Promise<void>((wake) => (this.wake = wake)); // before the claim: no wake-up is missed
      const answer = await this.exchange(db, 1, ended);
      // Another session has the row of a locked one: nothing was changed, report it again.
      ended = ended.filter((end) => answer.some((row) => row.outcome === "locked" && row.id === end.job.id));
      const job = answer.find((row) => row.outcome === "reserved");
      if (job) {
        ended.push(...(await this.attempt(db, job)));
        polls = 0;
        continue;
      }
      const { rows: [idle] } = await db.query(
        `select least(extract(epoch from call_again_in), extract(epoch from next_due - now()))::float8 as seconds
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

  /** Reports how jobs ended, and claims up to `max`. */
  private async exchange(db: Client, max: number, ended: End[]): Promise<Job[]> {
    const [good, bad] = [ended.filter((end) => !end.error), ended.filter((end) => end.error)];
    const { rows } = await db.query(
      `select outcome, id, task, args, reservation from pgqueue.exchange(
         $1, $2, array[$3], lease => make_interval(secs => $4),
         completed => $5, completed_reservations => $6, failed => $7, failed_reservations => $8, errors => $9::jsonb[])`,
      [this.name, max, this.queue, lease, good.map((end) => end.job.id), good.map((end) => end.job.reservation),
       bad.map((end) => end.job.id), bad.map((end) => end.job.reservation),
       bad.map((end) => JSON.stringify({ message: end.error }))]);
    return rows;
  }

  /** Runs one job to its end, and extends its lease meanwhile, every third of it. */
  private async attempt(db: Client, job: Job): Promise<End[]> {
    const abort = new AbortController();
    const pair = [[job.id], [job.reservation]];
    let given_back = false;
    const timer = setInterval(async () => {
      const { rows } = await db.query(
        "select cancel_requested from pgqueue.extend($1, $2, make_interval(secs => $3))", [...pair, lease]);
      if (rows.length && !rows[0].cancel_requested) return;
      // No row: the lease is lost. True: a user asked to cancel; given back, the job ends as cancelled.
      given_back = true;
      abort.abort();
    }, (lease * 1000) / 3);
    let error: string | undefined;
    try {
      const handler = handlers[job.task];
      if (!handler) throw new Error(`there is no task ${job.task}`);
      await handler(db, job, abort.signal);
    } catch (caught) {
      error = String((caught as Error).message);
    } finally {
      clearInterval(timer);
    }
    if (!given_back) return [{ job, error }];
    await db.query("select pgqueue.release($1, $2)", pair);
    return [];
  }
}

const [command, ...given] = process.argv.slice(2);
if (command === "enqueue") enqueue(given[0], JSON.parse(given[1]), given[2], given[3] ?? null).then(console.log);
else new Worker(given[0]).run();
