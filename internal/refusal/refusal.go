package refusal

import "net/http"

// Reason is the word for the cause of a refusal, as in the audit log and in metrics. It never
// changes.
type Reason string

// EventReason is the reason of the events on pods whose tokens were refused.
const EventReason = "ImagePullDenied"

// Class is a kind of refusal.
type Class string

// The classes.
const (
	Narrowed        Class = "narrowed" // by the token specification, less access than requested is not an error
	Malformed       Class = "malformed"
	Method          Class = "method"
	NotFound        Class = "not_found"
	TooLong         Class = "too_long"
	Unauthenticated Class = "unauthenticated"
	Forbidden       Class = "forbidden"
	Limited         Class = "limited"
	Canceled        Class = "canceled" // the client hung up or stalled
	Stalled         Class = "stalled"  // the client stalled in its own body
	Unavailable     Class = "unavailable"
	BadGateway      Class = "bad_gateway"
	GatewayTimeout  Class = "gateway_timeout"
	Internal        Class = "internal"
)

// statusCanceled is the status that servers log for a client that hung up (nginx's number; it is in
// no RFC).
const statusCanceled = 499

var statuses = map[Class]int{
	Narrowed:        http.StatusOK,
	Malformed:       http.StatusBadRequest,
	Method:          http.StatusMethodNotAllowed,
	NotFound:        http.StatusNotFound,
	TooLong:         http.StatusRequestURITooLong,
	Unauthenticated: http.StatusUnauthorized,
	Forbidden:       http.StatusForbidden,
	Limited:         http.StatusTooManyRequests,
	Canceled:        statusCanceled,
	Stalled:         http.StatusRequestTimeout,
	Unavailable:     http.StatusServiceUnavailable,
	BadGateway:      http.StatusBadGateway,
	GatewayTimeout:  http.StatusGatewayTimeout,
	Internal:        http.StatusInternalServerError,
}

// Status is the HTTP status that follows from the class.
func (c Class) Status() int { return statuses[c] }

// Entry is one entry of the catalogue.
type Entry struct {
	Reason  Reason
	Class   Class
	Message string // its meaning
	Remedy  string // the remedy, and its actor
}

// All returns the catalogue.
func All() []Entry { return all }

// Reasons returns the reason of each entry.
func Reasons() []Reason {
	reasons := make([]Reason, len(all))
	for i, e := range all {
		reasons[i] = e.Reason
	}
	return reasons
}

// Find returns the entry of a reason.
func Find(reason Reason) (Entry, bool) {
	for _, e := range all {
		if e.Reason == reason {
			return e, true
		}
	}
	return Entry{}, false
}

// Class is that of the reason's entry.
func (r Reason) Class() Class {
	e, _ := Find(r)
	return e.Class
}
