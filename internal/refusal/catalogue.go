package refusal

var all = []Reason{
	// Requests granted in part or not at all.
	{"scope_not_granted", Narrowed, "no rule grants a part of the requested access", "read scopes[].reason in the audit line; pullpass explain shows each rule and what to change"},
	{"scope_malformed", Narrowed, "some requested scopes are not scopes; all others were granted", "correct the client's request: repository:NAME:ACTIONS"},
	{"scopes_omitted", Narrowed, "more than 64 resources were requested; the first 64 were read and granted", "request fewer repositories at once"},

	// The token.
	{"token_malformed", Unauthenticated, "the credential is not a JSON Web Token, or it is too large", "send the ServiceAccount token as the password, with nothing around it"},
	{"token_legacy", Unauthenticated, "the token is from a Secret of type service-account-token and never expires", "use a token of the kubelet, or of kubectl create token --bound-object-kind Pod"},
	{"token_unknown_issuer", Unauthenticated, "no clusters[] or identities[] entry has the token's issuer", "compare the token's iss with clusters[].issuer"},
	{"token_algorithm", Unauthenticated, "the token is signed with an algorithm that is not allowed", "have the issuer sign with RS256, ES256, ES384 or ES512"},
	{"token_header", Unauthenticated, "the token's header carries keys or critical parameters", "find who makes such tokens; an API server does not"},
	{"token_claims", Unauthenticated, "a claim is missing, has the wrong type, or contradicts another claim", "read the message: it names the claim"},
	{"token_audience", Unauthenticated, "the token was issued for a different audience", "let the kubelet's tokenAttributes.serviceAccountTokenAudience and clusters[].audiences agree"},
	{"token_expired", Unauthenticated, "the token has expired", "compare the clocks; the kubelet renews its tokens by itself"},
	{"token_not_yet_valid", Unauthenticated, "the token is not valid yet", "compare the clocks of the issuer and of Pullpass"},
	{"token_lifetime", Unauthenticated, "the token lives longer than maxTokenLifetime", "request shorter tokens, or raise clusters[].maxTokenLifetime"},
	{"token_not_bound", Unauthenticated, "the token is not bound to the object that clusters[].bound requires", "use the pod's own token"},
	{"token_pull_secret", Unauthenticated, "the token of a pull secret comes from a namespace outside pullSecrets.namespaces", "add the namespace, or pull with the pod's own token"},
	{"token_no_node", Unauthenticated, "no node is known for the token, and node.claim requires one", "use Kubernetes 1.32 or later, or set node.claim: optional"},
	{"token_require", Unauthenticated, "a claim does not have the value that identities[].require demands", "read the message: it names the claim; tokens of other tenants fail here"},
	{"token_unknown_key", Unauthenticated, "the issuer has no key with the token's key ID", "find who makes such tokens; after a change of the issuer's keys, check its JWKS"},
	{"token_signature", Unauthenticated, "the token's signature is wrong", "the token is forged, or from another cluster with the same issuer: give each cluster an issuer of its own"},

	// The caller.
	{"anonymous", Unauthenticated, "the request had no credential, and no rule grants anonymous access", "check the kubelet's plugin, matchImages and tokenAttributes: pullpass kubelet-config --lint"},
	{"subject_denied", Forbidden, "a deny rule matches the subject", "read rule in the audit line; an administrator of the policy can change it"},
	{"service_account_gone", Forbidden, "the ServiceAccount was deleted, or deleted and recreated", "the kubelet gets a new token at its next try; other clients need a new pod"},
	{"pod_gone", Forbidden, "the pod was deleted, or deleted and recreated", "pull with the token of a pod that exists"},
	{"node_gone", Forbidden, "the node was deleted, or deleted and recreated", "delete the pod; its owner makes a new one on a node that exists"},
	{"secret_gone", Forbidden, "the API server no longer accepts the token of a pull secret", "check that pullpass pull-secrets controller runs: it renews the Secret"},
	{"node_not_selected", Forbidden, "the node does not match node.selector", "label the node, or change clusters[].node.selector"},
	{"caller_not_node", Forbidden, "node.proof is enforced, and the caller is not the token's node", "read proof.reason; if the caller is unknown, delete the pod to end its token"},
	{"revoked", Forbidden, "an operator revoked the token, pod, ServiceAccount, node or run", "an operator can end it: pullpass revoke undo"},
	{"push_credential", Forbidden, "a push credential has expired, is for a different service, or cannot be issued to this caller", "read the message; start the job's login again"},
	{"token_replayed", Forbidden, "state.replay is enforced, and another caller presented this token first", "compare the two callers in replay; if one is unknown, delete the pod to end its token"},
	{"caller_unknown", Forbidden, "state.replay is enforced, and the caller's address is unknown", "set server.trustedProxies, so that Pullpass sees the caller's address"},
	{"limited_service_account", Limited, "the ServiceAccount exceeds limits.perServiceAccount", "runtimes retry by themselves; if it lasts, raise limits.perServiceAccount"},
	{"limited_address", Limited, "the address sends more requests without a good credential than limits.perAddress allows", "find what sends them; many clients behind one address need server.trustedProxies"},

	// The request.
	{"request_malformed", Malformed, "a field is missing, repeated, too large or invalid", "read the message: it names the field"},
	{"method_not_allowed", Method, "the method is not one that the endpoint has", "the token endpoint has GET and POST"},
	{"service_unknown", Malformed, "service is not one of registries[].service", "let the registry's auth.token.service and registries[].service agree"},

	// Dependencies of an answer.
	{"issuer_unavailable", Unavailable, "the issuer's keys cannot be fetched", "check the connection to the issuer; /readyz names it"},
	{"kubernetes_unavailable", Unavailable, "the cluster's API server cannot be asked", "check the connection and the rights of clusters[].kubernetes"},
	{"revocations_unavailable", Unavailable, "this replica has not read the revocations yet", "check the connection to Redis"},
	{"replay_unavailable", Unavailable, "state.replay is enforced, and the first caller of the token cannot be looked up", "check the connection to Redis"},
	{"signing_key_unavailable", Unavailable, "no signing key is usable", "pullpass keys list shows why"},
	{"overloaded", Unavailable, "too many requests at once", "add replicas; clients retry by themselves"},
	{"request_canceled", Unavailable, "the client hung up, or the answer took too long; at the gateway, 499 in the log alone", "look for slow dependencies if many requests end so"},
	{"internal_error", Internal, "a fault of Pullpass", "report it with the line's id"},

	// The gateway.
	{"path_invalid", Malformed, "the path, name, reference or query is not one of a registry", "correct the image's name"},
	{"upstream_unknown", NotFound, "the name begins with none of upstreams[].name", "begin the image's name with the name of an upstream"},
	{"token_invalid", Unauthenticated, "the token is not one for the gateway, or it has expired", "clients get a new one by themselves; check that the clocks agree"},
	{"insufficient_scope", Unauthenticated, "the token does not grant this access", "the audit line that issued the token says why: pullpass audit --token-id ID"},
	{"action_not_configured", Forbidden, "upstreams[].actions does not have the action", "add push or delete to upstreams[].actions"},
	{"limited_holder", Limited, "the ServiceAccount, namespace or project uses its whole share of the streams", "wait for its other transfers, or add replicas"},
	{"upload_unknown", NotFound, "the upload belongs to another holder, is older than a day, or its signing key was replaced", "start the upload again"},
	{"upstream_unreachable", BadGateway, "the upstream cannot be connected to, or it broke off before its answer", "check the network and upstreams[].url"},
	{"upstream_timeout", GatewayTimeout, "the upstream did not answer in time", "check the upstream"},
	{"upstream_credential", BadGateway, "the upstream refuses the gateway's credential, or there is none", "check upstreams[].credential: pullpass check"},
	{"upstream_denied", BadGateway, "the gateway's credential may not do this at the upstream", "give the credential this right at the upstream"},
	{"upstream_limited", Limited, "the upstream asks for fewer requests", "log in with a credential that has a higher limit, or wait"},
	{"upstream_failing", BadGateway, "the upstream answers 5xx", "check the upstream"},
	{"upstream_invalid", BadGateway, "the upstream's answer is not one of a registry", "check upstreams[].url: it must be a registry's"},
	{"upstream_redirect", BadGateway, "the upstream redirects to an address that is not allowed", "add the host to upstreams[].redirectHosts, if it is the registry's storage"},
	{"upstream_broken", BadGateway, "the upstream's body broke off", "check the upstream; clients try again by themselves"},
}
