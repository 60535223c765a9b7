package migration

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/pullsecrets"
)

// The verdicts of rows.
const (
	verdictNotChecked  = "not checked"
	verdictPolicyFirst = "policy first"
	verdictReady       = "ready"
	verdictStillUsed   = "still used"
	verdictUnused      = "unused: delete"
	verdictUnknown     = "unknown"
)

// The steps are in the order that breaks no pull. A kubelet tries the imagePullSecrets first, and
// the credentials of its plugin only when they fail. So both can be present. While a Secret gives
// access to the registry, nothing shows whether Pullpass would.
const (
	stepNodes = iota + 1
	stepPolicy
	stepRemove
	stepWatch
	stepDelete
)

// legacyTokenPeriod is how long a token must be unused before the API server marks it invalid by
// default (KEP-2799).
const legacyTokenPeriod = 365 * 24 * time.Hour

// Plan is the remaining work in a cluster. Its exported fields are the output.
type Plan struct {
	Cluster    string
	Namespace  string
	Registries []Registry
	Rows       []Row
	Unread     []pullsecrets.Unread
	Migrated   int // workloads that pull without imagePullSecrets
	StaticPods int

	options   Options
	config    string // file name of the configuration
	now       time.Time
	inventory *pullsecrets.Inventory
	grants    *grants
	users     map[pullsecrets.Key][]string // by Secret
}

type Registry struct {
	Host    string `json:"host"`
	Service string `json:"service"`
}

// Row is the next step for one object.
type Row struct {
	Step      int      `json:"step"`
	Verdict   string   `json:"verdict"`
	Kind      string   `json:"kind"`
	Namespace string   `json:"namespace,omitempty"`
	Name      string   `json:"name"`
	Account   string   `json:"serviceAccount,omitempty"`
	Pods      int      `json:"pods,omitempty"`
	Secrets   []string `json:"secrets,omitempty"` // that imagePullSecrets name
	Pulls     []grant  `json:"pulls,omitempty"`
	UsedBy    []string `json:"usedBy,omitempty"`
	Why       string   `json:"why"`
	Do        string   `json:"do"`
	Command   string   `json:"command,omitempty"`
}

func (m *Plan) plan(ctx context.Context) error {
	m.findUsers()
	blocked := map[pullsecrets.Key][]string{} // by ServiceAccount: workloads whose pulls are not granted
	heirs := map[pullsecrets.Key]int{}        // by ServiceAccount: workloads whose pods get its imagePullSecrets
	for _, w := range m.inventory.Workloads {
		row, inherits, err := m.workload(ctx, w)
		if err != nil {
			return err
		}
		account := pullsecrets.Key{Namespace: w.Namespace, Name: w.Account}
		if inherits {
			heirs[account]++
			if row.Verdict == verdictPolicyFirst {
				blocked[account] = append(blocked[account], kindAndName(w.Kind, w.Name))
			}
		}
		switch {
		case len(row.Secrets) > 0:
			m.Rows = append(m.Rows, row)
		case len(w.Images) > 0:
			m.Migrated++
		}
	}
	for _, a := range m.inventory.Accounts {
		if row, ok := m.account(a, blocked[a.Key], heirs[a.Key]); ok {
			m.Rows = append(m.Rows, row)
		}
	}
	for _, s := range m.inventory.Secrets {
		m.Rows = append(m.Rows, m.secret(s))
	}
	for _, t := range m.inventory.Tokens {
		m.Rows = append(m.Rows, m.token(t))
	}
	if len(m.Rows) > 0 {
		m.nodes()
	}
	slices.SortFunc(m.Rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Step, b.Step), strings.Compare(a.Namespace, b.Namespace),
			strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name), strings.Compare(a.Account, b.Account))
	})
	return nil
}

func (m *Plan) nodes() {
	for _, r := range m.Registries {
		m.Rows = append(m.Rows, Row{
			Step: stepNodes, Verdict: verdictNotChecked, Kind: "Nodes", Name: r.Host,
			Why: "nodes cannot be looked into from here",
			Do:  "judge the files of every kind of node before step 3: name them after --lint",
			Command: "pullpass kubelet-config --config " + term.ShellWord(m.config) + " --cluster " + term.ShellWord(m.Cluster) +
				" --registry " + term.ShellWord(r.Host) + " --service " + term.ShellWord(r.Service) + " --lint FILES",
		})
	}
}

// relevant returns the names of Secrets that are not only for other registries.
func (m *Plan) relevant(namespace string, names []string) (relevant []string) {
	for _, name := range names {
		if m.inventory.State(namespace, name) != pullsecrets.Other && !slices.Contains(relevant, name) {
			relevant = append(relevant, name)
		}
	}
	return relevant
}

// hosts describes the registries of the Secrets. opens is false if none of the Secrets can be used
// to pull.
func (m *Plan) hosts(namespace string, names []string) (why string, opens, unknown bool) {
	var parts []string
	for _, name := range names {
		switch m.inventory.State(namespace, name) {
		case pullsecrets.Missing:
			parts = append(parts, "there is no pull Secret "+term.Plain(name))
		case pullsecrets.Broken:
			parts = append(parts, "the kubelet cannot read Secret "+term.Plain(name)+", and pulls nothing for pods that name it")
		case pullsecrets.Unknown:
			unknown = true
			parts = append(parts, "unknown hosts: not allowed to read Secret "+term.Plain(name))
		default:
			opens = true
		}
	}
	return strings.Join(parts, "; "), opens, unknown
}

// workload judges a Workload. inherits reports whether its next pods get the imagePullSecrets of
// their ServiceAccount. The admission plugin adds these to pods that have none of their own.
func (m *Plan) workload(ctx context.Context, w pullsecrets.Workload) (row Row, inherits bool, err error) {
	account := pullsecrets.Key{Namespace: w.Namespace, Name: w.Account}
	fromAccount := m.relevant(w.Namespace, m.inventory.Accounts[account].PullSecrets)
	own, carried := m.relevant(w.Namespace, w.Own), m.relevant(w.Namespace, w.Carried)
	if !w.Template {
		// A pod does not tell its own imagePullSecrets from inherited ones. Those that its
		// ServiceAccount also has are inherited.
		own = slices.DeleteFunc(slices.Clone(carried), func(name string) bool { return slices.Contains(fromAccount, name) })
	}
	inherits = len(fromAccount) > 0 && (w.Template && len(w.Own) == 0 || !w.Template && len(own) == 0)
	names := slices.Concat(own, carried)
	if inherits {
		names = append(names, fromAccount...)
	}
	names = m.relevant(w.Namespace, names) // each once
	row = Row{Kind: w.Kind, Namespace: w.Namespace, Name: w.Name, Account: w.Account, Pods: w.Pods, Secrets: names}
	denied := 0
	for _, image := range w.Images {
		grant, err := m.grants.ask(ctx, m.inventory, account, image)
		if err != nil {
			return row, inherits, err
		}
		row.Pulls = append(row.Pulls, grant)
		if !grant.Granted {
			denied++
		}
	}
	why, opens, unknown := m.hosts(w.Namespace, names)
	switch {
	case denied > 0 && (opens || unknown):
		row.Step, row.Verdict = stepPolicy, verdictPolicyFirst
		why = joined(fmt.Sprintf("the policy does not grant %d of %d images", denied, len(w.Images)), why)
		row.Do = remedies(row.Pulls)
	case len(own) > 0:
		row.Step, row.Verdict = stepRemove, verdictReady
		row.Do, row.Command = m.removeFromTemplate(w, own)
	default:
		row.Step, row.Verdict = stepWatch, verdictReady
		row.Do, row.Command = m.renewPods(w)
		if inherits {
			why = joined("through ServiceAccount "+term.Plain(w.Account), why)
			row.Do = "after its ServiceAccount: " + row.Do
		} else {
			why = joined("its pods still have what new ones do not get", why)
		}
	}
	switch {
	case row.Verdict == verdictReady && unknown:
		row.Verdict = verdictUnknown
		row.Do, row.Command = "let an administrator run this who may read Secrets", ""
	case len(w.Images) == 0:
		why = joined(why, "pulls nothing from the registry now")
	case denied == 0:
		why = joined(why, "the policy grants every image")
	}
	row.Why = why
	return row, inherits, nil
}

func (m *Plan) account(a pullsecrets.Account, blocked []string, heirs int) (Row, bool) {
	names := m.relevant(a.Namespace, a.PullSecrets)
	if len(names) == 0 {
		return Row{}, false
	}
	row := Row{Kind: "ServiceAccount", Namespace: a.Namespace, Name: a.Name, Secrets: names}
	why, opens, unknown := m.hosts(a.Namespace, names)
	switch {
	case len(blocked) > 0:
		row.Step, row.Verdict, row.UsedBy = stepPolicy, verdictPolicyFirst, blocked
		why = joined("pulls through it are not granted", why)
		row.Do = "first: " + several(blocked)
	case unknown:
		row.Step, row.Verdict = stepRemove, verdictUnknown
		row.Do = "let an administrator run this who may read Secrets"
	case opens && !m.inventory.Complete():
		row.Step, row.Verdict = stepRemove, verdictUnknown
		why = joined("who uses it is not known", why)
		row.Do = "let an administrator run this who may list all workloads"
	default:
		row.Step, row.Verdict = stepRemove, verdictReady
		if heirs > 0 && opens {
			why = joined(fmt.Sprintf("the policy grants every image of the workloads that use it (%d)", heirs), why)
		} else if opens {
			why = joined("no workload uses it", why)
		}
		row.Do, row.Command = m.removeReferences("serviceaccount", a.Key, "/imagePullSecrets", a.PullSecrets, names)
	}
	row.Why = why
	return row, true
}

// secret judges a pull Secret. Every reference to it counts as use, even without an image of the
// registry: the Secret may also be for other registries.
func (m *Plan) secret(s pullsecrets.Secret) Row {
	row := Row{Step: stepDelete, Kind: "Secret", Namespace: s.Namespace, Name: s.Name, UsedBy: m.users[s.Key]}
	var parts []string
	if s.Legacy {
		parts = append(parts, "its password is a legacy ServiceAccount token, which never expires")
	}
	if s.Others {
		parts = append(parts, "is for other registries, too")
	}
	switch {
	case len(row.UsedBy) > 0:
		row.Verdict = verdictStillUsed
		parts = append(parts, "used by "+several(row.UsedBy))
		row.Do = "keep it until nothing uses it"
	case !m.inventory.Complete():
		row.Verdict = verdictUnknown
		parts = append(parts, "not all workloads could be listed")
		row.Do = "let an administrator run this who may list them"
	default:
		row.Verdict = verdictUnused
		parts = append(parts, "no ServiceAccount, pod or pod template names it")
		row.Do, row.Command = m.deleteSecret(s.Key)
		if s.Owner != (pullsecrets.Owner{}) {
			row.Do, row.Command = "delete what makes it, or it comes back: "+kindAndName(s.Owner.Kind, s.Owner.Name), ""
		}
	}
	row.Why = strings.Join(parts, "; ")
	return row
}

// findUsers notes the objects that name each Secret.
func (m *Plan) findUsers() {
	m.users = map[pullsecrets.Key][]string{}
	note := func(user, namespace string, secrets ...string) {
		for _, name := range secrets {
			key := pullsecrets.Key{Namespace: namespace, Name: name}
			m.users[key] = append(m.users[key], user)
		}
	}
	pull := map[pullsecrets.Key]bool{}
	for _, s := range m.inventory.Secrets {
		pull[s.Key] = true
	}
	for _, a := range m.inventory.Accounts {
		note(kindAndName("ServiceAccount", a.Name), a.Namespace, a.PullSecrets...)
		for _, name := range a.Secrets { // builds of OpenShift push with these; legacy tokens are judged by their use
			if pull[pullsecrets.Key{Namespace: a.Namespace, Name: name}] {
				note(kindAndName("ServiceAccount", a.Name), a.Namespace, name)
			}
		}
	}
	for _, w := range m.inventory.Workloads {
		note(kindAndName(w.Kind, w.Name), w.Namespace, slices.Concat(w.Own, w.Carried, w.Mounted)...)
	}
	for key, users := range m.users {
		slices.Sort(users)
		m.users[key] = slices.Compact(users)
	}
}

// token judges a legacy token as KEP-2799 does: warn, measure, remove.
func (m *Plan) token(t pullsecrets.Token) Row {
	row := Row{Step: stepDelete, Verdict: verdictStillUsed, Kind: "Secret", Namespace: t.Namespace, Name: t.Name, Account: t.Account}
	kind := "made by hand"
	if t.AutoGenerated {
		kind = "auto-generated"
	}
	tracked, last := m.inventory.TokensTracked, t.LastUsed
	row.UsedBy = slices.Clone(m.users[t.Key])
	for _, secret := range t.PasswordOf {
		row.UsedBy = append(row.UsedBy, "Secret "+term.Plain(secret))
	}
	why := "legacy token of ServiceAccount " + term.Plain(t.Account) + ", " + kind
	day := func(at time.Time) string { return at.Format(time.DateOnly) }
	switch {
	case len(t.PasswordOf) > 0:
		why += "; is the password of pull Secret " + several(plainTexts(t.PasswordOf))
		row.Do = "keep it until that Secret is deleted: without it, that password opens nothing"
	case len(row.UsedBy) > 0:
		why += "; containers get it: " + several(row.UsedBy)
		row.Do = "give them a projected volume with a serviceAccountToken instead"
	case !t.InvalidSince.IsZero() && !last.Before(t.InvalidSince):
		why += "; invalid since " + day(t.InvalidSince) + ", and a client tried it on " + day(last)
		row.Do = "find out who: user agent and address are in the API server's audit log (authentication.k8s.io/legacy-token-invalidated)"
	case !m.inventory.Complete():
		row.Verdict = verdictUnknown
		why += "; not all workloads could be listed"
		row.Do = "let an administrator run this who may list them"
	case !t.InvalidSince.IsZero():
		row.Verdict = verdictUnused
		why += "; invalid since " + day(t.InvalidSince) + ", and not tried since"
		row.Do, row.Command = m.deleteSecret(t.Key)
	case tracked.IsZero():
		row.Verdict = verdictUnknown
		why += "; whether it is used is not known: the API server does not say since when it tracks that"
		row.Do = "see the audit log of the API server (annotations authentication.k8s.io/legacy-token-...)"
	case m.now.Sub(last) < legacyTokenPeriod: // zero is long ago
		why += "; used with the API server on " + day(last)
		row.Do = "find its user in the API server's audit log, and give it a token of kubectl create token, or a projected volume"
	case m.now.Sub(tracked) < legacyTokenPeriod:
		row.Verdict = verdictUnknown
		why += "; not used since " + day(tracked) + ", when the API server began to track it: less than a year"
		row.Do = "wait, or mark it invalid and watch; taking the label away makes it valid again"
		row.Command = m.markInvalid(t.Key)
	default:
		row.Step, row.Verdict = stepWatch, verdictReady
		why += "; not used for a year"
		row.Do = "mark it invalid and watch; taking the label away makes it valid again"
		row.Command = m.markInvalid(t.Key)
	}
	row.Why = why
	return row
}
