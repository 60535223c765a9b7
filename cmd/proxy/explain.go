package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/names"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/term"
)

// explainTimeout bounds the fetch of an issuer's keys, and the questions to an
// API server and to Redis.
const explainTimeout = 15 * time.Second

// explainRequest says what is explained. One of tokenFile, as and fromAudit is set.
type explainRequest struct {
	tokenFile  string   // - is standard input
	as         string   // CLUSTER/NAMESPACE/SERVICEACCOUNT
	fromAudit  string   // id of a line of the audit log
	auditFiles []string // where that line is; none: audit.file
	service    string   // may be empty when there is only one
	scopes     []string
	caller     string // address; empty: not known
}

func explainCommand() *cobra.Command {
	var r explainRequest
	var config, output string
	command := &cobra.Command{
		Use:   "explain",
		Short: "Say what a token, a ServiceAccount or a request of the audit log would get now, and why",
		Long: `Say what a request would get now, step by step, by the same code that serves:
with a token, with a good token of a ServiceAccount, or as a line of the audit
log has it, with what was decided then. Nothing is issued, nothing is counted
for limits or replays, and the token is never printed. Where a cluster has an
API server, it is asked; so is Redis, about revocations. What is not judged is
said.

Exit code 0 if the question could be answered, whatever the answer.`,
		Example: `  pullpass explain --config pullpass.yaml --token-file token.jwt --scope repository:team-a/web:pull
  kubectl create token web -n team-a --audience registry.example.com --bound-object-kind Pod --bound-object-name web-0 |
    pullpass explain --config pullpass.yaml --token-file - --scope repository:team-a/web:pull
  pullpass explain --config pullpass.yaml --as prod-eu/team-a/web --scope repository:team-a/web:pull,push
  pullpass explain --config pullpass.yaml --from-audit RVAAVBYEBQLKHI2OMWKLLIJSK3 --audit-file audit.log
  kubectl logs -n pullpass -l app.kubernetes.io/name=pullpass --tail -1 |
    pullpass explain --config pullpass.yaml --from-audit RVAAVBYEBQLKHI2OMWKLLIJSK3 --audit-file - -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != outputText && output != outputJSON {
				return fmt.Errorf("--output %q is not known: use %s or %s", output, outputText, outputJSON)
			}
			cfg, err := LoadConfig(config)
			if err != nil {
				return err
			}
			answer, err := explain(cmd.Context(), cfg, r, cmd.InOrStdin(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if output == outputJSON {
				return writeExplanation(cmd.OutOrStdout(), answer)
			}
			return printExplanation(cmd.OutOrStdout(), answer)
		},
	}
	configFlag(command, &config)
	flags := command.Flags()
	flags.StringVar(&r.tokenFile, "token-file", "", "file with the ServiceAccount token; - is standard input")
	flags.StringVar(&r.as, "as", "", "CLUSTER/NAMESPACE/SERVICEACCOUNT, instead of a token")
	flags.StringVar(&r.fromAudit, "from-audit", "", "id of a line of the audit log, whose request is judged again")
	flags.StringArrayVar(&r.auditFiles, "audit-file", nil, "where that line is, repeatable; - is standard input (default audit.file of the configuration)")
	flags.StringVar(&r.service, "service", "", "service of the registry (may be left out when there is only one)")
	flags.StringArrayVar(&r.scopes, "scope", nil, "requested scope, repeatable; none is a login")
	flags.StringVar(&r.caller, "caller", "", "address that the request comes from, for node.proof by address")
	flags.StringVarP(&output, "output", "o", outputText, "text, or json: docs/explain.md says what its fields mean")
	command.MarkFlagsMutuallyExclusive("token-file", "as", "from-audit")
	command.MarkFlagsOneRequired("token-file", "as", "from-audit")
	for _, asked := range []string{"service", "scope", "caller"} {
		command.MarkFlagsMutuallyExclusive("from-audit", asked)
	}
	for _, other := range []string{"token-file", "as"} {
		command.MarkFlagsMutuallyExclusive("audit-file", other)
	}
	return command
}

const (
	outputText = "text"
	outputJSON = "json"
)

// explain judges a request as serve would now. Warnings and the log go to stderr.
// An error says that it could not be judged; a refusal is an answer.
func explain(ctx context.Context, cfg *Config, r explainRequest, stdin io.Reader, stderr io.Writer) (*explanation, error) {
	logger := slog.New(slog.NewTextHandler(stderr, nil))
	policy, err := loadPolicy(cfg)
	if err != nil {
		return nil, err
	}
	objects, err := openObjects(cfg, policy, logger, nil)
	if err != nil {
		return nil, err
	}
	e := &explainer{cfg: cfg, policy: policy, objects: objects, logger: logger}
	// What is read from a pipe may take its time.
	switch {
	case r.fromAudit != "":
		err = e.fromAudit(ctx, r, stdin, stderr)
	case r.as != "":
		err = e.fromName(r)
	case r.tokenFile != "":
		err = e.fromToken(ctx, r, stdin)
	default:
		err = errors.New("--token-file, --as or --from-audit is empty; write what is to be explained")
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	return e.explain(ctx)
}

// writeExplanation writes the answer for programs.
func writeExplanation(w io.Writer, answer *explanation) error {
	text, err := json.MarshalIndent(answer, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", term.ASCIIJSON(text))
	return err
}

// explainer judges one request. It asks by the same code as serve, and issues
// nothing.
type explainer struct {
	cfg     *Config
	policy  *policy.Policy
	objects *objects
	logger  *slog.Logger

	// The request.
	source  string
	token   string         // sourceToken
	id      *oidc.Identity // other sources; nil: anonymous
	service string
	scopes  []registryauth.Scope
	caller  exchange.Caller
	line    []byte // sourceAudit and sourceClaim, and who was anonymous then
	then    *exchange.Event

	// What of that request was not judged then, either.
	malformed []registryauth.MalformedScope
	omitted   int

	steps []explainedStep
}

// request reads what is said of a request.
func (e *explainer) request(r explainRequest) error {
	registry, err := findRegistry(e.cfg, r.service)
	if err != nil {
		return err
	}
	e.service = registry.Service
	if e.scopes, err = registryauth.ParseScopes(r.scopes); err != nil {
		return fmt.Errorf("--scope: %w", err)
	}
	if r.caller == "" {
		return nil
	}
	address, err := netip.ParseAddr(r.caller)
	if err != nil {
		return fmt.Errorf("--caller %q is not an IP address", r.caller)
	}
	e.from(address)
	return nil
}

// from sets the caller, as callerOf would.
func (e *explainer) from(address netip.Addr) {
	address = address.Unmap().WithZone("")
	trusted := slices.ContainsFunc(e.cfg.Server.TrustedProxies, func(p netip.Prefix) bool { return p.Contains(address) })
	e.caller = exchange.Caller{Address: address, ViaProxy: trusted}
}

func (e *explainer) fromToken(ctx context.Context, r explainRequest, stdin io.Reader) (err error) {
	e.source = sourceToken
	if err := e.request(r); err != nil {
		return err
	}
	e.token, err = readToken(ctx, stdin, r.tokenFile)
	return err
}

func readToken(ctx context.Context, stdin io.Reader, name string) (string, error) {
	in := until(ctx, stdin)
	if name != "-" {
		f, err := openArgument(ctx, name)
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

func (e *explainer) fromName(r explainRequest) error {
	e.source = sourceName
	name, err := names.ParseObject(r.as)
	if err != nil {
		return fmt.Errorf("--as %q is not CLUSTER/NAMESPACE/SERVICEACCOUNT", r.as)
	}
	if err := knownCluster(e.cfg, "--as", name.Cluster); err != nil {
		return err
	}
	if name.Check() != nil {
		return fmt.Errorf("--as %q: no ServiceAccount can have such a name", r.as)
	}
	e.id = identityNamed(e.cluster(name.Cluster), name)
	return e.request(r)
}

// cluster returns the settings of a cluster, or nil.
func (e *explainer) cluster(name string) *Cluster {
	i := slices.IndexFunc(e.cfg.Clusters, func(c Cluster) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &e.cfg.Clusters[i]
}

// identityNamed is the identity that a pod of a ServiceAccount would have. What
// only a token can tell (pod, node, token id) stays empty.
func identityNamed(cluster *Cluster, name names.Object) *oidc.Identity {
	return &oidc.Identity{
		Cluster:        cluster.Name,
		Issuer:         cluster.Issuer,
		Subject:        "system:serviceaccount:" + name.Namespace + ":" + name.Name,
		Namespace:      name.Namespace,
		ServiceAccount: oidc.ObjectRef{Name: name.Name},
	}
}

// live finds the UID of a ServiceAccount that is known by name alone.
func (e *explainer) live(ctx context.Context) error {
	id := e.id
	by := "--as"
	if e.source == sourceClaim {
		by = "the refused token claims to be one of " + id.Namespace + "/" + id.ServiceAccount.Name
	}
	uid, err := e.objects.uid(ctx, id.Cluster, id.Namespace, id.ServiceAccount.Name)
	if err != nil {
		return fmt.Errorf("%s: %w", by, err)
	}
	if uid == "" && e.cluster(id.Cluster).Kubernetes.connected() {
		return fmt.Errorf("%s: cluster %q has no ServiceAccount %s/%s", by, id.Cluster, id.Namespace, id.ServiceAccount.Name)
	}
	id.ServiceAccount.UID = uid
	return nil
}
