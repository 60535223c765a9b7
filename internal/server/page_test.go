package server

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Decisions are on the console, explained with the serving state.
func TestPage(t *testing.T) {
	t.Parallel()
	p := &proxy{Proxy: proxytest.New(t, "  kubernetes: {manifestFiles: [serviceaccounts.yaml]}\n", nil)}
	p.Configure(t, "admin: {", "admin: {console: true, ")
	p.open(t)
	p.start(t)
	page := "http://" + p.Admin + "/console/"
	p.Expect(t, kubetest.Token(t, "https://issuer.example.com"), http.StatusOK, "")
	id := p.LastEvent(t).ID
	testkit.Eventually(t, "the decision is on the page", func() bool {
		_, text := p.Fetch(t, page+"rows.json")
		var answer struct{ Rows []struct{ ID, Who string } }
		return json.Unmarshal([]byte(text), &answer) == nil && len(answer.Rows) == 1 && answer.Rows[0].ID == id && strings.HasPrefix(answer.Rows[0].Who, "prod/team-a/web")
	})
	if status, text := p.Fetch(t, page+"line?id="+id); status != http.StatusOK || !strings.Contains(text, "nothing: the same would be decided") {
		t.Errorf("%d %s", status, text)
	}
	if _, text := p.Fetch(t, page+"who?action=pull&repository=team-a/web"); !strings.Contains(text, "1 of 1") {
		t.Error(text)
	}
	if _, text := p.Fetch(t, page+"health"); !strings.Contains(text, "1 granted, 0 refused, 0 failed") || !strings.Contains(text, "signingKeys") {
		t.Error(text)
	}
	// It is another policy that serves now.
	p.Put(t, "policy.yaml", "apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\nrules:\n- {name: none, subjects: [{namespaces: [other]}], allow: [{repositories: [x], actions: [pull]}]}\n"+
		"deny:\n- {name: bad, subjects: [{namespaces: [team-a]}]}\n")
	testkit.Eventually(t, "the page knows the new policy", func() bool {
		_, text := p.Fetch(t, page+"line?id="+id)
		return strings.Contains(text, "result: granted -&gt; refused")
	})
	if status, _ := p.Fetch(t, "https://"+p.Address+"/console/"); status != http.StatusNotFound {
		t.Errorf("on the public listener: status %d", status)
	}
}

// It is off by default.
func TestPageIsOff(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	if status, _ := p.Fetch(t, "http://"+p.Admin+"/console/"); status != http.StatusNotFound {
		t.Errorf("status %d", status)
	}
	p.Configure(t, "admin: {", "admin: {console: true, ")
	testkit.Eventually(t, "it is said that a restart is needed", func() bool {
		_, text := p.Fetch(t, "http://"+p.Admin+"/readyz")
		return strings.Contains(text, "admin.console")
	})
}
