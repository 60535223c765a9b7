// What a pull asks a token endpoint, as containerd, docker and others were seen to ask it, and whether the answer is right.
import http from 'k6/http';
import encoding from 'k6/encoding';
import exec from 'k6/execution';
import { Counter, Rate, Trend } from 'k6/metrics';

const service = 'registry.example.com';

// exchangeTime is what the client waits: connection, TLS and answer.
const exchangeTime = new Trend('exchange_time', true);
const exchanges = new Counter('exchanges');
const exchangeFailed = new Rate('exchange_failed');
const signingKeys = new Counter('signing_keys_seen');

// objective returns thresholds: no good request fails, every answer is the right one, and answers come in time. With
// OBJECTIVES=errors time is left out, for machines that are busy with other things.
export function objective({ p95, p99 }) {
  const thresholds = { exchange_failed: ['rate==0'], exchanges: ['count>0'] };
  if (__ENV.OBJECTIVES !== 'errors') {
    thresholds.exchange_time = [`p(95)<${p95}`, `p(99)<${p99}`]; // milliseconds
    thresholds.dropped_iterations = ['count==0']; // this machine could not send what the scenario asks for
  }
  return thresholds;
}

// options that all scripts share. A new connection for each request: containerd builds a transport for resolving and another
// one for fetching, so neither TCP nor TLS is ever reused.
export const options = {
  noConnectionReuse: true,
  summaryTrendStats: ['count', 'med', 'p(95)', 'p(99)', 'max'],
  userAgent: 'containerd/v2.4.2',
};

// tokens returns those of some pods, by number, as kubelets have them.
export function tokens(from, count, age) {
  const query = `from=${from}&count=${count}${age ? `&age=${age}` : ''}`;
  const response = http.get(`${__ENV.ISSUER}/tokens?${query}`, { tags: { name: 'tokens' } });
  if (response.status !== 200) {
    exec.test.abort(`the issuer answered ${response.status}: ${response.body}`);
  }
  return response.json();
}

// pull asks for a new image as containerd does: once to resolve it, once to fetch it.
export function pull(pod) {
  exchange(pod, post(scopeOf(pod), pod.token));
  exchange(pod, post(scopeOf(pod), pod.token));
}

// pullAsDocker asks as docker, crane, skopeo and most other clients do.
export function pullAsDocker(pod) {
  exchange(pod, get(scopeOf(pod), pod.token));
}

function scopeOf(pod) {
  return `repository:${pod.namespace}/${pod.serviceAccount}:pull`;
}

export function post(scope, password) {
  // The fields in the order of containerd.
  const form = { client_id: 'containerd-client', grant_type: 'password', password, scope, service, username: 'serviceaccount' };
  return http.post(`${__ENV.PULLPASS}/token`, form, {
    headers: { 'Content-Type': 'application/x-www-form-urlencoded; charset=utf-8' },
    tags: { name: 'POST /token' },
  });
}

export function get(scope, password) {
  const query = `?scope=${encodeURIComponent(scope)}&service=${encodeURIComponent(service)}`;
  return http.get(`${__ENV.PULLPASS}/token${query}`, {
    headers: { Authorization: `Basic ${encoding.b64encode(`serviceaccount:${password}`)}` },
    tags: { name: 'GET /token' },
  });
}

function exchange(pod, response) {
  const { connecting, tls_handshaking, duration } = response.timings;
  exchangeTime.add(connecting + tls_handshaking + duration);
  exchanges.add(1);
  let fault;
  try {
    fault = faultOf(pod, response);
  } catch (error) {
    fault = `not the answer of a token endpoint: ${error}`;
  }
  exchangeFailed.add(fault !== '');
  if (fault !== '') {
    complain(fault);
  }
}

// faultOf says what is wrong with an answer to a good request; nothing: ''.
function faultOf(pod, response) {
  if (response.status !== 200) {
    return `status ${response.status} ${response.error}: ${response.body}`; // an error body holds no token
  }
  const answer = response.json();
  if (!answer.token || answer.token !== answer.access_token) {
    return 'token and access_token are not one token';
  }
  if (!(answer.expires_in >= 60 && answer.expires_in <= 300)) {
    return `expires_in is ${answer.expires_in}`;
  }
  const [header, payload] = answer.token.split('.');
  const claims = JSON.parse(encoding.b64decode(payload, 'rawurl', 's'));
  const subject = `system:serviceaccount:${pod.namespace}:${pod.serviceAccount}`;
  if (claims.sub !== subject || String(claims.aud) !== service) {
    return `a token of ${claims.sub} for ${claims.aud}, want ${subject} for ${service}`;
  }
  const access = [{ type: 'repository', name: `${pod.namespace}/${pod.serviceAccount}`, actions: ['pull'] }];
  if (!sameAccess(claims.access, access)) {
    return `access is ${JSON.stringify(claims.access)}, want ${JSON.stringify(access)}`;
  }
  noteKey(header);
  return '';
}

function sameAccess(got, want) {
  return Array.isArray(got) && got.length === want.length && got.every((entry, i) =>
    entry.type === want[i].type && entry.name === want[i].name && String(entry.actions) === String(want[i].actions));
}

// noteKey counts changes of the signing key, as one client sees them: its certificate is in the header.
let lastHeader;
function noteKey(header) {
  if (header !== lastHeader) {
    signingKeys.add(1);
    lastHeader = header;
  }
}

// complain shows the first fault that a client meets; all of them are counted.
let complained = false;
export function complain(fault) {
  if (!complained) {
    complained = true;
    console.error(fault);
  }
}

// handleSummary leaves the figures to the driver.
export function handleSummary(data) {
  return __ENV.SUMMARY ? { [__ENV.SUMMARY]: JSON.stringify(data) } : {};
}
