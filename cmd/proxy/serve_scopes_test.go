package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/exchange"
)

// A mirror asks for all of its repositories in each request, the newest last:
// repeated in a query, which has to have room among the headers, or in one field of
// a form.
func TestServeManyScopes(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	raw := serviceAccountToken(t, "https://issuer.example.com")
	scopes := []string{"repository::pull"}
	for i := range 500 {
		scopes = append(scopes, fmt.Sprintf("repository:team-a/mirror/%s-%d:pull", strings.Repeat("a", 40), i))
	}
	latest := slices.Sorted(slices.Values(scopes[len(scopes)-64:]))

	query, err := http.NewRequest(http.MethodGet, "https://"+p.address+"/token?"+url.Values{"service": {"registry.example.com"}, "scope": scopes}.Encode(), nil)
	must(t, err)
	query.SetBasicAuth("serviceaccount", raw)
	form, err := http.NewRequest(http.MethodPost, "https://"+p.address+"/token", strings.NewReader(url.Values{
		"grant_type": {"password"}, "username": {"serviceaccount"}, "password": {raw},
		"service": {"registry.example.com"}, "scope": {strings.Join(scopes, " ")},
	}.Encode()))
	must(t, err)
	form.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for _, request := range []*http.Request{query, form} {
		response, err := p.client.Do(request)
		must(t, err)
		var answer struct{ Token, Scope string }
		err = json.NewDecoder(response.Body).Decode(&answer)
		response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK || answer.Token == "" {
			t.Errorf("%s: %s, %v", request.Method, response.Status, err)
		}
		if request.Method == http.MethodPost && !slices.Equal(strings.Fields(answer.Scope), latest) {
			t.Errorf("scope is %q", answer.Scope)
		}
	}

	must(t, p.stop())
	lines := 0
	for scanner := bufio.NewScanner(bytes.NewReader(p.stdout.Bytes())); scanner.Scan(); lines++ {
		var event exchange.Event
		must(t, json.Unmarshal(scanner.Bytes(), &event))
		if event.Result != exchange.ResultPartial || event.Reason != "scopes_omitted" || event.Omitted != 437 ||
			event.ServiceAccount == nil || event.ServiceAccount.Name != "web" || !slices.Equal(event.Granted, latest) {
			t.Errorf("audit line %s", scanner.Bytes())
		}
	}
	if lines != 2 {
		t.Errorf("%d audit lines", lines)
	}
}
