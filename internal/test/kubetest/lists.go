package kubetest

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// SecretValues are what Secrets of the fake cluster hold. No output may have
// any of them.
var SecretValues = map[string]string{
	"user": "sekret-user", "password": "sekret-password", "other": "sekret-host", "token": "sekret-token",
	"auth":   base64.StdEncoding.EncodeToString([]byte("sekret-user:sekret-password")),
	"legacy": LegacyJWT("team-b", "ci-token"),
}

func LegacyJWT(namespace, secret string) string {
	part := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	return part(`{"alg":"RS256"}`) + "." + part(fmt.Sprintf(`{"iss":"kubernetes/serviceaccount","kubernetes.io/serviceaccount/namespace":%q,"kubernetes.io/serviceaccount/secret.name":%q}`, namespace, secret)) + ".sekret-signature"
}

// ListServer is an API server that can be listed, page by page, in two-object
// pages if that is all that is asked for, and that forbids what it is told to.
type ListServer struct {
	*httptest.Server
	Objects map[string][]Object // by resource

	mu     sync.Mutex
	Forbid map[string]bool
	Status map[string]int
	Asked  []string
	page   int
	Issuer string
}

func NewListServer(t *testing.T) *ListServer {
	t.Helper()
	l := &ListServer{Objects: map[string][]Object{}, Forbid: map[string]bool{}, Status: map[string]int{}, page: 2, Issuer: "https://issuer.example.com"}
	data := testkit.Value(os.ReadFile(testkit.InModule("internal/pullsecrets/migration/testdata/pullsecrets/cluster.yaml")))(t)
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var o Object
		if decoder.Decode(&o) != nil {
			break
		}
		if o["kind"] == "Secret" {
			values, _ := o["data"].(Object)
			for key, value := range values {
				text := value.(string)
				for name, secret := range SecretValues {
					text = strings.ReplaceAll(text, "{{"+name+"}}", secret)
				}
				values[key] = base64.StdEncoding.EncodeToString([]byte(text))
			}
		}
		resource := strings.ToLower(o["kind"].(string)) + "s"
		if m := o["metadata"].(Object); m["uid"] == nil {
			m["uid"] = fmt.Sprint(resource, m["namespace"], m["name"])
		}
		l.Objects[resource] = append(l.Objects[resource], o)
	}
	l.Server = httptest.NewUnstartedServer(l)
	testkit.Must(t, l.Listener.Close())
	l.Listener = testkit.Listen(t)
	l.StartTLS()
	t.Cleanup(l.Close)
	return l
}

func (l *ListServer) Kubeconfig() string { return Kubeconfig(l.Server) }

// ServeHTTP answers lists, and GETs of single objects.
func (l *ListServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/.well-known/openid-configuration" {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.Forbid["issuer"] {
			answerStatus(w, http.StatusForbidden, "Forbidden", Object{})
			return
		}
		answerJSON(w, http.StatusOK, Object{"issuer": l.Issuer})
		return
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	version, parts := parts[1], parts[2:]
	if parts0 := strings.Split(r.URL.Path, "/"); parts0[1] == "apis" {
		version, parts = version+"/"+parts[0], parts[1:]
	}
	namespace, name := "", ""
	if parts[0] == "namespaces" && len(parts) > 2 {
		namespace, parts = parts[1], parts[2:]
	}
	resource := parts[0]
	if len(parts) == 2 {
		name = parts[1]
	}
	query, partial := r.URL.Query(), strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadata")
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Asked = append(l.Asked, r.Method+" "+resource+" "+query.Get("fieldSelector")+" "+query.Get("limit")+" "+map[bool]string{true: "metadata", false: "whole"}[partial])
	switch {
	case l.Forbid[resource]:
		answerStatus(w, http.StatusForbidden, "Forbidden", Object{"kind": resource})
		return
	case l.Status[resource] != 0:
		w.WriteHeader(l.Status[resource])
		fmt.Fprint(w, "sekret-body")
		return
	}
	var items []Object
	for _, o := range l.Objects[resource] {
		m := o["metadata"].(Object)
		field, value, _ := strings.Cut(query.Get("fieldSelector"), "=")
		if (namespace == "" || m["namespace"] == namespace) && (name == "" || m["name"] == name) && (field != "type" || o["type"] == value) {
			items = append(items, o)
		}
	}
	if name != "" {
		if len(items) == 0 {
			answerStatus(w, http.StatusNotFound, "NotFound", Object{"kind": resource, "name": name})
			return
		}
		answerJSON(w, http.StatusOK, shape(items[0], partial))
		return
	}
	list := Object{"apiVersion": version, "kind": map[string]string{
		"secrets": "SecretList", "serviceaccounts": "ServiceAccountList", "pods": "PodList", "replicationcontrollers": "ReplicationControllerList",
		"deployments": "DeploymentList", "statefulsets": "StatefulSetList", "daemonsets": "DaemonSetList", "replicasets": "ReplicaSetList",
		"jobs": "JobList", "cronjobs": "CronJobList", "accesspolicies": "AccessPolicyList", "repositoryaccesses": "RepositoryAccessList",
	}[resource], "metadata": Object{}}
	if partial {
		list["apiVersion"], list["kind"] = "meta.k8s.io/v1", "PartialObjectMetadataList"
	}
	start, _ := strconv.Atoi(query.Get("continue"))
	end := min(start+l.page, len(items))
	if end < len(items) {
		list["metadata"] = Object{"continue": strconv.Itoa(end)}
	}
	shown := []Object{}
	for _, o := range items[start:end] {
		shown = append(shown, shape(o, partial))
	}
	list["items"] = shown
	answerJSON(w, http.StatusOK, list)
}

func shape(o Object, partial bool) Object {
	if partial {
		return Object{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": o["metadata"]}
	}
	return o
}

// Find returns the only object of this kind and name.
func (l *ListServer) Find(t *testing.T, resource, name string) Object {
	t.Helper()
	for _, o := range l.Objects[resource] {
		if o["metadata"].(Object)["name"] == name {
			return o
		}
	}
	t.Fatalf("no %s %s", resource, name)
	return nil
}
