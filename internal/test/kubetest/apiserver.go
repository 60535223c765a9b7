package kubetest

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/pullpass/pullpass/internal/test/pkitest"
)

const kubeconfigToken = "kubeconfig-secret"

// NewAPIServer returns a small cluster, served over TLS, that does not stream
// lists. It shows what a real one cannot be made to show at will: lists that fail.
// The tests with real ones are in e2e.
func NewAPIServer(t *testing.T) *Server {
	t.Helper()
	s := NewServer()
	s.streams = false
	s.Put("serviceaccounts", newObject("team-a", "web", "uid-1"))
	s.Put("pods", newObject("team-a", "web-0", "uid-2"))
	s.Put("nodes", newObject("", "node1", "uid-3"), newObject("", "node2", "uid-4"))
	s.Put("namespaces", newObject("", "team-a", "uid-5"))
	s.tls = httptest.NewUnstartedServer(s)
	s.tls.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	s.tls.StartTLS()
	t.Cleanup(s.tls.Close)
	t.Cleanup(s.tls.CloseClientConnections) // watches
	return s
}

func newObject(namespace, name, uid string) Object {
	return Object{"metadata": Object{"namespace": namespace, "name": name, "uid": uid}}
}

// Close ends what NewAPIServer began.
func (s *Server) Close() { s.tls.Close() }

func (s *Server) Kubeconfig() string { return Kubeconfig(s.tls) }

// Kubeconfig is for a client of the server.
func Kubeconfig(server *httptest.Server) string {
	ca, _ := json.Marshal(pkitest.PEM("CERTIFICATE", server.Certificate().Raw))
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"clusters": [{"name": "c", "cluster": {"server": %q, "certificate-authority-data": %s}}],
"users": [{"name": "u", "user": {"token": %q}}],
"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "pullpass"}}]}`, server.URL, ca, kubeconfigToken)
}

// Set adds a field to the only object of this name.
func (s *Server) Set(resource, name, field string, value any) {
	o := s.named(resource, name)
	if field == "labels" || field == "annotations" {
		o["metadata"] = maps.Clone(metadata(o))
		metadata(o)[field] = value
	} else {
		o[field] = value
	}
	s.Put(resource, o)
}

// Rename gives the only object of this name a new name.
func (s *Server) Rename(resource, name, next string) {
	o := s.named(resource, name)
	namespace, _ := metadata(o)["namespace"].(string)
	s.Remove(resource, namespace, name)
	o["metadata"] = maps.Clone(metadata(o))
	metadata(o)["name"] = next
	s.Put(resource, o)
}

// named returns a copy of the only object of this name.
func (s *Server) named(resource, name string) Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.objects[resource] {
		if metadata(o)["name"] == name {
			return maps.Clone(o)
		}
	}
	panic("kubetest: no " + resource + " " + name)
}

// Traffic returns how many lists of more than one object were asked for, and how many watches are open.
func (s *Server) Traffic() (lists, watches int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, open := range s.watches {
		watches += open
	}
	return s.lists, watches
}

// FailLists has lists of ServiceAccounts fail, and calls called for each; nil
// ends it.
func (s *Server) FailLists(called func()) {
	if called == nil {
		s.Fail("list serviceaccounts", nil)
		return
	}
	s.Fail("list serviceaccounts", func(w http.ResponseWriter, _ *http.Request) {
		called()
		answerStatus(w, http.StatusInternalServerError, "InternalError", Object{})
	})
}

// Written returns the events that were written.
func (s *Server) Written() []Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.written)
}

func answerStatus(w http.ResponseWriter, code int, reason string, details Object) {
	answerJSON(w, code, Object{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason, "message": reason, "code": code, "details": details})
}

func answerJSON(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(value)
}
