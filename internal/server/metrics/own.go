package metrics

import (
	"time"

	"github.com/pullpass/pullpass/internal/registryauth/signing"
	"github.com/pullpass/pullpass/internal/state"
)

var (
	signingKeySince = &metric{
		name: "pullpass_signing_key_since_timestamp_seconds", kind: gauge, read: true,
		help:   "When the signing key began to sign, or its certificate to be valid. Not there if neither is known.",
		labels: []label{serviceLabel},
		act:    "Managed keys with certificates change each day. One that is older: the log says why no new one is made.",
	}
	signingKeyExpiry = &metric{
		name: "pullpass_signing_key_expiry_timestamp_seconds", kind: gauge, read: true,
		help:   "When the certificate of the signing key ends, or a CA that it depends on; 0 while no key can sign. Not there if it has no certificate.",
		labels: []label{serviceLabel},
		act:    "Renew it in time: after its end nothing is issued for this service (503).",
	}
	signingCAExpiry = &metric{
		name: "pullpass_signing_ca_expiry_timestamp_seconds", kind: gauge, read: true,
		help:   "When the first of the CAs ends that the signing key depends on. Not there if it has none.",
		labels: []label{serviceLabel},
		act:    "Make another long before, and tell the registries: docs/how-to/keys.md.",
	}
	assertionKeySince = &metric{
		name: "pullpass_assertion_key_since_timestamp_seconds", kind: gauge, read: true,
		help: "When the key began to sign that tells upstreams who asks; 0 while none can. Not there without `assertions`, or with a key from a file.",
		act:  "0: upstreams that are asked as the caller are not asked (502). Older than 32 days: the log says why no new one is made.",
	}
	assertionKeyNext = &metric{
		name: "pullpass_assertion_key_next_timestamp_seconds", kind: gauge, read: true,
		help: "When the next such key signs. Not there while none waits: it is made a day before.",
	}
	servingCertificateExpiry = &metric{
		name: "pullpass_tls_certificate_expiry_timestamp_seconds", kind: gauge, read: true,
		help: "When the certificate of the public listener ends.",
		act:  "Renew it in time: after its end no client connects. A new file is read within a minute.",
	}
	clientCAExpiry = &metric{
		name: "pullpass_client_ca_expiry_timestamp_seconds", kind: gauge, read: true,
		help:   "When the first CA ends by which nodes of the cluster prove themselves with a certificate.",
		labels: []label{clusterLabel},
		act:    "Put the CA that follows into the file in time: both may be in it.",
	}
	keyMetrics = []*metric{
		signingKeySince, signingKeyExpiry, signingCAExpiry, assertionKeySince, assertionKeyNext, servingCertificateExpiry, clientCAExpiry,
	}
)

func (r reading) signingKey(service string, keys signing.Keys) {
	if end := caEnd(keys.Status()); !end.IsZero() {
		r.show(signingCAExpiry, timestamp(end), service)
	}
	key, err := keys.Signing()
	if err != nil {
		r.show(signingKeyExpiry, 0, service)
		return
	}
	if !key.Since.IsZero() {
		r.show(signingKeySince, timestamp(key.Since), service)
	}
	if !key.NotAfter.IsZero() {
		r.show(signingKeyExpiry, timestamp(key.NotAfter), service)
	}
}

func (r reading) assertionKey(keys signing.Keys) {
	key, err := keys.Signing()
	if err != nil {
		r.show(assertionKeySince, 0)
		return
	}
	if !key.Since.IsZero() {
		r.show(assertionKeySince, timestamp(key.Since))
	}
	for _, known := range keys.Status().Keys {
		if known.State == signing.StateSigning && !known.SignsUntil.IsZero() {
			r.show(assertionKeyNext, timestamp(known.SignsUntil))
		}
	}
}

// caEnd is when the first of the CAs ends that sign now; zero: there is none.
func caEnd(status signing.Status) (first time.Time) {
	for _, ca := range status.CAs {
		if ca.State == signing.StateSigning && (first.IsZero() || ca.NotAfter.Before(first)) {
			first = ca.NotAfter
		}
	}
	return first
}

// TLSEnds says when what TLS is built on ends.
type TLSEnds struct {
	Certificate time.Time
	ClientCAs   map[string]time.Time // by cluster
}

func (r reading) tls(ends TLSEnds) {
	r.show(servingCertificateExpiry, timestamp(ends.Certificate))
	for cluster, end := range ends.ClientCAs {
		r.show(clientCAExpiry, timestamp(end), cluster)
	}
}

// revisionLength is how much of a policy's revision is shown.
const revisionLength = 12

var (
	policyInfo = &metric{
		name: "pullpass_policy_info", kind: gauge, read: true,
		help:   "Always 1, for the policy that is in use.",
		labels: []label{{name: "revision", from: fromCode, means: "a hash of the policy files; one at a time"}},
		act:    "More than one `revision` among the replicas for minutes: one of them does not get, or cannot read, the new files.",
	}
	reloads = &metric{
		name: "pullpass_reloads_total", kind: counter,
		help:   "Readings of files, the first one included. After a failure the last good files stay in use.",
		labels: []label{reloadLabel, outcomeLabel},
		act:    "`failure`: the log names the file and the fault; so does `pullpass check`.",
	}
	lastReload = &metric{
		name: "pullpass_reload_last_success_timestamp_seconds", kind: gauge,
		help:   "When files were last read without a fault.",
		labels: []label{reloadLabel},
	}
	reloadLabel = label{name: "name", from: fromFiles, other: otherValue,
		means: "`config`, `policy`, `manifests`, `tls`, `kubeconfig/` with the cluster, and `signing-keys/` with the service"}
	fileMetrics = []*metric{policyInfo, reloads, lastReload}
)

var (
	redisHealthy = &metric{
		name: "pullpass_redis_healthy", kind: gauge, read: true,
		help: "1 if Redis answered the last call.",
		act:  "0: limits count for each replica alone, replays are not seen, and no replica learns of new revocations. [redis.md](../how-to/redis.md)",
	}
	redisFailures = &metric{
		name: "pullpass_redis_failures_total", kind: counter, read: true,
		help: "Calls that Redis did not answer.",
		act:  "See `pullpass_redis_healthy`; `/readyz` has the last failure.",
	}
	redisDuration = &metric{
		name: "pullpass_redis_call_duration_seconds", kind: histogram,
		help: "Time of calls to Redis, answered or not. They are given up after half a second.",
		labels: []label{
			{name: "operation", values: ClosedSet(state.Operations()...), other: otherValue},
			outcomeLabel,
		},
		buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1},
		act:     "`own`, `take` and `own_and_take` are part of the time of exchanges: keep Redis near.",
	}
	revocationsNow = &metric{
		name: "pullpass_revocations", kind: gauge, read: true,
		help: "Revocations that count now.",
	}
	revocationsRead = &metric{
		name: "pullpass_revocations_read_timestamp_seconds", kind: gauge, read: true,
		help: "When the list of revocations was last read; 0: never.",
		act:  "It is read every five seconds. Older than a minute: new revocations do not count here. 0: nothing is granted. See Redis.",
	}
	stateMetrics = []*metric{redisHealthy, redisFailures, redisDuration, revocationsNow, revocationsRead}
)

func (r reading) redis(s state.RedisStatus) {
	r.show(redisHealthy, number(s.Healthy))
	r.show(redisFailures, float64(s.Failures))
}

func (r reading) revocations(s state.RevocationsStatus) {
	r.show(revocationsNow, float64(s.Entries))
	r.show(revocationsRead, timestamp(s.Read))
}

var (
	auditFailures = &metric{
		name: "pullpass_audit_failures_total", kind: counter, read: true,
		help: "Audit events that could not be written.",
		act:  "Any: the audit log has holes. The log says why; see the disk, or the reader of standard output.",
	}
	auditWaiting = &metric{
		name: "pullpass_audit_waiting_events", kind: gauge, read: true,
		help: "Audit events that are not written yet.",
		act:  "Above a few: writing takes long, and answers wait for up to a second.",
	}
	telemetryFailures = &metric{
		name: "pullpass_telemetry_failures_total", kind: counter, read: true,
		help: "Failures to send traces or metrics to the OpenTelemetry collector. Not there if none is configured.",
		act:  "Requests are not affected. The log has one failure a minute. [telemetry.md](../how-to/telemetry.md)",
	}
	buildInfo = &metric{
		name: "pullpass_build_info", kind: gauge,
		help:   "Always 1.",
		labels: []label{{name: "version", from: fromCode}},
	}
	processMetrics = []*metric{auditFailures, auditWaiting, telemetryFailures, buildInfo}
)
