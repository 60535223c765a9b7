package server

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pullpass/pullpass/internal/cluster/kube"
	"github.com/pullpass/pullpass/internal/state"
)

// check is the state of one dependency.
type check struct {
	Name    string `json:"name"`
	Healthy bool   `json:"healthy"`
	// Tolerated marks a dependency whose failure does not make the proxy unready.
	Tolerated bool   `json:"tolerated,omitempty"`
	Message   string `json:"message,omitempty"`
	// late means that nothing is missing but lists that take long and that a start does not wait for.
	late bool
}

// readiness serves /readyz. If the issuer of one cluster is down, pulls of the others must
// continue. So the proxy is unready only if a whole kind of dependency is down, or during shutdown.
// The body names each dependency.
type readiness struct {
	draining atomic.Bool
	checks   func() map[string][]check // by kind
}

func (rd *readiness) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	report := struct {
		Ready    bool               `json:"ready"`
		Draining bool               `json:"draining,omitempty"`
		Checks   map[string][]check `json:"checks"`
	}{Ready: !rd.draining.Load(), Draining: rd.draining.Load(), Checks: rd.checks()}
	for _, checks := range report.Checks {
		healthy := false
		for _, c := range checks {
			healthy = healthy || c.Healthy || c.Tolerated
		}
		report.Ready = report.Ready && healthy
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !report.Ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(report)
}

// lastAnswers closes connections after the next response once the proxy shuts down, so that clients
// reconnect to another replica through the load balancer. Idle connections stay open, because a
// request may be on its way.
func (rd *readiness) lastAnswers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rd.draining.Load() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// checks returns the present state of all dependencies.
func (s *Server) checks() map[string][]check {
	g := s.current.Load()
	all := g.checks()
	if len(g.objects.Connected) == 0 {
		delete(all, "kubernetes")
	}
	if len(g.upstreams) == 0 {
		delete(all, "upstreams")
	}
	if g.assertions == nil {
		delete(all, "assertions")
	}
	all["files"] = s.readings.checks(s.watched(g), s.restartNeeded(), g.pending != nil)
	if g.tls != nil {
		all["tls"] = []check{g.tls.check(time.Now())}
	}
	if s.shared.Redis != nil {
		all["redis"] = checkRedis(s.shared.Redis.Status(), s.shared.List.Status())
	}
	return all
}

// checks returns the state of the parts that may fail independently.
func (p parts) checks() map[string][]check {
	return map[string][]check{
		"issuers": p.checkIssuers(), "signingKeys": p.checkSigningKeys(), "kubernetes": p.checkClusters(), "upstreams": p.checkUpstreams(),
		"assertions": p.checkAssertions(),
	}
}

func (p parts) checkIssuers() []check {
	var checks []check
	for _, status := range p.verifier.Status() {
		c := check{Name: status.Name, Healthy: status.Keys > 0, Message: status.LastFailure}
		if !c.Healthy && c.Message == "" {
			c.Message = "no keys fetched yet"
		}
		checks = append(checks, c)
	}
	return checks
}

func (p parts) checkSigningKeys() []check {
	var checks []check
	for i := range p.cfg.Registries {
		c := check{Name: p.cfg.Registries[i].Service, Healthy: true}
		if _, err := p.keys[c.Name].Signing(); err != nil {
			c.Healthy, c.Message = false, err.Error()
		} else if err := p.keys[c.Name].EndsSoon(); err != nil {
			c.Message = err.Error()
		}
		checks = append(checks, c)
	}
	return checks
}

// checkAssertions says whether upstreams can be used with the caller's identity. Without it, other
// upstreams still work.
func (p parts) checkAssertions() []check {
	if p.assertions == nil {
		return nil
	}
	c := check{Name: p.cfg.Assertions.Issuer, Healthy: true}
	if _, err := p.assertions.Keys().Signing(); err != nil {
		c.Healthy, c.Tolerated, c.Message = false, true, err.Error()
	}
	return []check{c}
}

// checkClusters says of each cluster whether its objects are known. With an API server, they are
// known once all were listed. After later failures the cluster stays healthy, because the listed
// objects answer from memory.
func (p parts) checkClusters() []check {
	var checks []check
	for i := range p.cfg.Clusters {
		name := p.cfg.Clusters[i].Name
		if c, ok := p.objects.Connection(name); ok {
			checks = append(checks, kubernetesCheck(name, c.Status()))
		} else {
			// It is served regardless of the API servers of other clusters.
			checks = append(checks, check{Name: name, Healthy: true, Message: "no API server is asked"})
		}
	}
	return checks
}

func kubernetesCheck(name string, status kube.ClusterStatus) check {
	c := check{Name: name, Healthy: true, Tolerated: true, late: true}
	var messages []string
	for _, r := range status.Resources {
		c.Healthy = c.Healthy && r.Synced
		c.late = c.late && (r.Synced || r.Optional && r.LastFailure == "")
		// Policy files apply even if objects cannot be listed. But a start waits for a while:
		// pods that need objects are refused until these are listed.
		c.Tolerated = c.Tolerated && (r.Synced || r.Optional && (r.LastFailure != "" || r.Overdue))
		switch {
		case r.LastFailure != "":
			messages = append(messages, r.Resource+": "+r.LastFailure)
		case !r.Synced:
			messages = append(messages, r.Resource+": not listed yet")
		}
	}
	c.Message, c.Tolerated, c.late = strings.Join(messages, "; "), c.Tolerated && !c.Healthy, c.late && !c.Healthy
	return c
}

// checkRedis describes the state of Redis. A proxy continues to serve without Redis, so it stays
// ready. But it is not ready before the first reading of the revocations, because until then it can
// grant nothing.
func checkRedis(status state.RedisStatus, list state.RevocationsStatus) []check {
	c := check{Name: "redis", Healthy: status.Healthy && list.LastFailure == "", Tolerated: !list.Read.IsZero()}
	switch {
	case list.Read.IsZero():
		c.Message = "the list of revocations has not been read yet, so nothing is granted"
	case !status.Healthy:
		c.Message = "limits count for this replica alone, and the list of revocations is that of " + list.Read.UTC().Format(time.RFC3339)
	case !c.Healthy:
		c.Message = "the list of revocations was last read whole at " + list.Read.UTC().Format(time.RFC3339)
	}
	switch {
	case c.Healthy:
	case !status.Healthy && status.LastFailure != "":
		c.Message += ": " + status.LastFailure
	case list.LastFailure != "":
		c.Message += ": " + list.LastFailure
	}
	return []check{c}
}
