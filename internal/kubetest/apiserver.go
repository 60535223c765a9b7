package kubetest

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pullpass/pullpass/internal/pkitest"
)

type Object = map[string]any

// APIServer is as much of an API server as the proxy asks, over TLS. It serves
// what the real one cannot be made to show at will: lists that fail. What is
// said about real ones is in e2e.
type APIServer struct {
	*httptest.Server

	mu       sync.Mutex
	objects  map[string][]Object // by resource
	events   []Object            // that were written
	lists    int                 // that were asked for
	watches  int                 // that are open
	failList func()              // called for each list of ServiceAccounts, which then fails; nil: they succeed
}

func NewAPIServer(t *testing.T) *APIServer {
	t.Helper()
	a := &APIServer{objects: map[string][]Object{
		"serviceaccounts": {newObject("team-a", "web", "uid-1")},
		"pods":            {newObject("team-a", "web-0", "uid-2")},
		"nodes":           {newObject("", "node1", "uid-3"), newObject("", "node2", "uid-4")},
		"namespaces":      {newObject("", "team-a", "uid-5")},
	}}
	a.Server = httptest.NewUnstartedServer(a)
	a.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	a.StartTLS()
	t.Cleanup(a.Close)
	t.Cleanup(a.CloseClientConnections) // watches
	return a
}

func newObject(namespace, name, uid string) Object {
	return Object{"metadata": Object{"namespace": namespace, "name": name, "uid": uid, "resourceVersion": "1"}}
}

func (a *APIServer) Kubeconfig() string {
	ca, _ := json.Marshal(pkitest.PEM("CERTIFICATE", a.Certificate().Raw))
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"clusters": [{"name": "c", "cluster": {"server": %q, "certificate-authority-data": %s}}],
"users": [{"name": "u", "user": {"token": "kubeconfig-secret"}}],
"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}`, a.URL, ca)
}

// Set adds a field to the only object of this name.
func (a *APIServer) Set(resource, name, field string, value any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range a.objects[resource] {
		metadata := o["metadata"].(Object)
		if metadata["name"] != name {
			continue
		}
		if field == "labels" || field == "annotations" {
			metadata[field] = value
		} else {
			o[field] = value
		}
	}
}

// Rename gives the only object of this name another one.
func (a *APIServer) Rename(resource, name, next string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range a.objects[resource] {
		if metadata := o["metadata"].(Object); metadata["name"] == name {
			metadata["name"] = next
		}
	}
}

func (a *APIServer) count(what *int, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	*what += n
}

// Traffic returns how many lists were asked for, and how many watches are open.
func (a *APIServer) Traffic() (lists, watches int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lists, a.watches
}

func (a *APIServer) FailLists(called func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failList = called
}

func (a *APIServer) Written() []Object {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.events)
}

// ServeHTTP answers /api/v1[/namespaces/NAMESPACE]/RESOURCE[/NAME].
func (a *APIServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/api/v1/"), "/")
	namespace, name := "", ""
	if len(parts) > 2 {
		namespace, parts = parts[1], parts[2:]
	}
	resource := parts[0]
	if len(parts) == 2 {
		name = parts[1]
	}
	query := r.URL.Query()
	switch {
	case r.Header.Get("Authorization") != "Bearer kubeconfig-secret":
		answerStatus(w, http.StatusUnauthorized, "Unauthorized", Object{})
	case r.Method == http.MethodPost && resource == "events":
		var event Object
		_ = json.NewDecoder(r.Body).Decode(&event)
		a.mu.Lock()
		a.events = append(a.events, event)
		a.mu.Unlock()
		_ = json.NewEncoder(w).Encode(event)
	case query.Get("sendInitialEvents") != "": // as API servers do that do not stream lists
		answerStatus(w, http.StatusUnprocessableEntity, "Invalid", Object{})
	case query.Get("watch") != "":
		a.count(&a.watches, 1)
		defer a.count(&a.watches, -1)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done() // nothing ever happens
	case name != "":
		a.answerGet(w, resource, namespace, name)
	default:
		a.count(&a.lists, 1)
		a.answerList(w, resource)
	}
}

func (a *APIServer) answerGet(w http.ResponseWriter, resource, namespace, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range a.objects[resource] {
		if metadata := o["metadata"].(Object); metadata["name"] == name && metadata["namespace"] == namespace {
			answerJSON(w, http.StatusOK, asKind(o, resource))
			return
		}
	}
	answerStatus(w, http.StatusNotFound, "NotFound", Object{"kind": resource, "name": name})
}

func (a *APIServer) answerList(w http.ResponseWriter, resource string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if resource == "serviceaccounts" && a.failList != nil {
		a.failList()
		answerStatus(w, http.StatusInternalServerError, "InternalError", Object{})
		return
	}
	kind := "PartialObjectMetadataList"
	version := "meta.k8s.io/v1"
	if resource == "nodes" {
		kind, version = "NodeList", "v1"
	}
	items := []Object{}
	for _, o := range a.objects[resource] {
		items = append(items, asKind(o, resource))
	}
	answerJSON(w, http.StatusOK, Object{"apiVersion": version, "kind": kind, "metadata": Object{"resourceVersion": "1"}, "items": items})
}

// asKind returns a whole object, which has everything of its metadata as well.
func asKind(o Object, resource string) Object {
	kinds := map[string]string{"nodes": "Node", "pods": "Pod", "serviceaccounts": "ServiceAccount", "namespaces": "Namespace"}
	whole := Object{"apiVersion": "v1", "kind": kinds[resource]}
	for field, value := range o {
		whole[field] = value
	}
	return whole
}

func answerStatus(w http.ResponseWriter, code int, reason string, details Object) {
	answerJSON(w, code, Object{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason, "message": reason, "code": code, "details": details})
}

func answerJSON(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(value)
}
