// Strangers ask with bad credentials, in every way that reaches a different check, and like containerd they ask again with
// GET when POST is refused. None may get a token, and every answer must be a refusal, not a fault.
import encoding from 'k6/encoding';
import { Counter } from 'k6/metrics';
import exec from 'k6/execution';
import { complain, get, handleSummary, options as common, post, tokens } from './pull.js';

export { handleSummary };

const granted = new Counter('flood_granted');
const faults = new Counter('flood_faults');
const limited = new Counter('flood_limited');
const refused = new Counter('flood_refused');

export const options = {
  ...common,
  scenarios: {
    flood: { executor: 'constant-arrival-rate', rate: Number(__ENV.RATE), duration: __ENV.DURATION, preAllocatedVUs: 200 },
  },
  thresholds: { flood_granted: ['count==0'], flood_faults: ['count==0'], flood_refused: ['count>0'] },
};

// Each makes a credential out of a good token and one that has expired.
const credentials = [
  ({ expired }) => expired,
  // A good header and good claims under another signature: costs a verification.
  ({ good }) => {
    const [header, claims, signature] = good.split('.');
    return `${header}.${claims}.${signature[0] === 'A' ? 'B' : 'A'}${signature.slice(1)}`;
  },
  // A key that nobody has: must not cost the issuer a question each time.
  ({ good }) => {
    const [, claims, signature] = good.split('.');
    const header = JSON.stringify({ alg: 'RS256', kid: `stranger-${exec.scenario.iterationInTest}` });
    return `${encoding.b64encode(header, 'rawurl')}.${claims}.${signature}`;
  },
  () => 'hunter2',
];

export function setup() {
  const [pod] = tokens(0, 1);
  const [{ token: expired }] = tokens(0, 1, '2h');
  return { good: pod.token, expired, scope: `repository:${pod.namespace}/${pod.serviceAccount}:pull` };
}

export default function (data) {
  const credential = credentials[exec.scenario.iterationInTest % credentials.length](data);
  const response = post(data.scope, credential);
  judge(response);
  if (response.status === 400 || response.status === 401) {
    judge(get(data.scope, credential));
  }
}

function judge(response) {
  switch (response.status) {
    case 401:
      refused.add(1);
      break;
    case 429:
      limited.add(1);
      break;
    case 200:
      granted.add(1);
      complain('a bad credential was given a token');
      break;
    default:
      faults.add(1);
      complain(`status ${response.status} ${response.error}: ${response.body}`);
  }
}
