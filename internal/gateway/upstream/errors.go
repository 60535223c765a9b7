package upstream

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/redact"
	"github.com/pullpass/pullpass/internal/refusal"
)

// Error says why an upstream gave no response to forward. It never holds a credential or a signed
// URL.
type Error struct {
	Reason     refusal.Reason
	Upstream   string
	Status     int           // of the upstream's response; 0: there was none
	RetryAfter time.Duration // from the upstream's response; 0: not set
	Message    string        // for people
	Err        error         // the cause; nil: Message is complete
}

// ErrBody says that a request's body could not be read. It is not a fault of the upstream: usually
// the client hung up.
var ErrBody = errors.New("the body of the request broke off")

func (e *Error) Error() string {
	text := e.Upstream + ": " + e.Message
	if e.Err != nil {
		text += ": " + ownAddress.ReplaceAllString(e.Err.Error(), "")
	}
	return text
}

// ownAddress matches the local address of a connection, in the errors of net. Its port differs each
// time. A repeated text must stay the same, because events on pods are counted by it.
var ownAddress = regexp.MustCompile(`\S+:[0-9]+->`)

func (e *Error) Unwrap() error { return e.Err }

func (c *Client) fail(reason refusal.Reason, err error, format string, args ...any) *Error {
	return &Error{Reason: reason, Upstream: c.name, Message: fmt.Sprintf(format, args...), Err: err}
}

// discreet returns an error without the credential of the request: net/http quotes the head of a
// response that is not HTTP, which may repeat that of the request.
func discreet(err error, r *http.Request) error {
	_, sent, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	_, password, _ := r.BasicAuth()
	text := err.Error()
	if clean := redact.Known(sent, password).Text(text); clean != text {
		return errors.New(clean)
	}
	return err
}

// isTimeout also recognizes the timeouts of net, which have their own error types.
func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}
