package refusal

const (
	// Requests granted in part or not at all.
	ScopeNotGranted Reason = "scope_not_granted"
	ScopeMalformed  Reason = "scope_malformed"
	ScopesOmitted   Reason = "scopes_omitted"

	// The token.
	TokenMalformed     Reason = "token_malformed"
	TokenLegacy        Reason = "token_legacy"
	TokenUnknownIssuer Reason = "token_unknown_issuer"
	TokenAlgorithm     Reason = "token_algorithm"
	TokenHeader        Reason = "token_header"
	TokenClaims        Reason = "token_claims"
	TokenAudience      Reason = "token_audience"
	TokenExpired       Reason = "token_expired"
	TokenNotYetValid   Reason = "token_not_yet_valid"
	TokenLifetime      Reason = "token_lifetime"
	TokenNotBound      Reason = "token_not_bound"
	TokenPullSecret    Reason = "token_pull_secret"
	TokenNoNode        Reason = "token_no_node"
	TokenRequire       Reason = "token_require"
	TokenUnknownKey    Reason = "token_unknown_key"
	TokenSignature     Reason = "token_signature"

	// The caller.
	Anonymous             Reason = "anonymous"
	SubjectDenied         Reason = "subject_denied"
	ServiceAccountGone    Reason = "service_account_gone"
	PodGone               Reason = "pod_gone"
	NodeGone              Reason = "node_gone"
	SecretGone            Reason = "secret_gone"
	NodeNotSelected       Reason = "node_not_selected"
	CallerNotNode         Reason = "caller_not_node"
	Revoked               Reason = "revoked"
	PushCredential        Reason = "push_credential"
	TokenReplayed         Reason = "token_replayed"
	CallerUnknown         Reason = "caller_unknown"
	LimitedServiceAccount Reason = "limited_service_account"
	LimitedAddress        Reason = "limited_address"

	// The request.
	RequestMalformed Reason = "request_malformed"
	MethodNotAllowed Reason = "method_not_allowed"
	ServiceUnknown   Reason = "service_unknown"

	// Dependencies of an answer.
	IssuerUnavailable      Reason = "issuer_unavailable"
	KubernetesUnavailable  Reason = "kubernetes_unavailable"
	RevocationsUnavailable Reason = "revocations_unavailable"
	ReplayUnavailable      Reason = "replay_unavailable"
	SigningKeyUnavailable  Reason = "signing_key_unavailable"
	Overloaded             Reason = "overloaded"
	RequestCanceled        Reason = "request_canceled"
	InternalError          Reason = "internal_error"

	// The gateway.
	PathInvalid         Reason = "path_invalid"
	UpstreamUnknown     Reason = "upstream_unknown"
	TokenInvalid        Reason = "token_invalid"
	InsufficientScope   Reason = "insufficient_scope"
	ActionNotConfigured Reason = "action_not_configured"
	LimitedHolder       Reason = "limited_holder"
	UploadUnknown       Reason = "upload_unknown"
	UpstreamUnreachable Reason = "upstream_unreachable"
	UpstreamTimeout     Reason = "upstream_timeout"
	UpstreamCredential  Reason = "upstream_credential"
	UpstreamDenied      Reason = "upstream_denied"
	UpstreamLimited     Reason = "upstream_limited"
	UpstreamFailing     Reason = "upstream_failing"
	UpstreamInvalid     Reason = "upstream_invalid"
	UpstreamRedirect    Reason = "upstream_redirect"
	UpstreamBroken      Reason = "upstream_broken"
)

var all = []Entry{
	// Requests granted in part or not at all.
	{ScopeNotGranted, Narrowed, "no rule grants a part of the requested access", "read scopes[].reason in the audit line; pullpass explain shows each rule and what to change"},
	{ScopeMalformed, Narrowed, "some requested scopes are not scopes; all others were granted", "correct the client's request: repository:NAME:ACTIONS"},
	{ScopesOmitted, Narrowed, "more than 64 resources were requested; only the last 64 were read", "request fewer repositories at once"},

	// The token.
	{TokenMalformed, Unauthenticated, "the credential is not a JSON Web Token, or it is too large", "send the ServiceAccount token as the password, with nothing around it"},
	{TokenLegacy, Unauthenticated, "the token is from a Secret of type service-account-token and never expires", "use a token of the kubelet, or of kubectl create token --bound-object-kind Pod"},
	{TokenUnknownIssuer, Unauthenticated, "no clusters[] or identities[] entry has the token's issuer", "compare the token's iss with clusters[].issuer"},
	{TokenAlgorithm, Unauthenticated, "the token is signed with an algorithm that is not allowed", "have the issuer sign with RS256, ES256, ES384 or ES512"},
	{TokenHeader, Unauthenticated, "the token's header carries keys or critical parameters", "find who makes such tokens; an API server does not"},
	{TokenClaims, Unauthenticated, "a claim is missing, has the wrong type, or contradicts another claim", "read the message: it names the claim"},
	{TokenAudience, Unauthenticated, "the token was issued for a different audience", "let the kubelet's tokenAttributes.serviceAccountTokenAudience and clusters[].audiences agree"},
	{TokenExpired, Unauthenticated, "the token has expired", "compare the clocks; the kubelet renews its tokens by itself"},
	{TokenNotYetValid, Unauthenticated, "the token is not valid yet", "compare the clocks of the issuer and of Pullpass"},
	{TokenLifetime, Unauthenticated, "the token lives longer than maxTokenLifetime", "request shorter tokens, or raise clusters[].maxTokenLifetime"},
	{TokenNotBound, Unauthenticated, "the token is not bound to the object that clusters[].bound requires", "use the pod's own token"},
	{TokenPullSecret, Unauthenticated, "the token of a pull secret comes from a namespace outside pullSecrets.namespaces", "add the namespace, or pull with the pod's own token"},
	{TokenNoNode, Unauthenticated, "no node is known for the token, and node.claim requires one", "use Kubernetes 1.32 or later, or set node.claim: optional"},
	{TokenRequire, Unauthenticated, "a claim does not have the value that identities[].require demands", "read the message: it names the claim; tokens of other tenants fail here"},
	{TokenUnknownKey, Unauthenticated, "the issuer has no key with the token's key ID", "find who makes such tokens; after a change of the issuer's keys, check its JWKS"},
	{TokenSignature, Unauthenticated, "the token's signature is wrong", "the token is forged, or from another cluster with the same issuer: give each cluster an issuer of its own"},

	// The caller.
	{Anonymous, Unauthenticated, "the request had no credential, and no rule grants anonymous access", "check the kubelet's plugin, matchImages and tokenAttributes: pullpass kubelet-config --lint"},
	{SubjectDenied, Forbidden, "a deny rule matches the subject", "read rule in the audit line; an administrator of the policy can change it"},
	{ServiceAccountGone, Forbidden, "the ServiceAccount was deleted, or deleted and recreated", "recreate the ServiceAccount if it is missing; the kubelet gets a new token at its next try, other clients need a new pod"},
	{PodGone, Forbidden, "the pod was deleted, or deleted and recreated", "pull with the token of a pod that exists"},
	{NodeGone, Forbidden, "the node was deleted, or deleted and recreated", "delete the pod; its controller creates a new one on a node that exists"},
	{SecretGone, Forbidden, "the API server no longer accepts the token of a pull secret", "check that pullpass pull-secrets controller runs: it renews the Secret"},
	{NodeNotSelected, Forbidden, "the node does not match node.selector", "schedule the pod on a node that matches, or label the node"},
	{CallerNotNode, Forbidden, "node.proof is enforced, and the caller is not the token's node", "read proof.reason; if the caller is unknown, delete the pod to end its token"},
	{Revoked, Forbidden, "an operator revoked the token, pod, ServiceAccount, node or run", "an administrator of Pullpass can end it: pullpass revoke undo"},
	{PushCredential, Forbidden, "a push credential has expired, is for a different service, or cannot be issued to this caller", "start the job's login again"},
	{TokenReplayed, Forbidden, "state.replay is enforced, and another caller presented this token first", "compare the two callers in replay; if both are addresses of the pod's node, set node.proof; if one is unknown, delete the pod to end its token"},
	{CallerUnknown, Forbidden, "state.replay is enforced, and the caller's address is unknown", "set server.trustedProxies, so that Pullpass sees the caller's address"},
	{LimitedServiceAccount, Limited, "the ServiceAccount exceeds limits.perServiceAccount", "runtimes retry by themselves; if it lasts, find out who uses the ServiceAccount, or have limits.perServiceAccount raised"},
	{LimitedAddress, Limited, "the address sends more requests without a good credential than limits.perAddress allows", "find what sends them; many clients behind one address need server.trustedProxies"},

	// The request.
	{RequestMalformed, Malformed, "a field is missing, repeated, too large or invalid", "read the message: it names the field"},
	{MethodNotAllowed, Method, "the method is not one that the endpoint has", "the token endpoint has GET and POST"},
	{ServiceUnknown, Malformed, "service is not one of registries[].service", "let the registry's auth.token.service and registries[].service agree"},

	// Dependencies of an answer.
	{IssuerUnavailable, Unavailable, "the issuer's keys cannot be fetched", "check the connection to the issuer; /readyz names it"},
	{KubernetesUnavailable, Unavailable, "the cluster's API server cannot be asked", "check the connection and the rights of clusters[].kubernetes"},
	{RevocationsUnavailable, Unavailable, "this replica has not read the revocations yet", "check the connection to Redis"},
	{ReplayUnavailable, Unavailable, "state.replay is enforced, and the first caller of the token cannot be looked up", "check the connection to Redis"},
	{SigningKeyUnavailable, Unavailable, "no signing key is usable", "pullpass keys list shows why"},
	{Overloaded, Unavailable, "too many requests at once", "add replicas; clients retry by themselves"},
	{RequestCanceled, Unavailable, "the client hung up or stalled, or the answer took too long; at the gateway, 408 if it stalled in its own body, else 499 in the log alone", "look for slow dependencies if many requests end so"},
	{InternalError, Internal, "a fault of Pullpass", "report it with the line's id"},

	// The gateway.
	{PathInvalid, Malformed, "the path, name, reference or query is not one of a registry", "correct the image's name"},
	{UpstreamUnknown, NotFound, "the name begins with none of upstreams[].name", "begin the image's name with the name of an upstream"},
	{TokenInvalid, Unauthenticated, "the token is not one for the gateway, or it has expired", "clients get a new one by themselves; check that the clocks agree"},
	{InsufficientScope, Unauthenticated, "the token does not grant this access", "the audit line that issued the token says why: pullpass audit --token-id ID"},
	{ActionNotConfigured, Forbidden, "upstreams[].actions does not have the action", "add push or delete to upstreams[].actions"},
	{LimitedHolder, Limited, "the ServiceAccount, namespace or project uses its whole share of the streams", "wait for its other transfers, or add replicas"},
	{UploadUnknown, NotFound, "the upload belongs to a different caller, is older than a day, or its signing key was replaced or revoked", "start the upload again"},
	{UpstreamUnreachable, BadGateway, "the upstream cannot be connected to, or it broke off before its answer", "check the network and upstreams[].url"},
	{UpstreamTimeout, GatewayTimeout, "the upstream did not answer in time, or a body stalled for two minutes", "check the upstream"},
	{UpstreamCredential, BadGateway, "the upstream refuses the gateway's credential, or there is none", "check upstreams[].credential: pullpass check"},
	{UpstreamDenied, BadGateway, "the gateway's credential may not do this at the upstream", "give the credential this right at the upstream"},
	{UpstreamLimited, Limited, "the upstream limits requests; meanwhile this caller's requests for the repository are not forwarded", "log in with a credential that has a higher limit, or wait"},
	{UpstreamFailing, BadGateway, "the upstream answers 5xx", "check the upstream"},
	{UpstreamInvalid, BadGateway, "the upstream's answer is not one of a registry", "check upstreams[].url: it must be a registry's"},
	{UpstreamRedirect, BadGateway, "the upstream redirects to an address that is not allowed", "add the host to upstreams[].redirectHosts, if it is the registry's storage"},
	{UpstreamBroken, BadGateway, "the upstream's body broke off", "check the upstream; clients try again by themselves"},
}
