package upstream

import (
	"errors"
	"fmt"
	"regexp"
	"time"
)

// Reason is why an upstream could not be asked, or gave no answer to pass on.
type Reason string

// The reasons.
const (
	ReasonUnreachable Reason = "upstream_unreachable" // no connection, or it broke off before an answer
	ReasonTimeout     Reason = "upstream_timeout"     // no answer in time
	ReasonCredential  Reason = "upstream_credential"  // there is none, or the upstream refuses it
	ReasonDenied      Reason = "upstream_denied"      // the credential may not do this there
	ReasonLimited     Reason = "upstream_limited"     // too many requests
	ReasonFailing     Reason = "upstream_failing"     // it answers 5xx
	ReasonInvalid     Reason = "upstream_invalid"     // an answer that is none
	ReasonRedirect    Reason = "upstream_redirect"    // it leads to where it must not
	ReasonBroken      Reason = "upstream_broken"      // the body broke off
)

// Reasons returns all that there are.
func Reasons() []Reason {
	return []Reason{
		ReasonUnreachable, ReasonTimeout, ReasonCredential, ReasonDenied, ReasonLimited, ReasonFailing, ReasonInvalid, ReasonRedirect, ReasonBroken,
	}
}

// Error says why an upstream gave nothing to pass on. It never holds a credential or
// a signed URL.
type Error struct {
	Reason     Reason
	Upstream   string
	Status     int           // of the upstream's answer; 0: there was none
	RetryAfter time.Duration // that the upstream asks for; 0: nothing
	Message    string        // for people
	Err        error         // the cause; nil: Message says all
}

// ErrBody says that a request's body could not be read, which is no fault of the
// upstream's: the client that sends it has hung up, mostly.
var ErrBody = errors.New("the body of the request broke off")

func (e *Error) Error() string {
	text := e.Upstream + ": " + e.Message
	if e.Err != nil {
		text += ": " + ownAddress.ReplaceAllString(e.Err.Error(), "")
	}
	return text
}

// ownAddress is this side's of a connection, in the errors of net. Its port is
// another one each time, and a text that repeats must stay the same: events on pods
// are counted by it.
var ownAddress = regexp.MustCompile(`\S+:[0-9]+->`)

func (e *Error) Unwrap() error { return e.Err }

func (c *Client) fail(reason Reason, err error, format string, args ...any) *Error {
	return &Error{Reason: reason, Upstream: c.name, Message: fmt.Sprintf(format, args...), Err: err}
}

// isTimeout also knows the errors of net, which have a type of their own.
func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}
