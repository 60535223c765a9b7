package config

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/term"
)

func FindCluster(cfg *Config, name string) (*Cluster, error) {
	if name == "" && len(cfg.Clusters) == 1 {
		return &cfg.Clusters[0], nil
	}
	var names []string
	for i := range cfg.Clusters {
		if cfg.Clusters[i].Name == name {
			return &cfg.Clusters[i], nil
		}
		names = append(names, cfg.Clusters[i].Name)
	}
	return nil, fmt.Errorf("--cluster %q is not configured; clusters[].name are: %q", name, names)
}

// IsRegistryHost accepts hosts with which the name of an image can begin. A name without a dot and
// a port would be a repository of docker.io. The kubelet cannot match an IPv6 address without a
// port.
func IsRegistryHost(s string) bool {
	if _, err := netip.ParseAddrPort(s); err == nil {
		return true
	}
	name, port, hasPort := strings.Cut(s, ":")
	if hasPort {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil || port[0] == '0' {
			return false
		}
	}
	if !hasPort && name != "localhost" && !strings.Contains(name, ".") {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if !names.IsLabel(label) {
			return false
		}
	}
	return true
}

func FindRegistry(cfg *Config, service string) (*Registry, error) {
	if service == "" && len(cfg.Registries) == 1 {
		return &cfg.Registries[0], nil
	}
	var services []string
	for i := range cfg.Registries {
		if cfg.Registries[i].Service == service {
			return &cfg.Registries[i], nil
		}
		services = append(services, cfg.Registries[i].Service)
	}
	return nil, fmt.Errorf("--service %q is not configured; registries[].service are: %q", service, services)
}

func KnownCluster(cfg *Config, flag, name string) error {
	if cfg.Cluster(name) != nil {
		return nil
	}
	return fmt.Errorf("%s: cluster %q is not configured (clusters[].name)", flag, name)
}

// FindIdentity returns the identity that a flag names.
func FindIdentity(cfg *Config, flag, name string) (*Provider, error) {
	for i := range cfg.Identities {
		if cfg.Identities[i].Name == name {
			return &cfg.Identities[i], nil
		}
	}
	return nil, fmt.Errorf("%s: identity %s is not configured (identities[].name)", flag, term.QuoteValue(name))
}
