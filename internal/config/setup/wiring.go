package setup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/pullpass/pullpass/internal/base/file"
	"github.com/pullpass/pullpass/internal/cluster/kube"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/subjects"
	"github.com/pullpass/pullpass/internal/policy/warning"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
)

// RegistryLeeway is how long after its expiry distribution still accepts a token. A replaced key
// stays published that much longer.
const RegistryLeeway = 60 * time.Second

// LoadPolicy reads the policy files as one policy. It reports all faults at once.
func LoadPolicy(cfg *config.Config) (*policy.Policy, error) {
	return loadPolicy(cfg, "policyFiles", cfg.PolicyFiles)
}

// LoadTrial does the same with the files of the policy that decides nothing. Without such files, it
// returns nil.
func LoadTrial(cfg *config.Config) (*policy.Policy, error) {
	if len(cfg.PolicyTrial.Files) == 0 {
		return nil, nil
	}
	return loadPolicy(cfg, "policyTrial.files", cfg.PolicyTrial.Files)
}

// AnnotationKeys returns the annotations that any of the policies reads, sorted. Policies may be nil.
func AnnotationKeys(policies ...*policy.Policy) []string {
	var keys []string
	for _, p := range policies {
		if p != nil {
			keys = append(keys, p.AnnotationKeys()...)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func loadPolicy(cfg *config.Config, field string, names []string) (*policy.Policy, error) {
	files, err := readPolicies(field, names, file.Read)
	if err != nil {
		return nil, err
	}
	return ParsePolicy(cfg, files...)
}

// ParsePolicy parses files with the identities of the configuration.
func ParsePolicy(cfg *config.Config, files ...policy.File) (*policy.Policy, error) {
	profiles := map[string]identity.Profile{}
	for _, i := range cfg.Identities {
		profiles[i.Name] = i.Profile
	}
	return policy.ParseFor(profiles, files...)
}

// maxReadings is how often files are read that change meanwhile.
const maxReadings = 5

// readPolicies reads the files until two readings in a row are equal. The kubelet replaces all files
// of a volume in one step, which may be between two of them. A denial that moves from one file to
// the other would be in neither.
func readPolicies(field string, names []string, read func(name string, limit int64) ([]byte, error)) ([]policy.File, error) {
	var before []policy.File
	for range maxReadings {
		files := make([]policy.File, 0, len(names))
		var faults []error
		for i, name := range names {
			data, err := read(name, policy.MaxBytes)
			if err != nil {
				faults = append(faults, fmt.Errorf("%s[%d]: %w", field, i, err))
				continue
			}
			files = append(files, policy.File{Name: name, Data: data})
		}
		if len(faults) > 0 {
			return nil, errors.Join(faults...)
		}
		if before != nil && slices.EqualFunc(files, before, func(a, b policy.File) bool { return bytes.Equal(a.Data, b.Data) }) {
			return files, nil
		}
		before = files
	}
	return nil, fmt.Errorf("%s: they changed while they were read, again and again; let their writer finish", field)
}

// PolicyWarnings names rules of the policy that allow less, or more, than they seem to.
func PolicyWarnings(cfg *config.Config, policy *policy.Policy) []string {
	var clusters, unconnected, unknown, unasked, services []string
	for i := range cfg.Clusters {
		name, kubernetes := cfg.Clusters[i].Name, cfg.Clusters[i].Kubernetes
		clusters = append(clusters, name)
		if !kubernetes.Objects.Requests {
			unasked = append(unasked, name)
		}
		if !kubernetes.Connected() {
			unconnected = append(unconnected, name)
			if len(kubernetes.ManifestFiles) == 0 {
				unknown = append(unknown, name)
			}
		}
	}
	known := knownIdentities(cfg)
	identities := slices.Sorted(maps.Keys(known))
	for i := range cfg.Registries {
		services = append(services, cfg.Registries[i].Service)
	}
	warnings := slices.Concat(
		policy.Deprecated(),
		warning.Unused(policy, clusters, identities, services), warning.WithoutLabels(policy, unconnected), warning.WithoutAnnotations(policy, unknown),
		warning.WithoutRequests(policy, unasked, len(unasked) == len(clusters)), warning.Collisions(policy, clusters), warning.Cautions(policy, known),
	)
	if cfg.Gateway != nil && len(services) > 1 { // a single service is the service of every rule
		var upstreams []string
		for i := range cfg.Upstreams {
			upstreams = append(upstreams, cfg.Upstreams[i].Name)
		}
		warnings = append(warnings, warning.BehindGateway(policy, upstreams)...)
	}
	return warnings
}

func knownIdentities(cfg *config.Config) map[string]subjects.KnownIdentity {
	known := map[string]subjects.KnownIdentity{}
	for _, i := range cfg.Identities {
		known[i.Name] = subjects.KnownIdentity{Profile: i.Profile, Require: slices.Sorted(maps.Keys(i.Require))}
	}
	return known
}

// Issuers returns the verifier's settings for each cluster and each identity.
func Issuers(cfg *config.Config) []oidc.Issuer {
	var issuers []oidc.Issuer
	for _, c := range cfg.Clusters {
		issuers = append(issuers, oidc.Issuer{
			Cluster:     c.Name,
			URL:         c.Issuer,
			Audiences:   c.Audiences,
			PullSecrets: pullSecrets(c.PullSecrets),
			Bound:       c.Bound,
			RequireNode: c.Node.Claim == config.NodeClaimRequired && c.Node.Fallback == config.NodeFallbackNone,
			MaxLifetime: c.MaxTokenLifetime.Duration(),
			MaxKeyAge:   c.Discovery.MaxKeyAge.Duration(),
			Discovery:   discovery(c.Discovery),
		})
	}
	for _, p := range cfg.Identities {
		issuers = append(issuers, oidc.Issuer{
			Provider:    &oidc.Provider{Name: p.Name, Profile: p.Profile, Require: p.Require},
			URL:         p.Issuer,
			Audiences:   p.Audiences,
			MaxLifetime: p.MaxTokenLifetime.Duration(),
			MaxKeyAge:   p.Discovery.MaxKeyAge.Duration(),
			Discovery:   discovery(p.Discovery),
		})
	}
	return issuers
}

// IdentityIssuers returns the issuers with a Provider, by their names.
func IdentityIssuers(cfg *config.Config) map[string]*oidc.Issuer {
	byName := map[string]*oidc.Issuer{}
	for _, issuer := range Issuers(cfg) {
		if issuer.Provider != nil {
			byName[issuer.Provider.Name] = &issuer
		}
	}
	return byName
}

// LongestAcceptance is how long from now a token, or something that was issued for it, can be accepted.
func LongestAcceptance(cfg *config.Config) time.Duration {
	longest := time.Duration(0)
	for i := range cfg.Clusters {
		longest = max(longest, cfg.Clusters[i].MaxTokenLifetime.Duration())
	}
	for i := range cfg.Identities {
		longest = max(longest, cfg.Identities[i].MaxTokenLifetime.Duration()+exchange.PushLifetime)
	}
	return longest + oidc.ClockSkew + RegistryLeeway
}

func pullSecrets(p *config.PullSecrets) oidc.PullSecrets {
	if p == nil {
		return oidc.PullSecrets{}
	}
	return oidc.PullSecrets{Audience: p.Audience, Namespaces: p.Namespaces}
}

func discovery(d config.Discovery) oidc.Discovery {
	return oidc.Discovery{URL: d.URL, JWKSURL: d.JWKSURL, JWKSFile: d.JWKSFile, CAFile: d.CAFile, TokenFile: d.TokenFile}
}

func NewVerifier(cfg *config.Config, logger *slog.Logger) (*oidc.Verifier, error) {
	return oidc.New(oidc.Config{Issuers: Issuers(cfg), Logger: logger})
}

// NodeChecks returns the node checks of each cluster. cas are the CAs of their kubelets, by
// cluster. If it is nil, certificates prove nothing.
func NodeChecks(cfg *config.Config, cas map[string]*nodeproof.CAs) (map[string]exchange.NodeChecks, error) {
	all := map[string]exchange.NodeChecks{}
	for i := range cfg.Clusters {
		c := &cfg.Clusters[i]
		checks := exchange.NodeChecks{
			// The verifier cannot know the node of a token without a node claim.
			Required: c.Node.Claim == config.NodeClaimRequired && c.Node.Fallback == config.NodeFallbackAPI,
			Proof: nodeproof.Config{
				Mode:    c.Node.Proof.Mode,
				Methods: c.Node.Proof.Effective,
				CAs:     cas[c.Name],
			},
		}
		if c.Node.Selector != "" {
			var err error
			if checks.Selector, err = labels.Parse(c.Node.Selector); err != nil {
				return nil, fmt.Errorf("cluster %s: node.selector: %w", c.Name, err)
			}
		}
		all[c.Name] = checks
	}
	return all, nil
}

// manifestFiles returns the files of each cluster that has any.
func manifestFiles(cfg *config.Config) map[string][]string {
	files := map[string][]string{}
	for _, c := range cfg.Clusters {
		if len(c.Kubernetes.ManifestFiles) > 0 {
			files[c.Name] = c.Kubernetes.ManifestFiles
		}
	}
	return files
}

// NewManifests reads the ServiceAccounts of the manifest files.
func NewManifests(cfg *config.Config, annotationKeys []string) (*kube.Manifests, error) {
	return kube.NewManifests(kube.ManifestsConfig{Files: manifestFiles(cfg), AnnotationKeys: annotationKeys})
}

// SigningKeys are the keys of one registry, with the code that keeps them current.
type SigningKeys struct {
	signing.Keys
	Reload  func() error
	run     func(context.Context)
	Managed *signing.ManagedKeys
}

// CheckGatewayKeys requires that no other registry has a key of the gateway. Such a registry would
// accept tokens for the gateway if it checks no audience, as zot. It compares the keys, because two
// files can hold the same one.
func CheckGatewayKeys(cfg *config.Config, keys map[string]*SigningKeys) error {
	if cfg.Gateway == nil {
		return nil
	}
	own := map[string]bool{}
	for _, key := range keys[cfg.Gateway.Service].Shared() {
		own[key.ID] = true
	}
	for i := range cfg.Registries {
		r := &cfg.Registries[i]
		if r.Service == cfg.Gateway.Service {
			continue
		}
		for _, key := range keys[r.Service].Shared() {
			if own[key.ID] {
				return cfg.Fault(fmt.Sprintf("registries[%d].signing", i), fmt.Errorf("has a key that the gateway's service %s has as well (%s); give the gateway a key of its own", cfg.Gateway.Service, key.ID))
			}
		}
	}
	return nil
}

// Run keeps the keys current until ctx ends.
func (k *SigningKeys) Run(ctx context.Context) { k.run(ctx) }

// NewSigningKeys opens the keys of one registry. Managed keys may still be missing:
// managed.Maintain makes them.
func NewSigningKeys(r *config.Registry, logger *slog.Logger) (*SigningKeys, error) {
	lifetime := r.TokenLifetime.Duration()
	if r.Signing.KeyFile != "" {
		keys, err := signing.NewFileKeys(signing.FileKeysConfig{
			Algorithm: r.Signing.Algorithm, Trust: r.Signing.Trust,
			CertFile: r.Signing.CertFile, KeyFile: r.Signing.KeyFile, CAFile: r.Signing.CAFile,
			Overlap: lifetime + RegistryLeeway, Logger: logger,
		})
		if err != nil {
			return nil, fmt.Errorf("registry %s: %w", r.Service, err)
		}
		return &SigningKeys{Keys: keys, Reload: keys.Reload, run: keys.Run}, nil
	}
	keys, err := signing.NewManagedKeys(signing.ManagedKeysConfig{
		Dir: r.Signing.ManagedDir, Algorithm: r.Signing.Algorithm, Trust: r.Signing.Trust,
		Service: r.Service, Lifetime: lifetime, Logger: logger,
	})
	if err != nil {
		return nil, fmt.Errorf("registry %s: %w", r.Service, err)
	}
	return &SigningKeys{Keys: keys, Reload: keys.Reload, run: keys.Run, Managed: keys}, nil
}
