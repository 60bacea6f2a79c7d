// pg-boss, as documented: `with_pg_boss.mjs DSN produce|work N [tuned]`. See program.py for what it reads and prints.

import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { PgBoss } from "pg-boss";

const tuned = process.argv.includes("tuned");
const [connectionString, what, jobs] = process.argv.slice(2);
const watched = Number(jobs);
let started = 0;

function mark(number) {
  process.stdout.write(`@ ${number} ${process.hrtime.bigint()}\n`);
}

async function produce(boss) {
  await boss.createQueue("noop", { notify: tuned });
  mark(0);
  for await (const line of createInterface({ input: process.stdin })) {
    const [jobs, every, first] = line.split(" ").map(Number);
    if (every) {
      const began = performance.now();
      for (let n = 0; n < jobs; n++) {
        const early = began + n * every - performance.now();
        if (early > 0) await sleep(early);
        await boss.send("noop", { n: first + n });
        mark(first + n);
      }
    } else {
      for (let start = 0; start < jobs; start += 1000) {
        const length = Math.min(1000, jobs - start);
        await boss.insert("noop", Array.from({ length }, (_, n) => ({ data: { n: start + n } })));
      }
      mark(jobs);
    }
  }
  await boss.stop();
}

async function noop(batch) {
  for (const { data } of batch) {
    started++;
    if (!watched || started === 1 || started === watched) mark(data.n);
  }
}

const boss = new PgBoss({ connectionString, useListenNotify: tuned });
boss.on("error", (error) => process.stderr.write(`${error.message}\n`));
await boss.start();
if (what === "produce") {
  await produce(boss);
} else {
  process.on("SIGTERM", () => boss.stop().then(() => process.exit(0)));
  // https://pgboss.io/api/workers names these settings, but no size of a batch. One worker, for each job wakes all.
  const options = tuned ? { batchSize: 100, burstWhenBatchFull: true } : { localConcurrency: 10 };
  await boss.work("noop", options, noop);
}
