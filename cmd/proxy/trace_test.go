package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/state/statetest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// All callers that pushed or pulled an image are revoked in one step. A target that cannot be revoked does
// not keep the others.
func TestTraceRevokes(t *testing.T) {
	t.Parallel()
	p := proxytest.New(t, proxytest.WithRedis(statetest.Redis(t).Address(), "off")+proxytest.Identities, nil)
	event := func(who, method string) string {
		return `{"time":"2026-03-01T09:00:01Z","id":"` + method + who[2:8] + `","result":"granted","status":200,` + who +
			`,"service":"g","gateway":{"method":"` + method + `","repository":"a","kind":"manifest","reference":"sha256:` + strings.Repeat("1", 64) + `"},"latency":0.001}` + "\n"
	}
	log := testkit.TempFile(t, "audit.log", event(`"identity":{"name":"unknown","run":"1"}`, "PUT")+event(`"identity":{"name":"github","run":"1001"}`, "PUT")+
		event(`"cluster":"prod","namespace":"team-a","serviceAccount":{"name":"web"},"pod":{"name":"web-0","uid":"uid-web-0"}`, "GET"))
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"trace", "a", "--audit-file", log, "--config", filepath.Join(p.Dir, "pullpass.yaml"), "--revoke", "--reason", "taken over", "--for", "2h", "--by", "alice"}, nil, &stdout, &stderr)
	if said := stderr.String(); code != 1 || !strings.Contains(said, `identity "unknown" is not configured`) ||
		!strings.Contains(said, "revoked --run github/1001 until ") || !strings.Contains(said, "revoked --pod-uid uid-web-0 until ") {
		t.Errorf("exit code %d: %s", code, said)
	}
	_, list, _ := revoke(t, p, "list")
	for _, want := range []string{"--run github/1001", "--pod-uid uid-web-0", `"alice"`, `"taken over"`} {
		if !strings.Contains(list, want) {
			t.Errorf("without %s: %s", want, list)
		}
	}
}
