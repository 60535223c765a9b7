// Pulls arrive at an even rate: pods are replaced, images are built. One in ten is of docker, crane or skopeo.
//
// Its thresholds are the objective of every day. They must hold as well while strangers flood the endpoint, while keys
// change, and for days.
import exec from 'k6/execution';
import { handleSummary, objective, options as common, pull, pullAsDocker, tokens } from './pull.js';

export { handleSummary };

const population = Number(__ENV.PODS);
const clients = 100;
const batch = 5; // small, so that tokens of a new key come soon

export const options = {
  ...common,
  scenarios: {
    steady: {
      executor: 'constant-arrival-rate',
      rate: Number(__ENV.RATE), // pulls a second
      duration: __ENV.DURATION,
      preAllocatedVUs: clients,
    },
  },
  thresholds: objective({ p95: 50, p99: 100 }),
};

if (__ENV.KEYS_CHANGE) {
  options.thresholds.signing_keys_seen = [`count>${clients}`]; // each client sees one when keys do not change
}

// The clients together take all pods before any of them takes one again.
let pods = [];
let round = 0;

export default function () {
  if (pods.length === 0) {
    pods = tokens(((exec.vu.idInTest - 1 + round * clients) * batch) % population, batch);
    round += 1;
  }
  const pod = pods.pop();
  if (exec.scenario.iterationInTest % 10 === 9) {
    pullAsDocker(pod);
  } else {
    pull(pod);
  }
}
