package refusal

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Clients act on the status, and operators on the word: neither changes by accident.
func TestReasonsAndTheirStatuses(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"narrowed 200":  `scope_not_granted scope_malformed scopes_omitted`,
		"malformed 400": `request_malformed service_unknown path_invalid`,
		"unauthenticated 401": `token_malformed token_legacy token_unknown_issuer token_algorithm token_header token_claims token_audience token_expired
			token_not_yet_valid token_lifetime token_not_bound token_pull_secret token_no_node token_require token_unknown_key
			token_signature anonymous token_invalid insufficient_scope`,
		"forbidden 403": `subject_denied service_account_gone pod_gone node_gone secret_gone node_not_selected caller_not_node revoked push_credential
			token_replayed caller_unknown action_not_configured`,
		"not_found 404":   `upstream_unknown upload_unknown`,
		"method 405":      `method_not_allowed`,
		"too_long 414":    ``,
		"limited 429":     `limited_service_account limited_address limited_holder upstream_limited`,
		"canceled 499":    ``,
		"stalled 408":     ``,
		"internal 500":    `internal_error`,
		"bad_gateway 502": `upstream_unreachable upstream_credential upstream_denied upstream_failing upstream_invalid upstream_redirect upstream_broken`,
		"unavailable 503": `issuer_unavailable kubernetes_unavailable revocations_unavailable replay_unavailable signing_key_unavailable overloaded
			request_canceled`,
		"gateway_timeout 504": `upstream_timeout`,
	}
	got := map[string][]string{}
	for class, status := range statuses {
		got[fmt.Sprintf("%s %d", class, status)] = nil
	}
	for _, e := range All() {
		key := fmt.Sprintf("%s %d", e.Reason.Class(), e.Class.Status())
		got[key] = append(got[key], string(e.Reason))
		if found, ok := Find(e.Reason); !ok || found != e || e.Message == "" || e.Remedy == "" {
			t.Errorf("%s: %+v", e.Reason, found)
		}
	}
	for key, reasons := range got {
		if text, ok := want[key]; !ok || !slices.Equal(reasons, strings.Fields(text)) {
			t.Errorf("%s: %q", key, reasons)
		}
	}
	if len(got) != len(want) || len(Reasons()) != len(All()) || !slices.Contains(Reasons(), TokenReplayed) {
		t.Errorf("%d classes, want %d; %d reasons of %d", len(got), len(want), len(Reasons()), len(All()))
	}
	if e, ok := Find("unknown"); ok || e != (Entry{}) || Reason("unknown").Class() != "" {
		t.Errorf("an unknown reason: %+v", e)
	}
}
