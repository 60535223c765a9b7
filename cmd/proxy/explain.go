package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// explainTimeout bounds the fetch of an issuer's keys and the questions to an
// API server.
const explainTimeout = 15 * time.Second

type explainOptions struct {
	config, tokenFile, as, service, caller string
	scopes                                 []string
}

func explainCommand() *cobra.Command {
	var o explainOptions
	command := &cobra.Command{
		Use:   "explain",
		Short: "Say what a token or a ServiceAccount would get, and why",
		Long: `Say what a token or a ServiceAccount would get, step by step, by the same code
that serves. Nothing is issued and the token is never printed. Where a cluster
has an API server, it is asked. Exit code 0 if the question could be answered,
whatever the answer.`,
		Example: `  pullpass explain --config pullpass.yaml --token-file token.jwt --scope repository:team-a/web:pull
  kubectl create token web -n team-a --audience registry.example.com |
    pullpass explain --config pullpass.yaml --token-file - --scope repository:team-a/web:pull
  pullpass explain --config pullpass.yaml --as prod-eu/team-a/web --scope repository:team-a/web:pull,push`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return explain(cmd.Context(), o, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	configFlag(command, &o.config)
	command.Flags().StringVar(&o.tokenFile, "token-file", "", "file with the ServiceAccount token; - is standard input")
	command.Flags().StringVar(&o.as, "as", "", "CLUSTER/NAMESPACE/SERVICEACCOUNT, instead of a token")
	command.Flags().StringVar(&o.service, "service", "", "service of the registry (may be left out when there is only one)")
	command.Flags().StringArrayVar(&o.scopes, "scope", nil, "requested scope, repeatable; none is a login")
	command.Flags().StringVar(&o.caller, "caller", "", "address that the request comes from, for node.proof by address")
	command.MarkFlagsMutuallyExclusive("token-file", "as")
	command.MarkFlagsOneRequired("token-file", "as")
	return command
}

func explain(ctx context.Context, o explainOptions, stdin io.Reader, stdout, stderr io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	logger := slog.New(slog.NewTextHandler(stderr, nil))
	cfg, err := LoadConfig(o.config)
	if err != nil {
		return err
	}
	registry, err := findRegistry(cfg, o.service)
	if err != nil {
		return err
	}
	scopes, err := registryauth.ParseScopes(o.scopes)
	if err != nil {
		return err
	}
	policy, err := loadPolicy(cfg)
	if err != nil {
		return err
	}
	objects, err := openObjects(cfg, policy, logger)
	if err != nil {
		return err
	}

	e := explanation{w: stdout}
	var id oidc.Identity
	if o.as != "" {
		id, err = identityAs(ctx, cfg, objects, o.as)
	} else {
		var verifier *oidc.Verifier
		if verifier, err = newVerifier(cfg, logger); err != nil {
			return err
		}
		var refused bool
		if id, refused, err = e.verify(ctx, verifier, stdin, o.tokenFile); refused {
			return nil
		}
	}
	if err != nil {
		return err
	}
	subject, refused, err := e.admit(ctx, cfg, objects, id, o)
	if err != nil {
		return err
	}
	e.line("service", registry.Service)
	if refused {
		return nil
	}
	e.annotations(policy.AnnotationKeys(), subject.Annotations)
	e.labels(subject.NamespaceLabels)
	decision, trace := policy.Explain(subject, registry.Service, scopes)
	e.decision(decision, trace)
	return nil
}

// identityAs makes the identity that a pod of a ServiceAccount would have; what
// only a token can tell (pod, node, token id) stays empty.
func identityAs(ctx context.Context, cfg *Config, objects *objects, as string) (oidc.Identity, error) {
	parts := strings.Split(as, "/")
	if len(parts) != 3 || slices.Contains(parts, "") {
		return oidc.Identity{}, fmt.Errorf("--as %q is not CLUSTER/NAMESPACE/SERVICEACCOUNT", as)
	}
	cluster, namespace, name := parts[0], parts[1], parts[2]
	i := slices.IndexFunc(cfg.Clusters, func(c Cluster) bool { return c.Name == cluster })
	if i < 0 {
		return oidc.Identity{}, fmt.Errorf("--as: cluster %q is not configured (clusters[].name)", cluster)
	}
	uid, err := objects.uid(ctx, cluster, namespace, name)
	if err != nil {
		return oidc.Identity{}, err
	}
	if uid == "" && cfg.Clusters[i].Kubernetes.connected() {
		return oidc.Identity{}, fmt.Errorf("--as: cluster %q has no ServiceAccount %s/%s", cluster, namespace, name)
	}
	return oidc.Identity{
		Cluster:        cluster,
		Issuer:         cfg.Clusters[i].Issuer,
		Subject:        "system:serviceaccount:" + namespace + ":" + name,
		Namespace:      namespace,
		ServiceAccount: oidc.ObjectRef{Name: name, UID: uid},
	}, nil
}

// explanation writes the answer for people.
type explanation struct{ w io.Writer }

func (e explanation) line(what, text string) { fmt.Fprintf(e.w, "%-12s %s\n", what, text) }

// verify judges the token. A token that is refused is an answer, not an error.
func (e explanation) verify(ctx context.Context, verifier *oidc.Verifier, stdin io.Reader, name string) (id oidc.Identity, refused bool, err error) {
	token, err := readToken(stdin, name)
	if err != nil {
		return oidc.Identity{}, false, err
	}
	id, err = verifier.Verify(ctx, token)
	var failure *oidc.Error
	if errors.As(err, &failure) && failure.Reason != oidc.ReasonUnavailable {
		e.line("token", "REFUSED: "+failure.Message)
		e.line("reason", string(failure.Reason))
		if failure.Claimed.Subject != "" {
			e.line("claims", "to be "+failure.Claimed.Subject+", which is not proven")
		}
		return oidc.Identity{}, true, nil
	}
	if err != nil {
		return oidc.Identity{}, false, err
	}
	e.line("token", "good until "+id.Expiry.UTC().Format(time.RFC3339)+", JTI="+id.TokenID)
	return id, false, nil
}

func readToken(stdin io.Reader, name string) (string, error) {
	in := stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return "", fmt.Errorf("--token-file: %w", err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, registryauth.MaxTokenBytes+2))
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

func (e explanation) identity(id oidc.Identity, event *exchange.Event) {
	uid := id.ServiceAccount.UID
	if uid == "" {
		uid = "not known"
	}
	e.line("subject", fmt.Sprintf("%s of cluster %s, UID %s", id.Subject, id.Cluster, uid))
	if id.Pod.Name != "" {
		e.line("pod", id.Pod.Name+", UID "+id.Pod.UID)
	}
	if node := event.Node; node != nil {
		text := node.Name + ", UID " + cmp.Or(node.UID, "not known")
		if event.NodeFromAPI {
			text += ", says the API server"
		}
		e.line("node", text)
	}
}

// labels are all of the namespace, as kubectl get --show-labels writes them.
func (e explanation) labels(labels map[string]string) {
	if labels == nil {
		return // a cluster without connection
	}
	var pairs []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		pairs = append(pairs, key+"="+labels[key])
	}
	e.line("labels", "of the namespace: "+cmp.Or(strings.Join(pairs, ","), "none"))
}

func (e explanation) annotations(keys []string, annotations map[string]string) {
	for _, key := range keys {
		if value, ok := annotations[key]; ok {
			e.line("annotation", fmt.Sprintf("%s: %q", key, value))
		} else {
			e.line("annotation", key+": none on this ServiceAccount")
		}
	}
}

func (e explanation) decision(d exchange.Decision, trace exchange.Trace) {
	for _, deny := range trace.Deny {
		if deny.Matched {
			e.line("deny", deny.Name+": MATCHES, no token is issued (403)")
		} else {
			e.line("deny", deny.Name+": does not match ("+strings.Join(deny.Mismatches, ", ")+" differ)")
		}
	}
	if d.DeniedBy != "" {
		return
	}
	if len(d.Scopes) == 0 {
		e.line("login", "granted: the token opens nothing by itself")
	}
	for i, s := range d.Scopes {
		fmt.Fprintf(e.w, "\n%s\n", s.Requested)
		for _, rule := range trace.Rules {
			fmt.Fprintf(e.w, "  rule %s: %s\n", rule.Name, ruleVerdict(rule, i))
		}
		switch {
		case s.Reason == "":
			fmt.Fprintf(e.w, "  GRANTED: %s\n", strings.Join(s.Granted, ", "))
		case len(s.Granted) > 0:
			fmt.Fprintf(e.w, "  GRANTED IN PART: %s\n  why: %s\n  remedy: %s\n", strings.Join(s.Granted, ", "), s.Reason, s.Remedy)
		default:
			fmt.Fprintf(e.w, "  NOT GRANTED\n  why: %s\n  remedy: %s\n", s.Reason, s.Remedy)
		}
	}
}

// ruleVerdict says what one rule did with the scope at index i.
func ruleVerdict(rule exchange.RuleTrace, i int) string {
	switch {
	case !rule.SubjectMatched:
		return "is for others (" + strings.Join(rule.Mismatches, ", ") + " differ)"
	case !rule.ServiceMatched:
		return "is for other services"
	case i >= len(rule.Scopes):
		return "was not asked"
	}
	s := rule.Scopes[i]
	var parts []string
	if len(s.Patterns) == 0 {
		parts = append(parts, "no pattern matches")
	} else {
		parts = append(parts, fmt.Sprintf("allows %s on %s", strings.Join(s.Allows, ", "), strings.Join(s.Patterns, " ")))
	}
	if rule.Annotation != "" {
		switch {
		case s.Fault != "":
			parts = append(parts, "but the annotation counts for nothing: "+s.Fault)
		case len(s.Items) == 0:
			parts = append(parts, "the annotation does not ask for it")
		default:
			parts = append(parts, "the annotation asks for "+strings.Join(s.Items, " "))
		}
	}
	if len(s.Granted) > 0 {
		parts = append(parts, "gives "+strings.Join(s.Granted, ", "))
	}
	return strings.Join(parts, "; ")
}
