package server

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
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A mirror requests all of its repositories in each request, the newest last. The scopes are
// repeated in a query, which must fit into the headers, or are in one field of a form.
func TestServeManyScopes(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	raw := kubetest.Token(t, "https://issuer.example.com")
	scopes := []string{"repository::pull"}
	for i := range 500 {
		scopes = append(scopes, fmt.Sprintf("repository:team-a/mirror/%s-%d:pull", strings.Repeat("a", 40), i))
	}
	latest := slices.Sorted(slices.Values(scopes[len(scopes)-64:]))

	query := testkit.Value(http.NewRequest(http.MethodGet, "https://"+p.Address+"/token?"+url.Values{"service": {"registry.example.com"}, "scope": scopes}.Encode(), nil))(t)
	query.SetBasicAuth("serviceaccount", raw)
	form := testkit.Value(http.NewRequest(http.MethodPost, "https://"+p.Address+"/token", strings.NewReader(url.Values{
		"grant_type": {"password"}, "username": {"serviceaccount"}, "password": {raw},
		"service": {"registry.example.com"}, "scope": {strings.Join(scopes, " ")},
	}.Encode())))(t)
	form.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for _, request := range []*http.Request{query, form} {
		response, err := p.Client.Do(request)
		testkit.Must(t, err)
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

	testkit.Must(t, p.stop())
	lines := 0
	for scanner := bufio.NewScanner(bytes.NewReader(p.Stdout.Bytes())); scanner.Scan(); lines++ {
		var event exchange.Event
		testkit.Must(t, json.Unmarshal(scanner.Bytes(), &event))
		if event.Result != exchange.ResultPartial || event.Reason != "scopes_omitted" || event.Omitted != 437 ||
			event.ServiceAccount == nil || event.ServiceAccount.Name != "web" || !slices.Equal(event.Granted, latest) {
			t.Errorf("audit line %s", scanner.Bytes())
		}
	}
	if lines != 2 {
		t.Errorf("%d audit lines", lines)
	}
}
