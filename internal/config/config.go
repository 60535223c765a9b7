package config

import (
	"context"
	"encoding"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/file"
	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
)

// LoadOnce is LoadConfig for a command that reads the configuration once.
func LoadOnce(ctx context.Context, path string) (*Config, error) {
	data, err := file.ReadArgument(ctx, path, MaxBytes)
	if err != nil {
		return nil, &strictyaml.Fault{Problem: err.Error(), Err: err} // the error names the file
	}
	return Parse(data, path, filepath.Dir(path))
}

const (
	APIVersion = string(strictyaml.CurrentVersion)
	Kind       = "ProxyConfiguration"

	MaxBytes = 1 << 20
)

// NodeClaim says whether a token has to name a node. Like every type of a
// setting with a closed set of values, it has them all in Values, and no other is valid.
type NodeClaim string

const (
	NodeClaimRequired NodeClaim = "required"
	NodeClaimOptional NodeClaim = "optional"
)

// Values returns all that there are.
func (NodeClaim) Values() []NodeClaim { return []NodeClaim{NodeClaimRequired, NodeClaimOptional} }

// NodeFallback says who else is asked for the node.
type NodeFallback string

const (
	NodeFallbackNone NodeFallback = "none"
	NodeFallbackAPI  NodeFallback = "api"
)

// Values returns all that there are.
func (NodeFallback) Values() []NodeFallback { return []NodeFallback{NodeFallbackNone, NodeFallbackAPI} }

// Config is the configuration of one proxy. LoadConfig and ParseConfig return
// it checked, with every default filled in and every file name resolved
// against the directory of the configuration file.
type Config struct {
	APIVersion strictyaml.Version `json:"apiVersion" schema:"required"`                    // the version of the format
	Kind       string             `json:"kind" schema:"required const=ProxyConfiguration"` // what the file is
	Server     Server             `json:"server"`
	Admin      Admin              `json:"admin"`
	Clusters   []Cluster          `json:"clusters"`                              // whose ServiceAccount tokens are accepted; at least one, or one of identities
	Identities []Provider         `json:"identities"`                            // whose tokens are accepted that are of others than pods
	Registries []Registry         `json:"registries" schema:"required nonempty"` // that tokens are issued for
	Gateway    *Gateway           `json:"gateway,omitempty"`                     // for registries whose token endpoint cannot be chosen
	Upstreams  []Upstream         `json:"upstreams"`                             // those registries
	// Assertions are for upstreams that are asked as the caller.
	Assertions  *Assertions `json:"assertions,omitempty"`
	PolicyFiles []string    `json:"policyFiles" schema:"required nonempty"` // together one policy
	PolicyTrial PolicyTrial `json:"policyTrial"`                            // a policy that decides nothing
	State       State       `json:"state"`
	Limits      Limits      `json:"limits"`
	Audit       Audit       `json:"audit"`

	// Warnings are about settings that are accepted and that the operator
	// should know something of. Each names the file and the field.
	Warnings []string `json:"-"`
	// Deprecated are the warnings about parts that a later release will not read.
	Deprecated []string `json:"-"`

	// ClientCAs are the files of CAs that are set: the common one, then those of
	// clusters. Resolve fills it in.
	ClientCAs []ClientCAs `json:"-"`

	// File is its file, as it was named.
	File string `json:"-"`
}

// PolicyTrial is the policy that is to decide next. It is judged beside the one that decides, and
// differences are recorded.
type PolicyTrial struct {
	Files []string `json:"files"` // as policyFiles; empty: policyFiles, with the objects that are only tried
}

// Server is the public listener.
type Server struct {
	Address        string         `json:"address" schema:"nonempty"` // host:port or :port
	TLS            TLSFiles       `json:"tls"`
	TrustedProxies []netip.Prefix `json:"trustedProxies"` // whose X-Forwarded-For is believed
	// ShutdownDelay is how long requests are still taken after SIGTERM, so that
	// load balancers see /readyz fail before the listener closes.
	ShutdownDelay Duration `json:"shutdownDelay"`
}

// TLSFiles are the files of the public listener's TLS, all PEM, and what is spoken
// beyond what a token endpoint needs.
type TLSFiles struct {
	CertFile string `json:"certFile"` // chain, leaf first
	KeyFile  string `json:"keyFile"`  // private key of certFile
	// ClientCAFile holds the CAs of the kubelets' client certificates, for
	// clusters that name none of their own.
	ClientCAFile string `json:"clientCAFile"`
	PostQuantum  bool   `json:"postQuantum"` // key exchange X25519MLKEM768, for clients that have it
	HTTP2        bool   `json:"http2"`       // no effect: only HTTP/1.1 is spoken
}

// Admin is the listener for health and metrics.
type Admin struct {
	Address string `json:"address" schema:"nonempty"` // host:port; keep it private
	PProf   bool   `json:"pprof"`                     // Go's profiles, at /debug/pprof/
	Console bool   `json:"console"`                   // a page that shows decisions, at /console/, for kubectl port-forward
	// ConsoleHosts are names under which the page is reached otherwise, through
	// something that asks who it is.
	ConsoleHosts []string `json:"consoleHosts"`
}

// Cluster is one cluster whose ServiceAccount tokens are accepted.
type Cluster struct {
	Name             string     `json:"name" schema:"required label"`         // stands in policies, audit lines and metrics
	Issuer           string     `json:"issuer" schema:"required https"`       // exact value of iss
	Audiences        []string   `json:"audiences" schema:"required nonempty"` // a token needs one of these
	Discovery        Discovery  `json:"discovery"`
	Bound            oidc.Bound `json:"bound"`            // what a token must be bound to; with any, a token of audiences outlives its Secret
	MaxTokenLifetime Duration   `json:"maxTokenLifetime"` // tokens that live longer are refused
	Node             Node       `json:"node"`
	Kubernetes       Kubernetes `json:"kubernetes"`
	// PullSecrets are for nodes that the operator cannot change; nil: none is accepted.
	PullSecrets *PullSecrets `json:"pullSecrets,omitempty"`
}

// Discovery says where an issuer's keys are, if not where its issuer says. At
// most one of URL, JWKSURL and JWKSFile is set.
type Discovery struct {
	URL       string `json:"url"`       // the discovery document
	JWKSURL   string `json:"jwksURL"`   // the key set itself
	JWKSFile  string `json:"jwksFile"`  // the key set as a file
	CAFile    string `json:"caFile"`    // CAs of the issuer's certificate; empty: those of the system
	TokenFile string `json:"tokenFile"` // a bearer token, for API servers that answer only authenticated callers
	// MaxKeyAge is how long the last good keys are believed while the issuer
	// cannot be reached.
	MaxKeyAge Duration `json:"maxKeyAge"`
}

// Node says what the node claim of a token has to be (KEP-4193).
type Node struct {
	Claim    NodeClaim    `json:"claim"`    // must a token name a node?
	Fallback NodeFallback `json:"fallback"` // api: where a token names no node, ask the API server for its pod's
	Selector string       `json:"selector"` // of Node objects, as kubectl has it; empty: every node
	Proof    Proof        `json:"proof"`
}

// Proof says how a caller proves that it is the node that the token names.
type Proof struct {
	Mode    nodeproof.Mode     `json:"mode"`                      // audit: write down who is not proven; enforce: refuse them
	Methods []nodeproof.Method `json:"methods" schema:"nonempty"` // any of these suffices
	// ClientCAFile holds the CAs of this cluster's kubelets, and of no other's;
	// empty: server.tls.clientCAFile.
	ClientCAFile string `json:"clientCAFile"`

	// Effective are the methods by which callers are proven: those of Methods that
	// have what they need, and none when proof is off. CAs are those of the method
	// certificate, if it is among them. Resolve fills in both.
	Effective []nodeproof.Method `json:"-"`
	CAs       ClientCAs          `json:"-"`
}

// Kubernetes says where a cluster's ServiceAccounts are read from: its API
// server (InCluster or KubeconfigFile) or files. The last two fields count only
// with an API server.
type Kubernetes struct {
	InCluster      bool     `json:"inCluster"`      // the cluster that the proxy runs in
	KubeconfigFile string   `json:"kubeconfigFile"` // another cluster, by a file as kubectl reads it
	ManifestFiles  []string `json:"manifestFiles"`  // made by kubectl get serviceaccounts -A -o yaml
	PodChecks      bool     `json:"podChecks"`      // false: a token outlives its pod
	PodEvents      bool     `json:"podEvents"`      // tell pods why a pull was refused
	Objects        Objects  `json:"objects"`        // policy that is written as objects of the cluster
}

// Objects says which objects of a cluster count. They speak for its own
// ServiceAccounts alone, and policyFiles stand above them.
type Objects struct {
	Policies bool     `json:"policies"` // AccessPolicy objects: rules and denials
	Requests bool     `json:"requests"` // RepositoryAccess objects: the requests of namespaces
	Within   []string `json:"within"`   // patterns of the repositories that objects may give at most, as in a policy
	Status   bool     `json:"status"`   // write into the status of objects what became of them; one replica does, by a Lease
}

// Count reports whether any object counts.
func (o Objects) Count() bool { return o.Policies || o.Requests }

// Registry is one registry that tokens are issued for.
type Registry struct {
	Service       string   `json:"service" schema:"required nonempty"` // aud of the issued tokens
	Issuer        string   `json:"issuer" schema:"required nonempty"`  // iss of the issued tokens
	TokenLifetime Duration `json:"tokenLifetime"`                      // of the issued tokens: 1m to 1h
	Signing       Signing  `json:"signing"`
}

// Signing says what tokens are signed with: KeyFile (and CertFile with trust
// "certificate"), or else the keys in ManagedDir.
type Signing struct {
	Algorithm  signing.Algorithm `json:"algorithm"`  // that tokens are signed with
	Trust      signing.Trust     `json:"trust"`      // what the registry is given: a CA, or the keys
	CertFile   string            `json:"certFile"`   // chain of keyFile, leaf first
	KeyFile    string            `json:"keyFile"`    // private key
	CAFile     string            `json:"caFile"`     // CAs that registries have, if certFile does not end with its CA
	ManagedDir string            `json:"managedDir"` // keys made and rotated by Pullpass
}

// Cluster returns the cluster with a name, or nil.
func (c *Config) Cluster(name string) *Cluster {
	for i := range c.Clusters {
		if c.Clusters[i].Name == name {
			return &c.Clusters[i]
		}
	}
	return nil
}

// Registry returns the one of a service, or nil.
func (c *Config) Registry(service string) *Registry {
	for i := range c.Registries {
		if c.Registries[i].Service == service {
			return &c.Registries[i]
		}
	}
	return nil
}

// Paths returns the files and the directory that are set.
func (s Signing) Paths() []string { return NonEmpty(s.CertFile, s.KeyFile, s.CAFile, s.ManagedDir) }

// State says where state is kept that several proxies share.
type State struct {
	Redis  Redis               `json:"redis"`
	Replay exchange.ReplayMode `json:"replay"` // whether a second caller may use a token
}

// Redis is where several proxies share their state.
type Redis struct {
	Addresses    []string `json:"addresses"`    // host:port of Redis, of Sentinels, or of nodes of a Cluster; empty: in memory
	Username     string   `json:"username"`     // of the ACL
	PasswordFile string   `json:"passwordFile"` // read for every new connection
	TLS          RedisTLS `json:"tls"`
	MasterName   string   `json:"masterName"` // not empty: addresses are Sentinels
}

// RedisTLS says by which CAs Redis is believed: those of a file or those of the
// system. Neither means no TLS.
type RedisTLS struct {
	CAFile    string `json:"caFile"`    // TLS with these CAs
	SystemCAs bool   `json:"systemCAs"` // TLS with those of the system
}

// Limits bound how often tokens may be asked for.
type Limits struct {
	PerServiceAccount Limit `json:"perServiceAccount"` // for requests that nothing else refuses as a whole
	PerAddress        Limit `json:"perAddress"`        // for requests without a good credential
}

// Limit is a rate with room for bursts.
type Limit struct {
	Rate  float64 `json:"rate" schema:"above=0 max=1000000"`   // requests per second
	Burst int     `json:"burst" schema:"min=1 max=2147483647"` // requests at once
}

// Audit says where the audit log goes.
type Audit struct {
	File string `json:"file"` // empty: standard output
}

// Duration is a time span, in a file written as Go does: "24h", "5m", "1m30s".
type Duration time.Duration

var (
	_ encoding.TextMarshaler   = Duration(0)
	_ encoding.TextUnmarshaler = (*Duration)(nil)
)

// Duration returns d as the standard library's type.
func (d Duration) Duration() time.Duration { return time.Duration(d) }

func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes d as UnmarshalText reads it.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a time span with its unit.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf(`is not a time span (%s); write it with its unit: "24h", "5m", "90s"`, term.QuoteValue(string(text)))
	}
	*d = Duration(parsed)
	return nil
}

func defaultConfig() *Config {
	return &Config{
		Server:      Server{Address: ":8443", TrustedProxies: []netip.Prefix{}},
		Clusters:    []Cluster{},
		Identities:  []Provider{},
		Upstreams:   []Upstream{},
		Admin:       Admin{Address: "127.0.0.1:9090", ConsoleHosts: []string{}},
		PolicyTrial: PolicyTrial{Files: []string{}},
		State:       State{Redis: Redis{Addresses: []string{}}, Replay: exchange.ReplayOff},
		Limits: Limits{
			PerServiceAccount: Limit{Rate: 50, Burst: 200},
			PerAddress:        Limit{Rate: 200, Burst: 1000},
		},
	}
}

// SetDefaults leaves node.claim empty: its default depends on bound.
func (c *Cluster) SetDefaults() {
	*c = Cluster{
		Discovery:        Discovery{MaxKeyAge: Duration(24 * time.Hour)},
		Bound:            oidc.BoundPod,
		MaxTokenLifetime: Duration(24 * time.Hour),
		Node: Node{
			Fallback: NodeFallbackNone,
			Proof:    Proof{Mode: nodeproof.Off, Methods: []nodeproof.Method{nodeproof.Certificate, nodeproof.Address}},
		},
		Kubernetes: Kubernetes{ManifestFiles: []string{}, Objects: Objects{Within: []string{}}, PodChecks: true, PodEvents: true},
	}
}

// SetDefaults leaves signing.managedDir empty: its default depends on the
// service, and on whether there is a key file.
func (r *Registry) SetDefaults() {
	*r = Registry{
		TokenLifetime: Duration(5 * time.Minute),
		Signing:       Signing{Algorithm: signing.ES256, Trust: signing.TrustCertificate},
	}
}

// Load reads and checks the configuration file. It opens no other file:
// see CheckFiles.
//
// The error joins all faults, each a *strictyaml.Fault.
func Load(path string) (*Config, error) {
	data, err := file.Read(path, MaxBytes)
	if err != nil {
		return nil, &strictyaml.Fault{Problem: err.Error(), Err: err} // the error names the file
	}
	return Parse(data, path, filepath.Dir(path))
}

// Parse reads and checks a configuration. name stands in messages;
// relative file names are resolved against dir.
func Parse(data []byte, name, dir string) (*Config, error) {
	if len(data) > MaxBytes {
		return nil, &strictyaml.Fault{File: name, Problem: fmt.Sprintf("has more than %d bytes; a configuration never needs as much", MaxBytes)}
	}
	c := defaultConfig()
	c.File = name
	d := strictyaml.NewDecoder(name)
	if isConfig := decodeConfig(d, data, c); !isConfig {
		return nil, d.Err()
	}
	c.complete(d.Set)
	c.Resolve()
	v := &validator{strictyaml.NewValidator(d), dir}
	v.config(c) // file names as they are written
	if err := d.Err(); err != nil {
		return nil, err
	}
	for _, field := range c.files() {
		if *field.name != "" && !filepath.IsAbs(*field.name) {
			*field.name = filepath.Join(dir, *field.name)
		}
	}
	c.Resolve() // with whole file names
	c.Deprecated = d.Deprecated
	c.Warnings = slices.Concat(c.Deprecated, c.warnings())
	return c, nil
}

// complete fills in the defaults that depend on other settings.
func (c *Config) complete(set map[string]bool) {
	for i := range c.Clusters {
		cluster := &c.Clusters[i]
		if !set[fmt.Sprintf("clusters[%d].node.claim", i)] {
			cluster.Node.Claim = NodeClaimRequired
			if cluster.Bound == oidc.BoundAny {
				cluster.Node.Claim = NodeClaimOptional // a token that is bound to nothing names no node
			}
		}
	}
	for i := range c.Registries {
		keys := &c.Registries[i].Signing
		if len(keys.Paths()) == 0 {
			keys.ManagedDir = filepath.Join("keys", escapeFileName(c.Registries[i].Service))
		}
	}
	c.completeGateway()
	c.completeAssertions()
}

// escapeFileName turns any text into the name of a directory below a parent.
// It is injective, also where file names differ in case only.
func escapeFileName(s string) string {
	var b strings.Builder
	for i, c := range []byte(s) {
		if 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.' && i > 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02x", c)
		}
	}
	return b.String()
}

func NonEmpty(names ...string) []string {
	var out []string
	for _, name := range names {
		if name != "" {
			out = append(out, name)
		}
	}
	return out
}
