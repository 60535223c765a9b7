// Every node of a cluster restarts all its pods within a minute: power is back, or a node image was changed everywhere.
//
// A virtual user is a kubelet. It pulls one image at a time (serializeImagePulls), and at most registryBurst at once: what
// is above fails with "pull QPS exceeded" and comes back after the back-off of 10 seconds, lengthened by up to a half. So a
// node's storm is 10 pulls at once, and the others between 10 and 15 seconds later. Blobs take no time here, which is the
// worst case for the token endpoint.
import { sleep } from 'k6';
import exec from 'k6/execution';
import { handleSummary, objective, options as common, pull, tokens } from './pull.js';

export { handleSummary };

const podsPerNode = 30;
const registryBurst = 10;
const backOff = 10;
const longestBackOff = 15;
const minute = 60;

const nodes = Number(__ENV.NODES);
const pace = Number(__ENV.WINDOW) / minute; // below 1, the whole minute is shorter, and all the harder

export const options = {
  ...common,
  scenarios: {
    storm: { executor: 'per-vu-iterations', vus: nodes, iterations: 1, maxDuration: '10m' },
  },
  // Nobody watches a pod for less than a second while a cluster restarts.
  thresholds: objective({ p95: 500, p99: 1000 }),
};

export default function () {
  const node = exec.vu.idInTest - 1;
  const pods = tokens(node * podsPerNode, podsPerNode);
  const start = ((minute - longestBackOff) * node) / nodes; // all nodes, one after the other
  const due = pods.map((_, i) => start + (i < registryBurst ? 0 : backOff + ((longestBackOff - backOff) * (i - registryBurst)) / (pods.length - registryBurst)));
  for (let i = 0; i < pods.length; i += 1) {
    const wait = due[i] * pace - (Date.now() - exec.scenario.startTime) / 1000;
    if (wait > 0) {
      sleep(wait);
    }
    pull(pods[i]);
  }
}
