// One request after the other, at a rate that servers of this kind reach without effort. What they need for it is measured
// from outside.
import exec from 'k6/execution';
import { correct, handleSummary, options as common, pullOnce, tokens } from './pull.js';

export { handleSummary };

const clients = 100;
const from = Number(__ENV.FROM);
const population = Number(__ENV.PODS);
const each = Number(__ENV.EACH); // requests for a pod, one after the other

export const options = {
  ...common,
  noConnectionReuse: __ENV.KEEP_ALIVE !== 'true',
  scenarios: {
    compare: { executor: 'constant-arrival-rate', rate: Number(__ENV.RATE) / each, duration: __ENV.DURATION, preAllocatedVUs: clients },
  },
  thresholds: correct, // times are not what is compared
};

export default function () {
  const [pod] = tokens(from + (exec.scenario.iterationInTest % population), 1);
  for (let i = 0; i < each; i += 1) {
    pullOnce(pod);
  }
}
