package pullpass

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/testenv"
)

// Answer is what the token endpoint answered, and what Pullpass wrote to its audit log about it.
type Answer struct {
	Status int
	Header http.Header
	Body   Body
	Audit  Event
}

// Body is the body of an answer: a token, or an error in the registry's form and in that of RFC 6749.
type Body struct {
	Token       string    `json:"token"`
	AccessToken string    `json:"access_token"`
	ExpiresIn   int       `json:"expires_in"`
	IssuedAt    time.Time `json:"issued_at"`
	Scope       *string   `json:"scope"`
	Refresh     string    `json:"refresh_token"`

	Errors []struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"errors"`
	Error            string `json:"error"`
	ErrorDescription string `json:"error_description"`
}

// Get asks as most clients do: GET, the token as the password of Basic.
func (p *Proxy) Get(t testing.TB, service, token string, scopes ...string) Answer {
	t.Helper()
	query := url.Values{"service": {service}, "scope": scopes}
	req := testenv.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, p.URL+"/token?"+query.Encode(), nil))(t)
	req.SetBasicAuth("serviceaccount", token)
	return p.ask(t, req, token)
}

// Post asks as containerd does: POST, the token as the password in the form.
func (p *Proxy) Post(t testing.TB, service, token string, scopes ...string) Answer {
	t.Helper()
	req := testenv.Value(p.post(t.Context(), service, token, scopes))(t)
	return p.ask(t, req, token)
}

func (p *Proxy) post(ctx context.Context, service, token string, scopes []string) (*http.Request, error) {
	form := url.Values{
		"grant_type": {"password"}, "client_id": {"containerd-client"}, "username": {"serviceaccount"},
		"service": {service}, "scope": {strings.Join(scopes, " ")}, "password": {token},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL+"/token", strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
	return req, nil
}

// ask expects that no other request is under way: the next audit line is about this one.
func (p *Proxy) ask(t testing.TB, req *http.Request, token string) Answer {
	t.Helper()
	before := len(p.Audit(t))
	answer := testenv.Value(p.send(p.client, req, token))(t)
	var events []Event
	testenv.Poll(auditLimit, func() bool { events = p.Audit(t)[before:]; return len(events) > 0 })
	if len(events) != 1 {
		t.Fatalf("%d audit lines about one request, want 1", len(events))
	}
	answer.Audit = events[0]
	return answer
}

func (p *Proxy) send(client *http.Client, req *http.Request, token string) (Answer, error) {
	resp, err := client.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	answer := Answer{Status: resp.StatusCode, Header: resp.Header}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return Answer{}, err
	}
	if err := json.Unmarshal(body, &answer.Body); err != nil {
		return Answer{}, fmt.Errorf("the body of %s %s (%s) is not the JSON that it should be: %w", req.Method, req.URL.Path, resp.Status, err)
	}
	p.NeverLog(token)
	p.NeverLog(answer.Body.Token)
	if answer.Body.Token == "" {
		if _, err := p.answers.Write(body); err != nil {
			return Answer{}, err
		}
	}
	return answer, nil
}
