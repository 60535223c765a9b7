package pullpass

// Config is the configuration of one Pullpass, with only what the tests set. What is left empty is not written, so the
// default of Pullpass applies.
type Config struct {
	Clusters []Cluster
	// Policy is the content of the policy file.
	Policy string
	// Service is the one registry that tokens are issued for.
	Service string
	// Signing says which key signs the tokens, and how the registry checks them. Without files, Pullpass makes the key.
	Signing Signing
	// ClientCAFile and TrustedProxies are settings of the listener.
	ClientCAFile   string
	TrustedProxies []string
	// Names are those that its certificate has, beside localhost.
	Names []string
	// Program is the program; empty: that of programs.Pullpass.
	Program string
	// Environment is what the process gets beyond the test's own: NAME=value.
	Environment []string
}

// Signing is the signing of the registry's tokens.
type Signing struct {
	Trust      string `json:"trust,omitempty"` // certificate (the default) or jwks
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
}

// Discovery says how Pullpass reads the issuer's keys.
type Discovery struct {
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
}

// file is the configuration file. It is written as JSON, which is YAML too.
type file struct {
	APIVersion  string     `json:"apiVersion"`
	Kind        string     `json:"kind"`
	Server      server     `json:"server"`
	Admin       admin      `json:"admin"`
	Clusters    []Cluster  `json:"clusters"`
	Registries  []registry `json:"registries"`
	PolicyFiles []string   `json:"policyFiles"`
	Limits      limits     `json:"limits"`
}

type limits struct {
	PerServiceAccount limit `json:"perServiceAccount"`
	PerAddress        limit `json:"perAddress"`
}

type limit struct {
	Rate  float64 `json:"rate"`
	Burst int     `json:"burst"`
}

type server struct {
	Address        string   `json:"address"`
	TLS            tls      `json:"tls"`
	TrustedProxies []string `json:"trustedProxies,omitempty"`
}

type tls struct {
	CertFile     string `json:"certFile"`
	KeyFile      string `json:"keyFile"`
	ClientCAFile string `json:"clientCAFile,omitempty"`
}

type admin struct {
	Address string `json:"address"`
}

type registry struct {
	Service string  `json:"service"`
	Issuer  string  `json:"issuer"`
	Signing Signing `json:"signing"`
}
