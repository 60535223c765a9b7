package metrics

import (
	"time"

	"github.com/pullpass/pullpass/internal/registryauth/signing"
	"github.com/pullpass/pullpass/internal/state"
)

var (
	signingKeySince = &metric{
		name: "pullpass_signing_key_since_timestamp_seconds", kind: gauge, read: true,
		help:   "Start of the signing key's use, or of its certificate's validity. Absent if neither is known.",
		labels: []label{serviceLabel},
		act:    "Managed keys with certificates change each day. Older: the log says why there is no new one.",
	}
	signingKeyExpiry = &metric{
		name: "pullpass_signing_key_expiry_timestamp_seconds", kind: gauge, read: true,
		help:   "Expiry of the signing key's certificate or of a CA above it, whichever is first; 0 while no key can sign. Absent without a certificate.",
		labels: []label{serviceLabel},
		act:    alert("PullpassSigningKeyMissing", "PullpassSigningKeyEnds"),
	}
	signingCAExpiry = &metric{
		name: "pullpass_signing_ca_expiry_timestamp_seconds", kind: gauge, read: true,
		help:   "Earliest expiry of the CAs above the signing key. Absent without one.",
		labels: []label{serviceLabel},
		act:    alert("PullpassSigningCAEnds"),
	}
	assertionKeySince = &metric{
		name: "pullpass_assertion_key_since_timestamp_seconds", kind: gauge, read: true,
		help: "Start of the assertion signing key's use; 0 while no key can sign. Absent without `assertions`, or with a key from a file.",
		act:  alert("PullpassAssertionKeyMissing") + ". Older than 32 days: the log says why there is no new key.",
	}
	assertionKeyNext = &metric{
		name: "pullpass_assertion_key_next_timestamp_seconds", kind: gauge, read: true,
		help: "Start of the next assertion signing key's use. Absent until that key is made, a day before.",
	}
	servingCertificateExpiry = &metric{
		name: "pullpass_tls_certificate_expiry_timestamp_seconds", kind: gauge, read: true,
		help: "Expiry of the public listener's certificate.",
		act:  alert("PullpassCertificateEnds"),
	}
	clientCAExpiry = &metric{
		name: "pullpass_client_ca_expiry_timestamp_seconds", kind: gauge, read: true,
		help:   "Earliest expiry of the CAs for node certificates.",
		labels: []label{clusterLabel},
		act:    alert("PullpassClientCAEnds"),
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

// caEnd is the earliest expiry of the CAs that sign now; zero: there is none.
func caEnd(status signing.Status) (first time.Time) {
	for _, ca := range status.CAs {
		if ca.State == signing.StateSigning && (first.IsZero() || ca.NotAfter.Before(first)) {
			first = ca.NotAfter
		}
	}
	return first
}

// TLSEnds has the expiry of the certificates for TLS.
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

// revisionLength is the number of characters shown of a policy's revision.
const revisionLength = 12

var (
	policyInfo = &metric{
		name: "pullpass_policy_info", kind: gauge, read: true,
		help:   "Always 1, for the policy in use.",
		labels: []label{{name: "revision", from: fromCode, means: "hash of the policy files; one at a time"}},
		act:    alert("PullpassPoliciesDiffer"),
	}
	reloads = &metric{
		name: "pullpass_reloads_total", kind: counter,
		help:   "Reads of files, including the first. After a failure, the last valid files stay in use.",
		labels: []label{reloadLabel, outcomeLabel},
		act:    alert("PullpassReloadFails"),
	}
	lastReload = &metric{
		name: "pullpass_reload_last_success_timestamp_seconds", kind: gauge,
		help:   "Time of the last successful read.",
		labels: []label{reloadLabel},
	}
	reloadLabel = label{name: "name", from: fromFiles, other: otherValue,
		means: "`config`, `policy`, `policy-trial`, `manifests`, `tls`, `upstreams`, `upstream-passwords`, `assertions`, `kubeconfig/` with the cluster, and `signing-keys/` with the service"}
	deprecatedFiles = &metric{
		name: "pullpass_deprecated_files", kind: gauge, read: true,
		help: "Configuration and policy files in use that a later release will not read.",
		act:  "The log names each and the remedy: [promises.md](promises.md).",
	}
	fileMetrics = []*metric{policyInfo, reloads, lastReload, deprecatedFiles}
)

var (
	redisHealthy = &metric{
		name: "pullpass_redis_healthy", kind: gauge, read: true,
		help: "1 if Redis answered the last call.",
		act:  alert("PullpassRedisDown"),
	}
	redisFailures = &metric{
		name: "pullpass_redis_failures_total", kind: counter, read: true,
		help: "Failed calls to Redis.",
		act:  alert("PullpassRedisDown"),
	}
	redisDuration = &metric{
		name: "pullpass_redis_call_duration_seconds", kind: histogram,
		help: "Time of calls to Redis, including failed ones. The timeout is half a second.",
		labels: []label{
			{name: "operation", values: ClosedSet(state.Operations()...), other: otherValue},
			outcomeLabel,
		},
		buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1},
		act:     "Token requests wait for `own`, `take` and `own_and_take`: run Redis near the replicas.",
	}
	revocationsNow = &metric{
		name: "pullpass_revocations", kind: gauge, read: true,
		help: "Revocations in force.",
	}
	revocationsRead = &metric{
		name: "pullpass_revocations_read_timestamp_seconds", kind: gauge, read: true,
		help: "Time of the last successful read of the revocations; 0: never.",
		act:  alert("PullpassRevocationsOld"),
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
		act:  alert("PullpassAuditLost"),
	}
	auditWaiting = &metric{
		name: "pullpass_audit_waiting_events", kind: gauge, read: true,
		help: "Audit events that are not yet written.",
		act:  "Above a few: writing is slow, and responses wait for up to a second.",
	}
	telemetryFailures = &metric{
		name: "pullpass_telemetry_failures_total", kind: counter, read: true,
		help: "Failures to send to the OpenTelemetry collector. Absent if none is configured.",
		act:  "The log has one failure a minute. [Requests](../how-to/telemetry.md) are not affected.",
	}
	buildInfo = &metric{
		name: "pullpass_build_info", kind: gauge,
		help:   "Always 1.",
		labels: []label{{name: "version", from: fromCode}},
	}
	processMetrics = []*metric{auditFailures, auditWaiting, telemetryFailures, buildInfo}
)
