package pullpass

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync"
	"testing"
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
	CredentialID   string   `json:"credentialID"`
	Claimed        Claimed  `json:"claimed"`
	Service        string   `json:"service"`
	GrantType      string   `json:"grantType"`
	Requested      []string `json:"requested"`
	Granted        []string `json:"granted"`
	Rule           string   `json:"rule"`
	IssuedID       string   `json:"issuedID"`
	Caller         string   `json:"caller"`
	Client         string   `json:"client"`
}

// Object is a Kubernetes object that an Event names.
type Object struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
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
	var events []Event
	for _, line := range p.audit.complete() {
		var event Event
		if err := json.Unmarshal(line, &event); err != nil {
			t.Fatalf("a line on standard output is not an audit event: %v: %s", err, line)
		}
		events = append(events, event)
	}
	return events
}

// NeverLog makes the test fail when the token, or its signature, is in what Pullpass wrote.
func (p *Proxy) NeverLog(token string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.secrets = append(p.secrets, token)
}

func (p *Proxy) checkSecrets(t testing.TB) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	written := p.process.Output() + p.audit.String()
	for _, token := range p.secrets {
		signature := token[strings.LastIndex(token, ".")+1:]
		if len(signature) > 16 && strings.Contains(written, signature) {
			t.Errorf("the token of %v is in the output of pullpass", token[:min(len(token), 20)])
		}
	}
}

// lines keeps what is written, for one writer and many readers.
type lines struct {
	mu  sync.Mutex
	buf []byte
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, b...)
	return len(b), nil
}

// complete returns the lines that have ended.
func (l *lines) complete() [][]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := bytes.Split(bytes.Clone(l.buf), []byte("\n"))
	return all[:len(all)-1]
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.buf)
}
