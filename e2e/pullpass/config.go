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
}

// Signing is the signing of the registry's tokens.
type Signing struct {
	Trust      string `json:"trust,omitempty"` // certificate (the default) or jwks
	CertFile   string `json:"certFile,omitempty"`
	KeyFile    string `json:"keyFile,omitempty"`
	CAFile     string `json:"caFile,omitempty"`
	ManagedDir string `json:"managedDir,omitempty"` // set by Start when there is no KeyFile
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

// Node says whether the node claim is required.
type Node struct {
	Claim string `json:"claim,omitempty"`
}

// Kubernetes says where ServiceAccounts are read from.
type Kubernetes struct {
	ManifestFiles []string `json:"manifestFiles,omitempty"`
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
}

type server struct {
	Address string `json:"address"`
	TLS     tls    `json:"tls"`
}

type tls struct {
	CertFile string `json:"certFile"`
	KeyFile  string `json:"keyFile"`
}

type admin struct {
	Address string `json:"address"`
}

type registry struct {
	Service string  `json:"service"`
	Issuer  string  `json:"issuer"`
	Signing Signing `json:"signing"`
}
