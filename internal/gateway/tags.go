package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/refusal"
)

const (
	// shortList is how much of a list is read before the response begins. Up to there, an invalid
	// list gets an error status. In a longer list, a fault ends the connection.
	shortList = 8 << 10
	// maxTokenBytes is the maximum size of a JSON token in a list. A tag has at most 128 bytes.
	maxTokenBytes = 16 << 10
)

var errList = errors.New("it is not a list of tags")

// answerTags forwards a list of tags with the gateway's name of the repository, because clients
// compare the name.
func (h *Handler) answerTags(cancel context.CancelCauseFunc, q *request, response *http.Response, link string) error {
	watch := watchRead(cancel, &upstream.Error{Reason: refusal.UpstreamTimeout, Upstream: q.target.upstream, Status: response.StatusCode, Message: "its answer did not go on"})
	list := newTagList(response.Body, q.target.asked)
	head := make([]byte, shortList)
	n, err := io.ReadFull(list, head)
	watch.Stop()
	whole := errors.Is(err, io.ErrUnexpectedEOF) // no list is empty
	var stalled *upstream.Error
	switch {
	case err == nil || whole:
	case errors.As(list.body.err, &stalled):
		return stalled
	case list.body.err != nil:
		return &upstream.Error{Reason: refusal.UpstreamBroken, Upstream: q.target.upstream, Status: response.StatusCode, Message: "its list of tags broke off", Err: list.body.err}
	default:
		return h.invalid(q, response.StatusCode, "its list of tags cannot be read")
	}
	header := q.w.Header()
	passBack(header, response.Header)
	for _, name := range []string{"Content-Encoding", "Content-Length", "Etag"} { // they describe the original body
		header.Del(name)
	}
	header.Set("Content-Type", "application/json")
	if whole {
		header.Set("Content-Length", strconv.Itoa(n))
	}
	if link != "" {
		header.Set("Link", link)
	}
	return h.stream(cancel, q, response.StatusCode, io.MultiReader(bytes.NewReader(head[:n]), list))
}

// tagList reads a list of tags as a stream and replaces the name. It holds one piece, however long
// the list is.
type tagList struct {
	name  string
	body  *inPieces
	json  *jsontext.Decoder
	ready []byte // rewritten, but not read yet
	err   error  // the error after the ready bytes
	where int    // one of the constants below
	named bool   // a name was read
	known bool   // tags were read
}

// maxListDepth bounds the nesting of the other members of a list.
const maxListDepth = 16

const (
	beforeList = iota
	inList
	inTags
	behindTag
)

func newTagList(from io.Reader, name string) *tagList {
	body := &inPieces{from: from}
	// The decoder keeps no names to find duplicates. member rejects a second list of tags.
	return &tagList{name: name, body: body, json: jsontext.NewDecoder(body, jsontext.AllowDuplicateNames(true))}
}

func (l *tagList) Read(p []byte) (int, error) {
	for len(l.ready) < len(p) && l.err == nil {
		l.err = l.next()
	}
	if len(l.ready) == 0 {
		return 0, l.err
	}
	n := copy(p, l.ready)
	l.ready = l.ready[:copy(l.ready, l.ready[n:])]
	return n, nil
}

// token returns the next token, which is valid until the next call.
func (l *tagList) token() (jsontext.Token, error) {
	l.body.left = maxTokenBytes
	token, err := l.json.ReadToken()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) { // the list is incomplete
		err = errList
	}
	return token, err
}

// next rewrites one piece. At the end of the list, it returns io.EOF.
func (l *tagList) next() error {
	token, err := l.token()
	if err != nil {
		return err
	}
	switch l.where {
	case beforeList:
		if token.Kind() != '{' {
			return errList
		}
		name, _ := json.Marshal(l.name) // a text has no error
		l.ready = append(append(append(l.ready, `{"name":`...), name...), `,"tags":[`...)
		l.where = inList
	case inList:
		if token.Kind() == '}' {
			return l.end()
		}
		return l.member(token.String())
	default:
		switch kind := token.Kind(); kind {
		case ']':
			l.where = inList
			return nil
		case '"':
		default:
			return errList
		}
		if l.where == behindTag {
			l.ready = append(l.ready, ',')
		}
		l.ready, err = jsontext.AppendQuote(l.ready, token.String())
		l.where = behindTag
		return err
	}
	return nil
}

// member begins the tags, or skips any other member. Artifact Registry adds the manifests, for
// example.
func (l *tagList) member(name string) error {
	isTags := name == "tags"
	if isTags && l.known {
		return errList
	}
	l.known = l.known || isTags
	l.named = l.named || name == "name"
	for depth := 0; ; {
		token, err := l.token()
		if err != nil {
			return err
		}
		switch kind := token.Kind(); {
		case isTags && kind == '[':
			l.where = inTags
			return nil
		case isTags && kind != 'n':
			return errList
		case kind == '{' || kind == '[':
			// The decoder keeps the names of all open objects.
			if depth++; depth > maxListDepth {
				return errList
			}
		case kind == '}' || kind == ']':
			depth--
		}
		if depth == 0 {
			return nil
		}
	}
}

func (l *tagList) end() error {
	l.body.left = maxTokenBytes
	// A body of net/http may break off together with its last bytes, and be at its end afterwards.
	if _, err := l.json.ReadToken(); !errors.Is(err, io.EOF) || l.body.err != nil || !l.named && !l.known {
		return errList
	}
	l.ready = append(l.ready, "]}"...)
	return io.EOF
}

// inPieces is a body that reads at most left bytes before left is reset.
type inPieces struct {
	from io.Reader
	left int
	err  error // error of from, except io.EOF
}

func (r *inPieces) Read(p []byte) (int, error) {
	if r.left <= 0 {
		return 0, errList
	}
	n, err := r.from.Read(p[:min(len(p), r.left)])
	r.left -= n
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}
