// Code that both workloads share: the server's port, named checks, and a wait with a timeout.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';

const { PANTALA_PORT, PANTALA_TLS_CA, PANTALA_TLS_CERT, PANTALA_TLS_KEY } = process.env;

/** Certificates, if the port is encrypted. */
const tls = PANTALA_TLS_CA && {
  ca: readFileSync(PANTALA_TLS_CA),
  cert: readFileSync(PANTALA_TLS_CERT),
  key: readFileSync(PANTALA_TLS_KEY),
};

export const options = { host: '127.0.0.1', port: Number(PANTALA_PORT), ...(tls && { tls }) };
export const connection = { ...options, maxRetriesPerRequest: null };
const WAIT_MAX_MS = 60_000;

/** Runs one check. If it fails or hangs, prints its name and exits. */
export async function check(name, body) {
  const start = Date.now();
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done after ${WAIT_MAX_MS} ms`)), WAIT_MAX_MS);
  });
  try {
    await Promise.race([body(), late]);
  } catch (error) {
    console.error(`FAILED ${name}:`, error);
    process.exit(1);
  } finally {
    clearTimeout(timer);
  }
  console.log(`ok ${name} (${Date.now() - start} ms)`);
}

/** Waits until `condition` holds. */
export async function until(what, condition) {
  const end = Date.now() + WAIT_MAX_MS;
  while (!(await condition())) {
    assert.ok(Date.now() < end, `${what} did not happen`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
