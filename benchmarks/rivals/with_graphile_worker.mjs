// graphile-worker, as documented: `with_graphile_worker.mjs DSN produce|work N [tuned]`. See program.py for what it
// reads and prints.

import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { makeWorkerUtils, run } from "graphile-worker";

const [connectionString, what, jobs, tuned] = process.argv.slice(2);
const watched = Number(jobs);
let started = 0;

// https://worker.graphile.org/docs/performance: the configuration of its own figures.
const TUNED = {
  concurrentJobs: 24,
  maxPoolSize: 25,
  localQueue: { size: 500 },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
};

function mark(number) {
  process.stdout.write(`@ ${number} ${process.hrtime.bigint()}\n`);
}

async function produce() {
  const utils = await makeWorkerUtils({ connectionString });
  await utils.migrate();
  mark(0);
  for await (const line of createInterface({ input: process.stdin })) {
    const [jobs, every, first] = line.split(" ").map(Number);
    if (every) {
      const began = performance.now();
      for (let n = 0; n < jobs; n++) {
        const early = began + n * every - performance.now();
        if (early > 0) await sleep(early);
        await utils.addJob("noop", { n: first + n });
        mark(first + n);
      }
    } else {
      for (let start = 0; start < jobs; start += 1000) {
        const length = Math.min(1000, jobs - start);
        await utils.addJobs(Array.from({ length }, (_, n) => ({ identifier: "noop", payload: { n: start + n } })));
      }
      mark(jobs);
    }
  }
  await utils.release();
}

async function noop({ n }) {
  started++;
  if (!watched || started === 1 || started === watched) mark(n);
}

if (what === "produce") {
  await produce();
} else {
  const worker = { connectionString, ...(tuned ? TUNED : { concurrentJobs: 10 }) };
  await (await run({ preset: { worker }, taskList: { noop } })).promise;
}
