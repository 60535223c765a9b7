package server

import (
	"github.com/pullpass/pullpass/internal/cluster/kube"
	"github.com/pullpass/pullpass/internal/cluster/objectstatus"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
	"github.com/pullpass/pullpass/internal/server/metrics"
)

// sources returns the sources of the metrics.
func (s *Server) sources(g *generation) metrics.Sources {
	from := metrics.Sources{
		Load: g.handler.Load, Connections: s.connectionCounts, Issuers: g.verifier.Status, PodEvents: g.objects.PodEvents, Audit: s.audit.Status, Telemetry: s.telemetry.Failures(),
		Policy: g.exchanger.Policy, Deprecated: len(g.cfg.Deprecated),
		Kubernetes: map[string]func() kube.ClusterStatus{}, ObjectStatus: map[string]func() objectstatus.Status{}, Upstreams: map[string]func() upstream.Status{}, SigningKeys: map[string]signing.Keys{},
	}
	for i := range g.cfg.Clusters {
		from.Clusters = append(from.Clusters, g.cfg.Clusters[i].Name)
	}
	for i := range g.cfg.Identities {
		from.Identities = append(from.Identities, g.cfg.Identities[i].Name)
	}
	for _, group := range s.watched(g) {
		from.Files = append(from.Files, group.Name)
	}
	for service, keys := range g.keys {
		from.Services = append(from.Services, service)
		from.SigningKeys[service] = keys
	}
	for _, c := range g.objects.Connected {
		from.Kubernetes[c.Name] = c.Status
		if c.ObjectStatus != nil {
			from.ObjectStatus[c.Name] = c.ObjectStatus.Status
		}
	}
	if g.assertions != nil {
		from.Assertions = g.assertions.Keys()
	}
	if g.gateway != nil {
		from.Gateway = s.gatewayMemory.Load
	}
	for name, u := range g.upstreams {
		from.Upstreams[name] = u.Status
	}
	if g.tls != nil {
		from.TLS = &g.tls.ends
	}
	if s.shared.Redis != nil {
		from.Redis, from.Revocations = s.shared.Redis.Status, s.shared.List.Status
	}
	return from
}

// connectionCounts returns the counts of both listeners.
func (s *Server) connectionCounts() metrics.ConnectionCounts {
	all := s.connections.counts()
	if s.streams != nil {
		streams := s.streams.counts()
		all.Open, all.Most, all.Refused = all.Open+streams.Open, all.Most+streams.Most, all.Refused+streams.Refused
	}
	return all
}
