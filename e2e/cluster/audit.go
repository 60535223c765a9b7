package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"testing"

	"github.com/pullpass/pullpass/e2e/testenv"
)

// Request is one that the API server has answered, as its audit log says.
type Request struct {
	Verb, Resource, Subresource string
	Namespace, Name             string
	DryRun                      bool
	Status                      int
	Agent                       string
}

// Changes says whether the request was meant to change something.
func (r Request) Changes() bool {
	return !r.DryRun && r.Verb != "get" && r.Verb != "list" && r.Verb != "watch"
}

const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
  users: [%q]
- level: None
`

func (c *Cluster) auditFlags(t testing.TB) []string {
	t.Helper()
	policy := filepath.Join(c.dir, "audit-policy.yaml")
	testenv.WriteFile(t, policy, fmt.Sprintf(auditPolicy, c.options.AuditUser))
	return []string{"--audit-policy-file=" + policy, "--audit-log-path=" + c.auditLog()}
}

func (c *Cluster) auditLog() string { return filepath.Join(c.dir, "audit.log") }

// Requests are those of Options.AuditUser so far, from the given number on.
func (c *Cluster) Requests(t testing.TB, from int) []Request {
	t.Helper()
	lines := bytes.SplitAfter([]byte(testenv.ReadFile(t, c.auditLog())), []byte("\n"))
	lines = lines[:len(lines)-1] // what follows the last line break is empty, or not whole yet
	requests := []Request{}
	for _, line := range lines[from:] {
		var event struct {
			Verb, RequestURI, UserAgent string
			ObjectRef                   struct{ Resource, Subresource, Namespace, Name string }
			ResponseStatus              struct{ Code int }
		}
		if err := json.Unmarshal(line, &event); err != nil {
			t.Fatalf("the audit log of the API server: %v: %s", err, line)
		}
		uri := testenv.Value(url.Parse(event.RequestURI))(t)
		o := event.ObjectRef
		requests = append(requests, Request{
			Verb: event.Verb, Resource: o.Resource, Subresource: o.Subresource, Namespace: o.Namespace, Name: o.Name,
			DryRun: uri.Query().Has("dryRun"), Status: event.ResponseStatus.Code, Agent: event.UserAgent,
		})
	}
	return requests
}
