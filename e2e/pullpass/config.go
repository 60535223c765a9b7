package pullpass

// Config is the configuration of one Pullpass, with only the fields that tests set. Empty fields are not written, so the
// default of Pullpass applies.
type Config struct {
	Clusters []Cluster
	// Identities are the issuers of tokens of others than pods.
	Identities []Identity
	// Policy is the content of the policy file.
	Policy string
	// Service is the one registry that tokens are issued for.
	Service string
	// TokenLifetime is how long its tokens are valid, as Go writes durations; empty: the default.
	TokenLifetime string
	// Upstreams are the registries behind the gateway, whose service is Service then; none: there is no gateway.
	Upstreams []Upstream
	// GatewayURL is how clients reach the gateway, by something that passes connections on to it; empty: as it listens, on localhost.
	GatewayURL string
	// Signing says which key signs the tokens, and how the registry checks them. Without files, Pullpass makes the key.
	Signing Signing
	// ClientCAFile and TrustedProxies are settings of the listener.
	ClientCAFile   string
	TrustedProxies []string
	// Console is the page of the admin listener.
	Console bool
	// State is the state that it shares with other replicas, and the mode for replays.
	State State
	// PerServiceAccount is a limit; empty: one that no test reaches.
	PerServiceAccount Limit
	// ShutdownDelay is how long it serves after SIGTERM, as Go writes durations; empty: the default.
	ShutdownDelay string
	// Names are those that its certificate has, beside localhost.
	Names []string
	// APIVersion is that of the configuration file; empty: the current one.
	APIVersion string
	// Program is the program; empty: that of programs.Pullpass.
	Program string
	// AuditFile is where audit lines go instead of standard output. Audit and its relatives see none of them then.
	AuditFile string
	// Environment is what the process gets beyond the test's own: NAME=value.
	Environment []string
}

// Upstream is a registry behind the gateway.
type Upstream struct {
	Name    string   `json:"name"`
	URL     string   `json:"url"`
	CAFile  string   `json:"caFile,omitempty"`
	Actions []string `json:"actions,omitempty"` // pull is the default
	// RedirectHosts are where clients may be sent.
	RedirectHosts []string   `json:"redirectHosts,omitempty"`
	Credential    Credential `json:"credential,omitzero"`
}

// Credential is what an upstream is asked with.
type Credential struct {
	Basic Basic `json:"basic,omitzero"`
}

// Basic is a user name and a file with the password.
type Basic struct {
	Username     string `json:"username"`
	PasswordFile string `json:"passwordFile"`
}

// State says what becomes of replays, and where replicas share that and more. It is in memory without addresses.
type State struct {
	Redis  Redis  `json:"redis,omitzero"`
	Replay string `json:"replay,omitempty"` // off (the default), audit or enforce
}

// Redis names one server, the Sentinels of a master, or the nodes of a Cluster.
type Redis struct {
	Addresses    []string `json:"addresses,omitempty"`
	MasterName   string   `json:"masterName,omitempty"`
	Username     string   `json:"username,omitempty"`
	PasswordFile string   `json:"passwordFile,omitempty"`
}

// Limit is a bucket of Burst requests that fills with Rate a second.
type Limit struct {
	Rate  float64 `json:"rate"`
	Burst int     `json:"burst"`
}

// Signing is the signing of the registry's tokens.
type Signing struct {
	Trust      string `json:"trust,omitempty"`     // certificate (the default) or jwks
	Algorithm  string `json:"algorithm,omitempty"` // ES256 is the default
	CertFile   string `json:"certFile,omitempty"`
	KeyFile    string `json:"keyFile,omitempty"`
	CAFile     string `json:"caFile,omitempty"`
	ManagedDir string `json:"managedDir,omitempty"` // set by Start when there is neither this nor KeyFile
}

// Cluster is one element of the configuration's clusters.
type Cluster struct {
	Name       string     `json:"name"`
	Issuer     string     `json:"issuer"`
	Audiences  []string   `json:"audiences"`
	Discovery  Discovery  `json:"discovery,omitzero"`
	Bound      string     `json:"bound,omitempty"`
	Node       Node       `json:"node,omitzero"`
	Kubernetes Kubernetes `json:"kubernetes,omitzero"`
	// PullSecrets are the tokens that lie in Secrets.
	PullSecrets PullSecrets `json:"pullSecrets,omitzero"`
}

// PullSecrets says which of them are accepted; none without an audience.
type PullSecrets struct {
	Audience   string   `json:"audience"`
	Namespaces []string `json:"namespaces"`
}

// Identity is one element of the configuration's identities.
type Identity struct {
	Name      string              `json:"name"`
	Issuer    string              `json:"issuer"`
	Profile   string              `json:"profile"`
	Audiences []string            `json:"audiences"`
	Require   map[string][]string `json:"require,omitempty"`
	Discovery Discovery           `json:"discovery,omitzero"`
}

// Discovery says how Pullpass reads the issuer's keys.
type Discovery struct {
	JWKSURL   string `json:"jwksURL,omitempty"`
	CAFile    string `json:"caFile,omitempty"`
	TokenFile string `json:"tokenFile,omitempty"`
}

// Node says what is asked of the node that a token names, and of the caller.
type Node struct {
	Claim    string `json:"claim,omitempty"`
	Fallback string `json:"fallback,omitempty"`
	Selector string `json:"selector,omitempty"`
	Proof    Proof  `json:"proof,omitzero"`
}

// Proof says how callers prove that they are the node that their token names.
type Proof struct {
	Mode         string   `json:"mode,omitempty"`
	Methods      []string `json:"methods,omitempty"`
	ClientCAFile string   `json:"clientCAFile,omitempty"`
}

// Kubernetes says where ServiceAccounts, pods and nodes are read from.
type Kubernetes struct {
	KubeconfigFile string   `json:"kubeconfigFile,omitempty"`
	ManifestFiles  []string `json:"manifestFiles,omitempty"`
	PodEvents      *bool    `json:"podEvents,omitempty"`
	PodChecks      *bool    `json:"podChecks,omitempty"`
	Objects        *Objects `json:"objects,omitempty"`
}

// Objects says which objects of the cluster count.
type Objects struct {
	Policies bool     `json:"policies"`
	Requests bool     `json:"requests"`
	Within   []string `json:"within"`
	Status   bool     `json:"status,omitempty"`
}

// file is the configuration file. It is written as JSON, which is YAML too.
type file struct {
	APIVersion  string     `json:"apiVersion"`
	Kind        string     `json:"kind"`
	Server      server     `json:"server"`
	Admin       admin      `json:"admin"`
	Clusters    []Cluster  `json:"clusters,omitempty"`
	Identities  []Identity `json:"identities,omitempty"`
	Registries  []registry `json:"registries"`
	Gateway     *gateway   `json:"gateway,omitempty"`
	Upstreams   []Upstream `json:"upstreams,omitempty"`
	PolicyFiles []string   `json:"policyFiles"`
	State       State      `json:"state,omitzero"`
	Limits      limits     `json:"limits"`
	Audit       auditFile  `json:"audit,omitzero"`
}

type auditFile struct {
	File string `json:"file"`
}

type limits struct {
	PerServiceAccount Limit `json:"perServiceAccount"`
	PerAddress        Limit `json:"perAddress"`
}

type server struct {
	Address        string   `json:"address"`
	TLS            tls      `json:"tls"`
	TrustedProxies []string `json:"trustedProxies,omitempty"`
	ShutdownDelay  string   `json:"shutdownDelay,omitempty"`
}

type tls struct {
	CertFile     string `json:"certFile"`
	KeyFile      string `json:"keyFile"`
	ClientCAFile string `json:"clientCAFile,omitempty"`
}

type gateway struct {
	Address string `json:"address"`
	TLS     tls    `json:"tls"`
	URL     string `json:"url"`
	Service string `json:"service"`
}

type admin struct {
	Address string `json:"address"`
	Console bool   `json:"console,omitempty"`
}

type registry struct {
	Service string  `json:"service"`
	Issuer  string  `json:"issuer"`
	Signing Signing `json:"signing"`

	TokenLifetime string `json:"tokenLifetime,omitempty"`
}
