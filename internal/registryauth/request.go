package registryauth

// GrantType is the wire form in which a credential came.
type GrantType string

// The wire forms. Their names are stable: metric labels and audit fields.
const (
	GrantAnonymous     GrantType = "anonymous"      // GET without a credential
	GrantBasic         GrantType = "basic"          // GET with Authorization: Basic
	GrantBearer        GrantType = "bearer"         // GET with Authorization: Bearer
	GrantPassword      GrantType = "password"       // POST form, containerd's first try
	GrantRefreshToken  GrantType = "refresh_token"  // POST form, docker's identity token
	GrantTokenExchange GrantType = "token_exchange" // POST form, RFC 8693
)

// Limits of one request, checked before anything is parsed.
const (
	MaxTokenBytes = 16 << 10
	MaxBodyBytes  = 64 << 10
	MaxScopes     = 64
)

// Request is one token request in one form, however it came.
type Request struct {
	GrantType  GrantType
	Service    string
	Scopes     []Scope // merged, sorted; empty for a login
	Credential Secret  // zero only for GrantAnonymous
	Account    string  // what the client calls the user; believed in nothing
	ClientID   string  // what the client calls itself; believed in nothing
}

// RequestError is a request that is refused as it stands: 400.
type RequestError struct {
	Code    string // RFC 6749 section 5.2: invalid_request, invalid_scope, unsupported_grant_type
	Field   string // the header, parameter or form field at fault
	Message string // what is wrong and the remedy; never a credential
}

func (e *RequestError) Error() string { return e.Field + ": " + e.Message }
