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
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// explainTimeout bounds the fetch of an issuer's keys, and the questions to an
// API server and to Redis.
const explainTimeout = 15 * time.Second

type explainOptions struct {
	config, tokenFile, as, fromAudit, service, caller, output string
	auditFiles, scopes                                        []string
}

func explainCommand() *cobra.Command {
	var o explainOptions
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
			return explain(cmd.Context(), o, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	configFlag(command, &o.config)
	flags := command.Flags()
	flags.StringVar(&o.tokenFile, "token-file", "", "file with the ServiceAccount token; - is standard input")
	flags.StringVar(&o.as, "as", "", "CLUSTER/NAMESPACE/SERVICEACCOUNT, instead of a token")
	flags.StringVar(&o.fromAudit, "from-audit", "", "id of a line of the audit log, whose request is judged again")
	flags.StringArrayVar(&o.auditFiles, "audit-file", nil, "where that line is, repeatable; - is standard input (default audit.file of the configuration)")
	flags.StringVar(&o.service, "service", "", "service of the registry (may be left out when there is only one)")
	flags.StringArrayVar(&o.scopes, "scope", nil, "requested scope, repeatable; none is a login")
	flags.StringVar(&o.caller, "caller", "", "address that the request comes from, for node.proof by address")
	flags.StringVarP(&o.output, "output", "o", outputText, "text, or json: docs/explain.md says what its fields mean")
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

func explain(ctx context.Context, o explainOptions, stdin io.Reader, stdout, stderr io.Writer) error {
	if o.output != outputText && o.output != outputJSON {
		return fmt.Errorf("--output %q is not known: use %s or %s", o.output, outputText, outputJSON)
	}
	logger := slog.New(slog.NewTextHandler(stderr, nil))
	cfg, err := readConfig(ctx, o.config)
	if err != nil {
		return err
	}
	policy, err := loadPolicy(cfg)
	if err != nil {
		return err
	}
	objects, err := openObjects(cfg, policy, logger, nil)
	if err != nil {
		return err
	}
	e := &explainer{cfg: cfg, policy: policy, objects: objects, logger: logger}
	// What is read from a pipe may take its time.
	switch {
	case o.fromAudit != "":
		err = e.fromAudit(ctx, o, stdin, stderr)
	case o.as != "":
		err = e.fromName(o)
	case o.tokenFile != "":
		err = e.fromToken(ctx, o, stdin)
	default:
		err = errors.New("--token-file, --as or --from-audit is empty; write what is to be explained")
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	answer, err := e.explain(ctx)
	if err != nil {
		return err
	}
	if o.output == outputJSON {
		text, err := json.MarshalIndent(answer, "", "  ")
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(stdout, "%s\n", asciiJSON(text))
		return err
	}
	return printExplanation(stdout, answer)
}

// explainer judges one request. It asks by the same code as serve, and issues
// nothing.
type explainer struct {
	cfg     *Config
	policy  *exchange.Policy
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

	steps []explainedStep
}

// request reads what the flags say of a request.
func (e *explainer) request(o explainOptions) error {
	registry, err := findRegistry(e.cfg, o.service)
	if err != nil {
		return err
	}
	e.service = registry.Service
	if e.scopes, err = registryauth.ParseScopes(o.scopes); err != nil {
		return fmt.Errorf("--scope: %w", err)
	}
	if o.caller == "" {
		return nil
	}
	address, err := netip.ParseAddr(o.caller)
	if err != nil {
		return fmt.Errorf("--caller %q is not an IP address", o.caller)
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

func (e *explainer) fromToken(ctx context.Context, o explainOptions, stdin io.Reader) (err error) {
	e.source = sourceToken
	if err := e.request(o); err != nil {
		return err
	}
	e.token, err = readToken(ctx, stdin, o.tokenFile)
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

func (e *explainer) fromName(o explainOptions) error {
	e.source = sourceName
	name, err := parseObjectName(o.as)
	if err != nil {
		return fmt.Errorf("--as %q is not CLUSTER/NAMESPACE/SERVICEACCOUNT", o.as)
	}
	if err := knownCluster(e.cfg, "--as", name.cluster); err != nil {
		return err
	}
	if !isObjectName(name.namespace) || !isObjectName(name.name) {
		return fmt.Errorf("--as %q: no ServiceAccount can have such a name", o.as)
	}
	e.id = identityNamed(e.cluster(name.cluster), name)
	return e.request(o)
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
func identityNamed(cluster *Cluster, name objectName) *oidc.Identity {
	return &oidc.Identity{
		Cluster:        cluster.Name,
		Issuer:         cluster.Issuer,
		Subject:        "system:serviceaccount:" + name.namespace + ":" + name.name,
		Namespace:      name.namespace,
		ServiceAccount: oidc.ObjectRef{Name: name.name},
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
