package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// The token types of the exchange (RFC 8693, section 3).
const (
	tokenTypeJWT            = "urn:ietf:params:oauth:token-type:jwt"
	tokenTypePushCredential = "urn:pullpass:token-type:push-credential"
)

// maxMessageSize is in bytes, of a token endpoint's message about its refusal.
const maxMessageSize = 1 << 10

var errNoPush = errors.New("answered 200, but with no push credential: it is not Pullpass, or an older one; unset PULLPASS_PUSH, or update Pullpass")

// parsePush returns the scopes of PULLPASS_PUSH. Its errors do not quote the value, as with
// the other variables.
func parsePush(value string, registries []string) (scopes []string, err error) {
	for entry := range strings.SplitSeq(value, " ") {
		if entry == "" {
			continue
		}
		repository, actions := entry, "pull,push"
		if i := strings.LastIndexByte(entry, ':'); i > strings.LastIndexByte(entry, '/') {
			repository, actions = entry[:i], entry[i+1:]
		}
		first, _, _ := strings.Cut(repository, "/")
		switch {
		case slices.Contains(registries, first):
			return nil, fmt.Errorf("PULLPASS_PUSH: entry %d begins with the registry; leave that out, as in team-a/web", len(scopes)+1)
		case !isRepository(repository) || !areActions(actions):
			return nil, fmt.Errorf("PULLPASS_PUSH: entry %d is not REPOSITORY or REPOSITORY:ACTION,ACTION, as in team-a/web or team-a/base:pull; "+
				"actions are pull, push and delete, and a space is between entries", len(scopes)+1)
		}
		scopes = append(scopes, "repository:"+repository+":"+actions)
	}
	return scopes, nil
}

// isRepository catches tags, globs and upper case, of which nothing is ever granted.
func isRepository(s string) bool {
	return !slices.Contains(strings.Split(s, "/"), "") && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || 'z' < r) && (r < '0' || '9' < r) && !strings.ContainsRune("/.-_:", r)
	})
}

func areActions(s string) bool {
	for action := range strings.SplitSeq(s, ",") {
		if action != "pull" && action != "push" && action != "delete" {
			return false
		}
	}
	return true
}

// exchange gets a push credential for the job's token at the token endpoint that the
// registry names. Clients would send the token there, too. Scopes that were not granted are
// returned as well.
func (a asker) exchange(ctx context.Context, registry, token string, scopes []string) (credential string, refused []string, err error) {
	api := "https://" + registry + "/v2/"
	realm, service, err := a.endpoint(ctx, api)
	if err != nil {
		return "", nil, fmt.Errorf("PULLPASS_PUSH: %s: %w", api, err)
	}
	form := url.Values{
		"grant_type":           {"urn:ietf:params:oauth:grant-type:token-exchange"},
		"subject_token":        {token},
		"subject_token_type":   {tokenTypeJWT},
		"requested_token_type": {tokenTypePushCredential},
		"service":              {service},
		"scope":                {strings.Join(scopes, " ")},
	}
	answered, err := a.ask(ctx, http.MethodPost, realm, map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, form.Encode())
	if err == nil {
		credential, refused, err = pushCredential(answered, registry, token, scopes)
	}
	if err != nil {
		return "", nil, fmt.Errorf("PULLPASS_PUSH: %.200s: %w", realm, err)
	}
	return credential, refused, nil
}

// pushCredential reads the answer of a token endpoint (RFC 8693, section 2.2).
func pushCredential(answered reply, registry, token string, scopes []string) (credential string, refused []string, err error) {
	if answered.status != http.StatusOK {
		return "", nil, fmt.Errorf("answered %d%s", answered.status, message(answered.body, token))
	}
	var answer struct {
		Credential string `json:"access_token"`
		Type       string `json:"issued_token_type"`
		Scope      string `json:"scope"`
	}
	if json.Unmarshal(answered.body, &answer) != nil || answer.Type != tokenTypePushCredential || answer.Credential == "" ||
		strings.ContainsFunc(answer.Credential, func(r rune) bool { return r <= ' ' || '~' < r }) {
		return "", nil, errNoPush
	}
	// The gateway at the host name of a registry answers with its own names, which begin with that.
	granted := strings.ReplaceAll(answer.Scope, "repository:"+registry+"/", "repository:")
	return answer.Credential, notGranted(scopes, granted), nil
}

// notGranted returns what of the scopes is not among those that were granted, which
// may be written in another order.
func notGranted(asked []string, granted string) (refused []string) {
	has := map[string]bool{}
	for scope := range strings.SplitSeq(granted, " ") {
		for single := range singles(scope) {
			has[single] = true
		}
	}
	for _, scope := range asked {
		for single := range singles(scope) {
			if !has[single] {
				refused = append(refused, strings.TrimPrefix(single, "repository:"))
			}
		}
	}
	return refused
}

// singles calls yield with scopes of one action each.
func singles(scope string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		resource := scope[:strings.LastIndexByte(scope, ':')+1]
		for action := range strings.SplitSeq(scope[len(resource):], ",") {
			if !yield(resource + action) {
				return
			}
		}
	}
}

// maxQuoted is from how many bytes on a text is a part of the token.
const maxQuoted = 12

// hasPartOf reports whether a message quotes a part of a token, blanks between its characters not counted.
func hasPartOf(message, token string) bool {
	message = strings.ReplaceAll(message, " ", "")
	for i := range max(len(token)-maxQuoted+1, 1) {
		if strings.Contains(message, token[i:min(i+maxQuoted, len(token))]) {
			return true
		}
	}
	return false
}

// message is Pullpass's message about a refusal, for a log. The message of another server
// could be more than a line, or the token.
func message(body []byte, token string) string {
	var answer struct {
		Errors []struct{ Message string }
	}
	if json.Unmarshal(body, &answer) != nil || len(answer.Errors) == 0 {
		return ""
	}
	said := answer.Errors[0].Message
	if said == "" || len(said) > maxMessageSize || hasPartOf(said, token) ||
		strings.ContainsFunc(said, func(r rune) bool { return r < ' ' || '~' < r }) {
		return ""
	}
	return ": " + said
}
