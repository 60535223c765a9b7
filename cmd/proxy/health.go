package main

import (
	"encoding/json"
	"net/http"
	"sync/atomic"
	"time"
)

// check is the state of one dependency.
type check struct {
	Name    string `json:"name"`
	Healthy bool   `json:"healthy"`
	// Tolerated marks a dependency without which the proxy serves all the same.
	Tolerated bool   `json:"tolerated,omitempty"`
	Message   string `json:"message,omitempty"`
}

// readiness answers /readyz. One cluster's issuer that is down must not take
// the others' pulls with it, so the proxy is unready only when a whole kind of
// dependency is down, or when it shuts down; the body names each one.
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

// lastAnswers ends connections with the next answer once the proxy shuts down,
// so that clients come back through the load balancer to another replica. Idle
// connections stay: a request may be on its way. For HTTP/2, net/http makes a
// GOAWAY of it.
func (rd *readiness) lastAnswers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rd.draining.Load() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// checks says of everything that is needed to serve how it is now.
func (s *service) checks() map[string][]check {
	g := s.current.Load()
	all := g.checks()
	if len(g.objects.connected) == 0 {
		delete(all, "kubernetes")
	}
	all["files"] = s.readings.checks(s.watched(g), s.restartNeeded())
	if g.tls != nil {
		all["tls"] = []check{g.tls.check(time.Now())}
	}
	if s.shared.redis != nil {
		all["redis"] = s.shared.check()
	}
	return all
}

// checks says how the parts are that may fail by themselves.
func (p parts) checks() map[string][]check {
	return map[string][]check{"issuers": p.checkIssuers(), "signingKeys": p.checkSigningKeys(), "kubernetes": p.objects.checks(p.cfg)}
}

func (p parts) checkIssuers() []check {
	var checks []check
	for _, status := range p.verifier.Status() {
		c := check{Name: status.Cluster, Healthy: status.Keys > 0, Message: status.LastFailure}
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
