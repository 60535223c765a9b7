package explain

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

	"github.com/pullpass/pullpass/internal/base/file"
	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// timeout bounds the fetch of an issuer's keys, and the requests to an API server and to Redis.
const timeout = 15 * time.Second

// Request is the request to explain. One of TokenFile, As, ClaimsFile and FromAudit is set.
type Request struct {
	TokenFile  string   // - is standard input
	As         string   // CLUSTER/NAMESPACE/SERVICEACCOUNT
	ClaimsFile string   // claims of a token; - is standard input
	Identity   string   // identities[].name of the token with these claims
	FromAudit  string   // id of a line of the audit log
	AuditFiles []string // files with that line; none: audit.file
	Service    string   // may be empty if there is only one
	Scopes     []string
	Caller     string // address; empty: not known
}

// Explain decides a request as serve would now. Warnings and the log go to stderr. An error means
// that the request could not be decided. A refusal is not an error.
func Explain(ctx context.Context, cfg *config.Config, r Request, stdin io.Reader, stderr io.Writer) (*Explanation, error) {
	known, err := Open(cfg, stderr)
	if err != nil {
		return nil, err
	}
	e := known.explainer(slog.New(slog.NewTextHandler(stderr, nil)))
	// Reading from a pipe may take long.
	switch {
	case r.FromAudit != "":
		err = e.fromAudit(ctx, r, stdin, stderr)
	case r.As != "":
		err = e.fromName(r)
	case r.ClaimsFile != "":
		err = e.fromClaims(ctx, r, stdin)
	case r.TokenFile != "":
		err = e.fromToken(ctx, r, stdin)
	default:
		err = errors.New("--token-file, --as, --claims or --from-audit is empty; write what is to be explained")
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return e.explain(ctx)
}

// WriteJSON writes a result of this package as JSON.
func WriteJSON(w io.Writer, answer any) error {
	text, err := json.MarshalIndent(answer, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", term.ASCIIJSON(text))
	return err
}

// explainer explains one request. It uses the same code as serve, and issues nothing.
type explainer struct {
	cfg     *config.Config
	policy  *policy.Policy
	objects *setup.Objects
	logger  *slog.Logger

	// The request.
	source  string
	token   registryauth.Secret // sourceToken
	issuer  *oidc.Issuer        // sourceIdentity
	claims  []byte              // sourceIdentity
	id      *oidc.Identity      // other sources; nil: anonymous
	service string
	scopes  []registryauth.Scope
	caller  nodeproof.Caller
	line    []byte // sourceAudit and sourceClaim, and anonymous requests of the audit log
	then    *exchange.Event

	// The scopes of that request that were not checked then, either.
	malformed []registryauth.MalformedScope
	omitted   int

	tokenWords   string // on a token that was accepted, or would have been
	objectsFault error  // why the objects of the policy were not listed
}

// request reads the options of a request.
func (e *explainer) request(r Request) error {
	registry, err := config.FindRegistry(e.cfg, r.Service)
	if err != nil {
		return err
	}
	e.service = registry.Service
	if e.scopes, err = registryauth.ParseScopes(r.Scopes); err != nil {
		return fmt.Errorf("--scope: %w", err)
	}
	if judged := setup.Scopes(e.cfg)[e.service]; judged != nil {
		e.scopes = judged("", e.scopes)
	}
	if r.Caller == "" {
		return nil
	}
	address, err := netip.ParseAddr(r.Caller)
	if err != nil {
		return fmt.Errorf("--caller %q is not an IP address", r.Caller)
	}
	e.from(address)
	return nil
}

// from sets the caller, as callerOf would.
func (e *explainer) from(address netip.Addr) {
	address = address.Unmap().WithZone("")
	trusted := slices.ContainsFunc(e.cfg.Server.TrustedProxies, func(p netip.Prefix) bool { return p.Contains(address) })
	e.caller = nodeproof.Caller{Address: address, ViaProxy: trusted}
}

func (e *explainer) fromToken(ctx context.Context, r Request, stdin io.Reader) error {
	e.source = sourceToken
	if err := e.request(r); err != nil {
		return err
	}
	token, err := readSmall(ctx, stdin, r.TokenFile)
	if err != nil {
		return fmt.Errorf("--token-file: %w", err)
	}
	e.token = registryauth.NewSecret(token)
	if exchange.IsPushCredential(token) {
		return errors.New("--token-file: that is a push credential, which only serving proxies can open: give the job's own token, its claims with --claims, or with --from-audit the line of a request that it was sent with")
	}
	return nil
}

// readSmall reads a file up to one byte more than the size of a token.
func readSmall(ctx context.Context, stdin io.Reader, name string) (string, error) {
	in := file.Until(ctx, stdin)
	if name != "-" {
		f, err := file.OpenArgument(ctx, name)
		if err != nil {
			return "", err
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, registryauth.MaxTokenBytes+2))
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(data)), nil
}

func (e *explainer) fromName(r Request) error {
	e.source = sourceName
	name, err := names.ParseObject(r.As)
	if err != nil {
		return fmt.Errorf("--as %q is not CLUSTER/NAMESPACE/SERVICEACCOUNT", r.As)
	}
	if err := config.KnownCluster(e.cfg, "--as", name.Cluster); err != nil {
		return err
	}
	if name.Check() != nil {
		return fmt.Errorf("--as %q: no ServiceAccount can have such a name", r.As)
	}
	e.id = identityNamed(e.cfg.Cluster(name.Cluster), name)
	return e.request(r)
}

// identityNamed returns the identity that a pod of a ServiceAccount would have. The facts that only
// a token proves (pod, node, token id) stay empty.
func identityNamed(cluster *config.Cluster, name names.Object) *oidc.Identity {
	return &oidc.Identity{
		Cluster: cluster.Name,
		Issuer:  cluster.Issuer,
		Subject: oidc.ServiceAccountSubject(name.Namespace, name.Name),
		Kubernetes: oidc.KubernetesIdentity{Namespace: name.Namespace,
			ServiceAccount: oidc.ObjectRef{Name: name.Name}},
	}
}

// live finds the UID of a ServiceAccount of which only the name is known.
func (e *explainer) live(ctx context.Context) error {
	id := e.id
	by := "--as"
	if e.source == sourceClaim {
		by = "the refused token claims to be one of " + id.Kubernetes.Namespace + "/" + id.Kubernetes.ServiceAccount.Name
	}
	uid, err := e.objects.UID(ctx, id.Cluster, id.Kubernetes.Namespace, id.Kubernetes.ServiceAccount.Name)
	if err != nil {
		return fmt.Errorf("%s: %w", by, err)
	}
	if uid == "" && e.cfg.Cluster(id.Cluster).Kubernetes.Connected() {
		return fmt.Errorf("%s: cluster %q has no ServiceAccount %s/%s", by, id.Cluster, id.Kubernetes.Namespace, id.Kubernetes.ServiceAccount.Name)
	}
	id.Kubernetes.ServiceAccount.UID = uid
	return nil
}
