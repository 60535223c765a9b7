package explain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/describe"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/policy/reach"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// listTimeout bounds the lists of all ServiceAccounts of all clusters.
const listTimeout = 2 * time.Minute

// WhoRequest selects an action and a repository.
type WhoRequest struct {
	Action, Repository string
	Service            string // may be empty if there is only one
}

// Known is the state to query: the serving state, or the contents of the files.
type Known struct {
	Config  *config.Config
	Policy  *policy.Policy
	Objects *setup.Objects
}

// Open reads the policy, and prepares the connections to API servers.
func Open(cfg *config.Config, stderr io.Writer) (Known, error) {
	policy, err := setup.LoadPolicy(cfg)
	if err != nil {
		return Known{}, err
	}
	objects, err := setup.OpenObjects(cfg, policy.AnnotationKeys(), slog.New(slog.NewTextHandler(stderr, nil)), nil)
	return Known{cfg, policy, objects}, err
}

func (k Known) explainer(logger *slog.Logger) *explainer {
	return &explainer{cfg: k.Config, policy: k.Policy, objects: k.Objects, logger: logger}
}

// Who returns the subjects that have access to a repository. The ServiceAccounts of a cluster that
// cannot be listed are reported as unknown.
func (k Known) Who(ctx context.Context, r WhoRequest) (*reach.Who, error) {
	registry, err := config.FindRegistry(k.Config, r.Service)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(reach.Actions, r.Action) {
		return nil, fmt.Errorf("%s is not an action; use pull, push or delete", term.QuoteName(r.Action))
	}
	scopes, err := registryauth.ParseScopes([]string{"repository:" + r.Repository + ":" + r.Action})
	if err != nil || len(scopes) != 1 || scopes[0].Type != "repository" {
		return nil, fmt.Errorf("%s is not the name of a repository; write it as images are named, without registry, tag and digest", term.QuoteName(r.Repository))
	}
	if judged := setup.Scopes(k.Config)[registry.Service]; judged != nil {
		if scopes = judged("", scopes); len(scopes) == 0 {
			return nil, fmt.Errorf("%s is behind no upstream of the gateway (upstreams[].name)", term.QuoteName(r.Repository))
		}
	}
	who, err := reach.FindWho(ctx, k.Policy, registry.Service, scopes[0], k.Accounts(ctx))
	if err != nil {
		return nil, err
	}
	who.Closed = closedActions(k.Config, who.Service, func(upstream string) []string {
		if !strings.HasPrefix(who.Repository, upstream+"/") {
			return nil
		}
		return []string{who.Action}
	})
	return who, nil
}

// Describe says what each rule and denial means, also those of objects that count.
func (k Known) Describe() *describe.Description {
	objects := map[string]*policy.Policies{}
	for _, c := range k.Objects.Connected {
		objects[c.Name] = c.Policies()
	}
	return describe.Of(k.Policy, objects)
}

// Accounts returns all ServiceAccounts of each cluster with the rules of its objects, or why they
// are not known.
func (k Known) Accounts(ctx context.Context) []reach.Accounts {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var all []reach.Accounts
	for _, c := range k.Config.Clusters {
		known := reach.Accounts{Cluster: c.Name, Issuer: c.Issuer}
		listed, can, err := k.Objects.List(ctx, c.Name)
		if known.Unknown = err; err == nil && !can {
			known.Unknown = errors.New("no API server is asked (clusters[].kubernetes)")
		}
		known.Objects = reach.Objects{Policies: listed.Policies, Requests: listed.Requests, HasRequests: c.Kubernetes.Objects.Requests}
		if err != nil && (c.Kubernetes.Objects.Policies || c.Kubernetes.Objects.Requests) {
			known.Objects.Policies = policy.NewPolicies(setup.PolicyObjects(c.Kubernetes.Objects).Within)
		}
		for _, a := range listed.ServiceAccounts {
			known.All = append(known.All, reach.Account(a))
		}
		all = append(all, known)
	}
	return all
}

// What returns the access of a ServiceAccount, CLUSTER/NAMESPACE/NAME. It does not check
// revocations.
func (k Known) What(ctx context.Context, account string) (*reach.What, error) {
	name, err := names.ParseObject(account)
	if err != nil || name.Check() != nil {
		return nil, fmt.Errorf("%s is not CLUSTER/NAMESPACE/SERVICEACCOUNT", term.QuoteName(account))
	}
	if err := config.KnownCluster(k.Config, "CLUSTER", name.Cluster); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	e := k.explainer(slog.New(slog.DiscardHandler))
	e.source = sourceName
	e.id = identityNamed(e.cfg.Cluster(name.Cluster), name)
	if err := e.live(ctx); err != nil {
		return nil, err
	}
	if err := k.Objects.ListPolicyObjects(ctx, name.Cluster); err != nil {
		return nil, err
	}
	facts, err := k.Objects.Lookup(ctx, *e.id, nil)
	if err != nil {
		return nil, err
	}
	var services []string
	for i := range k.Config.Registries {
		services = append(services, k.Config.Registries[i].Service)
	}
	subject := policy.Subject{Identity: e.id, Annotations: facts.Annotations, NamespaceLabels: facts.NamespaceLabels, Objects: facts.Objects}
	what := reach.FindWhat(k.Policy, name.String(), subject, services)
	for i := range what.Services {
		s := &what.Services[i]
		s.Closed = closedActions(k.Config, s.Service, func(upstream string) []string {
			actions := s.Actions(pattern.Pattern(upstream + "/**"))
			if slices.Contains(actions, "*") {
				return reach.Actions
			}
			return actions
		})
	}
	return what, nil
}

// maxAccounts is how many ServiceAccounts of a cluster the text output names. JSON has all.
const maxAccounts = 100

// WriteWho writes the result as text.
func WriteWho(w io.Writer, a *reach.Who) error {
	p := &printer{}
	p.line("who can", term.Words(a.Action, a.Repository, "at", a.Service))
	for _, d := range a.Deny {
		p.blank()
		p.line("never", fmt.Sprintf("whom the deny rule %s matches (%s):", d.Name, reach.Where(d.Origin, d.Cluster)))
		for _, s := range d.Subjects {
			p.line("", term.Line(reach.Text(s)))
		}
	}
	for _, r := range a.Rules {
		p.blank()
		p.line("by rule", fmt.Sprintf("%s (%s), by %s", r.Name, reach.Where(r.Origin, r.Cluster), strings.Join(r.Patterns, " ")))
		if r.Within != nil {
			p.line("", "and within "+strings.Join(r.Within, " "))
		}
		if r.Anonymous {
			p.line("", "all callers, with a token or without")
		}
		if r.Annotation != "" {
			p.line("", "if the ServiceAccount's annotation "+r.Annotation+" asks for it:")
		}
		if r.Requests {
			p.line("", "if a RepositoryAccess asks for it:")
		}
		for _, s := range r.Subjects {
			p.line("", term.Line(s.String()))
		}
		if r.Requests && r.Asked == nil && a.Knows(r.Cluster) {
			p.line("", "no RepositoryAccess asks for it now")
		}
		for i, asked := range r.Asked {
			if i == maxAccounts {
				p.line("", fmt.Sprintf("and %d more (-o json has all)", len(r.Asked)-i))
				break
			}
			p.line("", fmt.Sprintf("the RepositoryAccess %s asks for it now, for %s", term.Words(asked.Object), strings.Join(asked.ServiceAccounts, ", ")))
		}
	}
	if len(a.Rules) == 0 {
		p.blank()
		p.line("nobody", "no rule allows it")
	}
	for _, c := range a.Clusters {
		p.blank()
		if c.Unknown != "" {
			p.line("now", fmt.Sprintf("cluster %s: its ServiceAccounts and objects are not known: %s", c.Name, term.Line(c.Unknown)))
			continue
		}
		p.line("now", fmt.Sprintf("cluster %s: %d of %d ServiceAccounts", c.Name, len(c.Granted), c.ServiceAccounts))
		for i, account := range c.Granted {
			if i == maxAccounts {
				p.line("", fmt.Sprintf("and %d more (-o json has all)", len(c.Granted)-i))
				break
			}
			p.line("", fmt.Sprintf("%s, by %s", term.Words(account.Namespace+"/"+account.Name), strings.Join(account.Rules, ", ")))
		}
		p.unjudged(c.Unjudged)
	}
	p.closed("closed", a.Closed)
	_, err := w.Write(p.out.Bytes())
	return err
}

// unjudged names the denials and rules that the answer ignores.
func (p *printer) unjudged(names []string) {
	if names != nil {
		p.line("not judged", "only a token decides whether these match: "+strings.Join(names, ", "))
	}
}

// WriteWhat writes the result as text.
func WriteWhat(w io.Writer, a *reach.What) error {
	p := &printer{}
	p.line("subject", term.Words(a.ServiceAccount))
	for _, s := range a.Services {
		p.blank()
		p.line("service", term.Words(s.Service))
		if s.DeniedBy != "" {
			p.line("nothing", "the deny rule "+s.DeniedBy+" refuses it")
			continue
		}
		p.unjudged(s.Unjudged)
		switch {
		case len(s.Rules) > 0:
		case s.Unjudged != nil:
			p.line("nothing", "no other rule is for it")
		default:
			p.line("nothing", "no rule is for it")
		}
		for _, r := range s.Rules {
			from := ""
			switch {
			case r.Annotation != "":
				from = ", of what the annotation " + r.Annotation + " asks for"
			case r.Requests:
				from = ", of what RepositoryAccess objects ask for"
			}
			p.line("by rule", fmt.Sprintf("%s (%s)%s", r.Name, r.Origin, from))
			switch {
			case r.Fault != "":
				p.line("", "nothing: the annotation counts for nothing: "+term.Line(r.Fault))
			case len(r.Reached) > 0 || r.Catalog:
			case r.Annotation != "" || r.Requests:
				p.line("", "nothing: it asks for nothing that is allowed")
			default: // only a rule of an object has further limits
				p.line("", "nothing: it allows nothing within objects.within")
			}
			if r.Catalog {
				p.line("", "the list of all repositories")
			}
			for _, reached := range r.Reached {
				within, by := "", ""
				if reached.Within != nil {
					within = ", within " + strings.Join(reached.Within, " and ")
				}
				if reached.Objects != nil {
					by = ", as " + term.Words(reached.Objects...) + " asks"
				}
				p.line("", fmt.Sprintf("%s%s: %s%s", reached.Repositories, within, reached.Actions, by))
			}
		}
		p.closed("closed", s.Closed)
	}
	_, err := w.Write(p.out.Bytes())
	return err
}

// As decides a request with a valid token of a ServiceAccount (Request.As) with the present state.
func (k Known) As(ctx context.Context, r Request) (*Explanation, error) {
	e := k.explainer(slog.New(slog.DiscardHandler))
	if err := e.fromName(r); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return e.explain(ctx)
}

// Again decides the request of an event with the present state. It trusts the event as much as the
// caller does.
func (k Known) Again(ctx context.Context, event *exchange.Event) (*Explanation, error) {
	line, err := json.Marshal(event)
	if err != nil {
		return nil, err
	}
	e := k.explainer(slog.New(slog.DiscardHandler))
	e.line, e.then = line, event
	if err := e.repeat(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return e.explain(ctx)
}
