package pullpass

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/secrets"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// Event is one audit line, as far as the tests read it.
type Event struct {
	Result         string   `json:"result"`
	Status         int      `json:"status"`
	Reason         string   `json:"reason"`
	Message        string   `json:"message"`
	Cluster        string   `json:"cluster"`
	Namespace      string   `json:"namespace"`
	ServiceAccount Object   `json:"serviceAccount"`
	Pod            Object   `json:"pod"`
	Node           Object   `json:"node"`
	NodeFromAPI    bool     `json:"nodeFromAPI"`
	CredentialID   string   `json:"credentialID"`
	PullSecret     *Object  `json:"pullSecret"`
	Claimed        Claimed  `json:"claimed"`
	Service        string   `json:"service"`
	GrantType      string   `json:"grantType"`
	Requested      []string `json:"requested"`
	Granted        []string `json:"granted"`
	Rule           string   `json:"rule"`
	Scopes         []Scope  `json:"scopes"`
	IssuedID       string   `json:"issuedID"`
	Caller         string   `json:"caller"`
	PushCredential string   `json:"pushCredential"`
	Proof          *Outcome `json:"proof"`
	Replay         *Replay  `json:"replay"`
	Client         string   `json:"client"`
	Gateway        *Request `json:"gateway"`
	TraceID        string   `json:"traceID"`
}

// Scope is what became of one that was requested.
type Scope struct {
	Scope  string `json:"scope"`
	Reason string `json:"reason"`
}

// Request is what the gateway was asked, in its audit lines.
type Request struct {
	Method         string `json:"method"`
	Upstream       string `json:"upstream"`
	Repository     string `json:"repository"`
	Kind           string `json:"kind"`
	Reference      string `json:"reference"`
	TokenID        string `json:"tokenID"`
	UpstreamStatus int    `json:"upstreamStatus"`
	RedirectHost   string `json:"redirectHost"`
	Sent           int64  `json:"sent"`
	Received       int64  `json:"received"`
}

// Object is a Kubernetes object that an Event names.
type Object struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// Outcome is what became of the caller's proof to be the node.
type Outcome struct {
	Mode    string `json:"mode"`
	Passed  bool   `json:"passed"`
	Method  string `json:"method"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Replay says whether the caller was the first one with its token.
type Replay struct {
	Passed bool   `json:"passed"`
	Owner  string `json:"owner"`
	Caller string `json:"caller"`
	Reason string `json:"reason"`
}

// Claimed is what a refused token said of itself.
type Claimed struct {
	Subject  string `json:"subject"`
	Secret   string `json:"secret"`
	Verified bool   `json:"verified"`
}

// Audit returns the audit lines so far. Anything else on standard output fails the test.
func (p *Proxy) Audit(t testing.TB) []Event {
	t.Helper()
	p.audit.mu.Lock()
	defer p.audit.mu.Unlock()
	if p.audit.err != nil {
		t.Fatal(p.audit.err)
	}
	return slices.Clone(p.audit.events)
}

// AwaitAudit waits for an audit line, of those from the given number on, and returns it: a line may be read after its answer.
func (p *Proxy) AwaitAudit(t testing.TB, from int, what string, wanted func(Event) bool) (found Event) {
	t.Helper()
	var events []Event
	if !testenv.Poll(eventLimit, func() bool {
		events = p.Audit(t)[from:]
		i := slices.IndexFunc(events, wanted)
		if i >= 0 {
			found = events[i]
		}
		return i >= 0
	}) {
		t.Fatalf("no audit line within %v: %s; the last ones: %+v", eventLimit, what, events[max(0, len(events)-20):])
	}
	return found
}

// Replays returns the audit lines about callers that were not the first ones with their token, or for whom that is unknown.
func (p *Proxy) Replays(t testing.TB) []Event {
	t.Helper()
	return slices.DeleteFunc(p.Audit(t), func(e Event) bool { return e.Replay == nil || e.Replay.Passed })
}

// NeverLog makes the test fail when the token, or its signature, is in what Pullpass wrote.
func (p *Proxy) NeverLog(token string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.secrets[token] {
		secrets.Note("token at the token endpoint", token)
	}
	p.secrets[token] = true
}

// checkOutput checks all output for the demands of every test.
func (p *Proxy) checkOutput(t testing.TB) {
	t.Helper()
	p.Audit(t)
	p.mu.Lock()
	defer p.mu.Unlock()
	written := p.process.Output() + p.audit.String()
	for token := range p.secrets {
		signature := token[strings.LastIndex(token, ".")+1:]
		if len(signature) > 16 && strings.Contains(written, signature) {
			t.Errorf("the token of %v is in the output of pullpass", token[:min(len(token), 20)])
		}
	}
}

// auditSchema is docs/audit.schema.json.
func auditSchema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	schema := testenv.Value(compiler.Compile(filepath.Join(programs.Checkout(t), "docs", "audit.schema.json")))(t)
	return schema
}

// audit keeps what Pullpass writes to standard output, for one writer and many readers.
type audit struct {
	schema *jsonschema.Schema

	mu       sync.Mutex
	text     []byte
	parsed   int // bytes of text, up to the end of a line
	events   []Event
	byClient map[string]Event // the latest with this User-Agent
	err      error            // of the first line that is not an event, or breaks the schema
}

func (a *audit) Write(b []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.text = append(a.text, b...)
	for {
		line, _, found := bytes.Cut(a.text[a.parsed:], []byte("\n"))
		if !found {
			return len(b), nil
		}
		a.parsed += len(line) + 1
		event, err := a.parse(line)
		if err != nil && a.err == nil {
			a.err = fmt.Errorf("a line on standard output is not an audit event: %w: %s", err, line)
		}
		a.events = append(a.events, event)
		a.byClient[event.Client] = event
	}
}

func (a *audit) parse(line []byte) (event Event, err error) {
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(line))
	if err != nil {
		return event, err
	}
	if err := a.schema.Validate(document); err != nil {
		return event, err
	}
	return event, json.Unmarshal(line, &event)
}

// of returns the event of the request with the User-Agent, if it was written already.
func (a *audit) of(client string) (Event, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	event, written := a.byClient[client]
	return event, written
}

func (a *audit) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return string(a.text)
}
