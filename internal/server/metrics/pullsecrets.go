package metrics

import (
	"net/http"

	"github.com/pullpass/pullpass/internal/pullsecrets/tokensecrets"
)

var (
	pullSecretsLeader = &metric{
		name: "pullpass_pull_secrets_leader", kind: gauge, read: true,
		help: "1 if this replica leads. The others wait.",
		act:  alert("PullpassPullSecretsUnled"),
	}
	pullSecretsNow = &metric{
		name: "pullpass_pull_secrets", kind: gauge, read: true,
		help:   "Opted-in ServiceAccounts: with a valid token (`kept`), without one (`waiting`), or whose Secret has another owner (`foreign`). Absent at replicas that do not lead.",
		labels: []label{{name: "state", values: []string{"kept", "waiting", "foreign"}}},
		act:    "`waiting` for minutes: see `pullpass_pull_secret_failures_total`. `foreign`: delete the Secret that an event on the ServiceAccount names, or opt out.",
	}
	pullSecretOverdue = &metric{
		name: "pullpass_pull_secret_overdue_seconds", kind: gauge, read: true,
		help: "Time by which the most overdue token is late; 0: none is. A token that its own namespace holds up, such as by a quota, does not count. Absent at replicas that do not lead.",
		act:  alert("PullpassPullSecretLate"),
	}
	pullSecretWrites = &metric{
		name: "pullpass_pull_secret_writes_total", kind: counter, read: true,
		help:   "Created Secrets, and tokens written to Secrets.",
		labels: []label{{name: "kind", values: []string{"secret", "token"}}},
		act:    "More than two tokens an hour for each ServiceAccount: another client changes the Secrets.",
	}
	pullSecretFailures = &metric{
		name: "pullpass_pull_secret_failures_total", kind: counter, read: true,
		help: "Failed attempts. Each is repeated within five minutes.",
		act:  alert("PullpassPullSecretLate"),
	}
	pullSecretMetrics = []*metric{pullSecretsLeader, pullSecretsNow, pullSecretOverdue, pullSecretWrites, pullSecretFailures}
)

// PullSecrets returns the metrics of "pullpass pull-secrets controller", and of its
// process.
func PullSecrets(status func() tokensecrets.Status) http.Handler {
	return newProgram(pullSecretMetrics, func(r reading) {
		s := status()
		r.show(pullSecretsLeader, number(s.Leads))
		r.show(pullSecretWrites, float64(s.Created), "secret")
		r.show(pullSecretWrites, float64(s.Renewed), "token")
		r.show(pullSecretFailures, float64(s.Failed))
		if !s.Leads {
			return
		}
		r.show(pullSecretsNow, float64(s.Kept), "kept")
		r.show(pullSecretsNow, float64(s.Waiting), "waiting")
		r.show(pullSecretsNow, float64(s.Foreign), "foreign")
		r.show(pullSecretOverdue, s.Overdue.Seconds())
	})
}
