package oidc

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/pullpass/pullpass/internal/oidc/identity"
)

// Bound is the kind of object that a token must be bound to.
type Bound string

// The values of `bound`. A token that is bound to a pod expires with the pod. A token that is not
// bound (kubectl create token), or is bound to a Secret, lives until it expires.
const (
	BoundPod       Bound = "pod"
	BoundPodOrNode Bound = "pod-or-node"
	BoundAny       Bound = "any"
)

// Values returns every Bound.
func (Bound) Values() []Bound { return []Bound{BoundPod, BoundPodOrNode, BoundAny} }

// Config configures a Verifier.
type Config struct {
	Issuers    []Issuer
	CacheBytes int                                                                  // for verified tokens; 0 means 64 MiB, which is enough for 100,000
	Now        func() time.Time                                                     // nil means time.Now
	Logger     *slog.Logger                                                         // key fetches and their failures; nil discards
	Dial       func(ctx context.Context, network, address string) (net.Conn, error) // nil: that of net.Dialer
}

// Issuer is the token issuer of a cluster or, with Provider, of other workloads. New refuses empty
// or unknown values: an empty setting never disables a check.
type Issuer struct {
	Cluster     string        // name used in identities, logs and metrics; unique; empty with Provider
	Provider    *Provider     // nil for the issuer of a cluster
	URL         string        // exact value of iss; https; unique
	Audiences   []string      // a token needs one of these; at least one, none empty
	PullSecrets PullSecrets   // tokens in Secrets, of clusters only; zero: none are accepted
	Bound       Bound         // required for the issuer of a cluster
	RequireNode bool          // refuse tokens without a node claim (KEP-4193)
	MaxLifetime time.Duration // upper limit of exp − iat; positive
	MaxKeyAge   time.Duration // keys older than this (fetches failed since) are no longer believed; positive
	Discovery   Discovery
}

// Provider is an issuer whose tokens do not belong to pods. Issuer.Bound and Issuer.RequireNode do
// not apply to them. It must not be changed.
type Provider struct {
	Name    string // like Issuer.Cluster, and unique among both
	Profile identity.Profile
	Require map[string][]string // claims that every token has, each with one of these values
}

// name returns the name of the cluster or of the provider.
func (i *Issuer) name() string {
	if i.Provider != nil {
		return i.Provider.Name
	}
	return i.Cluster
}

// kind returns the kind of object that has the name.
func (i *Issuer) kind() string {
	if i.Provider != nil {
		return "identity"
	}
	return "cluster"
}

// title names the issuer in a message.
func (i *Issuer) title() string {
	return i.kind() + " " + quote(i.name())
}

// Discovery says where the keys are. At most one of URL, JWKSURL and JWKSFile is set. If none is
// set, the issuer's /.well-known/openid-configuration is used.
type Discovery struct {
	URL       string // the discovery document, whole URL; its issuer must still be Issuer.URL
	JWKSURL   string // the key set itself; no discovery
	JWKSFile  string // the key set as a file, re-read at every refresh; no network
	CAFile    string // PEM bundle for TLS; empty: the system's CAs
	TokenFile string // bearer token for the configured host only; re-read at every fetch
}

// IssuerStatus is the state of one issuer's keys, for readiness and metrics.
type IssuerStatus struct {
	Name        string // of the cluster or the provider
	Issuer      string
	Keys        int       // keys believed now; 0 before the first fetch and when they are too old
	FetchedAt   time.Time // last good fetch; zero: never
	Fetches     uint64    // attempts since start
	Failures    uint64    // of which failed
	LastFailure string    // cause of the most recent failure if it is newer than FetchedAt, otherwise empty
}
