package refusal

import "net/http"

// Class is a kind of refusal.
type Class string

// The classes. A reason that both endpoints have may get a different class at the gateway, which
// passes on the failures of upstreams.
const (
	Narrowed        Class = "narrowed" // by the token specification, less access than requested is not an error
	Malformed       Class = "malformed"
	Method          Class = "method"
	NotFound        Class = "not_found"
	Unauthenticated Class = "unauthenticated"
	Forbidden       Class = "forbidden"
	Limited         Class = "limited"
	Unavailable     Class = "unavailable"
	BadGateway      Class = "bad_gateway"
	GatewayTimeout  Class = "gateway_timeout"
	Internal        Class = "internal"
)

var statuses = map[Class]int{
	Narrowed:        http.StatusOK,
	Malformed:       http.StatusBadRequest,
	Method:          http.StatusMethodNotAllowed,
	NotFound:        http.StatusNotFound,
	Unauthenticated: http.StatusUnauthorized,
	Forbidden:       http.StatusForbidden,
	Limited:         http.StatusTooManyRequests,
	Unavailable:     http.StatusServiceUnavailable,
	BadGateway:      http.StatusBadGateway,
	GatewayTimeout:  http.StatusGatewayTimeout,
	Internal:        http.StatusInternalServerError,
}

// Status is the HTTP status that follows from the class.
func (c Class) Status() int { return statuses[c] }

// Reason is one entry of the catalogue.
type Reason struct {
	Word    string // as in the audit log and in metrics; it never changes
	Class   Class
	Message string // its meaning
	Remedy  string // the remedy, and its actor
}

// All returns the catalogue.
func All() []Reason { return all }

// Find returns the entry of a word.
func Find(word string) (Reason, bool) {
	for _, r := range all {
		if r.Word == word {
			return r, true
		}
	}
	return Reason{}, false
}
