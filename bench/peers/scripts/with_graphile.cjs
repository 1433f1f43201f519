// graphile-worker, with the local queue and the batches of completions that its documentation recommends for throughput.
// The protocol is that of common.py.

const readline = require("node:readline");
const { Logger, makeWorkerUtils, run } = require("graphile-worker");
const { Pool } = require("pg");
const { version } = require("./node_modules/graphile-worker/package.json");

const [role, schema, concurrency] = process.argv.slice(2);
const url = process.env.SQLQUEUE_BENCH_URL;
const pgPool = new Pool({ connectionString: url, max: 20 });
const logger = new Logger(() => () => {});
const marks = [];
let utils;
let cpu;

const now = () => Number(process.hrtime.bigint()) / 1e9; // the clock of Python's time.monotonic
const say = (answer) => process.stdout.write(JSON.stringify(answer) + "\n");
const addJob = `SELECT FROM ${schema}.add_job('job', json_build_object('number', $1::integer))`;

function mark({ number }) {
  cpu ??= process.cpuUsage();
  marks.push([number, now()]);
}

const commands = {
  async install() {
    utils = await makeWorkerUtils({ pgPool, schema, logger });
    await utils.migrate();
  },
  async fill(count) {
    await pgPool.query(
      `SELECT FROM generate_series(0, $1::integer - 1) AS n,` +
        ` LATERAL (SELECT ${schema}.add_job('job', json_build_object('number', n))) AS added`,
      [count],
    );
  },
  async enqueue(count) {
    const taken = [];
    for (let number = 0; number < count; number++) {
      const begun = now();
      await utils.addJob("job", { number });
      taken.push(now() - begun);
    }
    return taken;
  },
  async enqueue_within(count, start) {
    const sent = [];
    const client = await pgPool.connect();
    for (let number = start; number < start + count; number++) {
      await new Promise((resolve) => setTimeout(resolve, 20 + 30 * Math.random()));
      const called = now();
      await client.query("BEGIN");
      await client.query(addJob, [number]);
      const committing = now();
      await client.query("COMMIT");
      sent.push([number, called, committing]);
    }
    client.release();
    return sent;
  },
  async go() {
    const worker = { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
    await run({
      pgPool,
      schema,
      logger,
      concurrency: Number(concurrency),
      noHandleSignals: true,
      taskList: { job: async (payload) => mark(payload) },
      preset: { worker },
    });
  },
  async report() {
    const spent = cpu === undefined ? { user: 0, system: 0 } : process.cpuUsage(cpu);
    return { marks, cpu: (spent.user + spent.system) / 1e6 };
  },
};

async function main() {
  const jobs = `${schema}._private_jobs`;
  say({ version, is_done: `SELECT NOT EXISTS (SELECT FROM ${jobs})`, clear: `TRUNCATE ${jobs}` });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [name, ...given] = JSON.parse(line);
    const answer = await commands[name](...given);
    if (name !== "go") say(answer ?? null);
  }
  process.exit(0);
}

main().catch((error) => {
  console.error(String(error));
  process.exit(1);
});
