package gateway

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// kind is the kind of resource that a request addresses.
type kind string

const (
	kindVersion   kind = "version" // /v2/ itself
	kindManifest  kind = "manifest"
	kindBlob      kind = "blob"
	kindTags      kind = "tags"
	kindReferrers kind = "referrers"
	kindUploads   kind = "uploads" // the start of an upload
	kindUpload    kind = "upload"  // an upload in progress
)

// Kinds returns all kinds, for metric labels.
func Kinds() []string {
	return []string{
		string(kindVersion), string(kindManifest), string(kindBlob), string(kindTags), string(kindReferrers), string(kindUploads), string(kindUpload),
	}
}

// Actions of registries, as scopes name them.
const (
	actionPull   = "pull"
	actionPush   = "push"
	actionDelete = "delete"
)

// target is the parsed target of a request. The upstream's address is built from its parts, and
// never from the client's path, because two readers must not interpret one path differently.
type target struct {
	kind       kind
	upstream   string // upstreams[].name
	repository string // as the upstream names it
	name       string // of the repository, as policies and tokens have it
	asked      string // of the repository, as the client has it at the host that it asks
	reference  string // tag or digest; of an upload, its sealed address
	action     string
}

const (
	maxTags           = 10  // of one push: registries should accept this number (distribution specification)
	maxTagBytes       = 128 // distribution specification
	maxReferenceBytes = 255 // of a digest
	maxParameters     = 64  // of a query, also unknown ones
)

// parseTarget reads the method and path of a request below /v2/ of a host. Errors are *rejection.
func parseTarget(method, host string, u *url.URL, upstreams Names) (target, error) {
	path := plainPath(u)
	if path == "" {
		if method != http.MethodGet && method != http.MethodHead {
			return target{}, unsupported(method)
		}
		return target{kind: kindVersion, action: actionPull}, nil
	}
	t, name := cutKind(path)
	if t.kind == "" {
		return target{}, refuseAs(refusal.NotFound, refusal.PathInvalid, "UNSUPPORTED", "this is not a path of the registry's API; below /v2/ there are NAME/manifests, /blobs, /tags/list and /referrers")
	}
	at := upstreams.at(host)
	if at != "" {
		name = at + "/" + name
	}
	var err error
	if t.upstream, t.repository, err = upstreams.split(name); err != nil {
		return target{}, err
	}
	t.name = t.upstream + "/" + t.repository
	if t.asked = t.name; at != "" {
		t.asked = t.repository
	}
	if err := t.checkReference(); err != nil {
		return target{}, err
	}
	if t.action = actionOf(t.kind, method); t.action == "" {
		return target{}, unsupported(method)
	}
	return t, nil
}

// plainPath returns the path after /v2/. Escapes are kept, because they are invalid in names and
// references. Only the escaped colon of a digest is replaced, because some clients escape it.
func plainPath(u *url.URL) string {
	path := strings.ReplaceAll(strings.ReplaceAll(u.EscapedPath(), "%3A", ":"), "%3a", ":")
	return strings.TrimPrefix(strings.TrimPrefix(path, "/v2"), "/")
}

// cutKind reads a path from its end. The part before the last words is the name, whatever words it
// contains. No path can be read in two ways.
func cutKind(path string) (t target, name string) {
	parts := strings.Split(path, "/")
	last := len(parts) - 1
	at := func(i int) string {
		if i < 0 {
			return ""
		}
		return parts[i]
	}
	cut := 0
	switch {
	case at(last-1) == "tags" && at(last) == "list":
		t.kind, cut = kindTags, 2
	case at(last-1) == "manifests":
		t.kind, cut = kindManifest, 2
	case at(last-1) == "referrers":
		t.kind, cut = kindReferrers, 2
	case at(last-2) == "blobs" && at(last-1) == "uploads" && at(last) == "":
		t.kind, cut = kindUploads, 3
	case at(last-2) == "blobs" && at(last-1) == "uploads":
		t.kind, cut = kindUpload, 3
	case at(last-1) == "blobs" && at(last) == "uploads":
		t.kind, cut = kindUploads, 2
	case at(last-1) == "blobs":
		t.kind, cut = kindBlob, 2
	default:
		return target{}, ""
	}
	if t.kind != kindTags && t.kind != kindUploads {
		t.reference = at(last)
	}
	return t, strings.Join(parts[:len(parts)-cut], "/")
}

const base64url = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

func (t *target) checkReference() error {
	isGood := true
	switch t.kind {
	case kindBlob, kindReferrers:
		if !isDigest(t.reference) {
			return refuse(refusal.PathInvalid, "DIGEST_INVALID", "the digest is none; write sha256:HEX")
		}
	case kindUpload:
		if strings.Trim(t.reference, base64url) != "" { // it was not sealed here
			return refuse(refusal.PathInvalid, "BLOB_UPLOAD_UNKNOWN", "there is no such upload; begin it again")
		}
	case kindManifest:
		isGood = isTag(t.reference) || isDigest(t.reference)
	}
	if !isGood {
		return refuse(refusal.PathInvalid, "MANIFEST_INVALID", "the reference is neither a tag nor a digest")
	}
	return nil
}

// actionOf returns the action of a method; empty: the kind does not support the method.
func actionOf(k kind, method string) string {
	switch method {
	case http.MethodGet:
		if k == kindUpload {
			return actionPush
		}
		if k != kindUploads {
			return actionPull
		}
	case http.MethodHead:
		if k == kindManifest || k == kindBlob {
			return actionPull
		}
	case http.MethodPost:
		if k == kindUploads {
			return actionPush
		}
	case http.MethodPut:
		if k == kindManifest || k == kindUpload {
			return actionPush
		}
	case http.MethodPatch:
		if k == kindUpload {
			return actionPush
		}
	case http.MethodDelete:
		switch k {
		case kindManifest, kindBlob:
			return actionDelete
		case kindUpload:
			return actionPush
		}
	}
	return ""
}

func unsupported(method string) error {
	return refuse(refusal.MethodNotAllowed, "UNSUPPORTED", "the method "+shortMethod(method)+" does nothing here")
}

// shortMethod returns a method for messages.
func shortMethod(method string) string {
	known := []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions}
	if slices.Contains(known, method) {
		return method
	}
	return "of this request"
}

// isTag reports whether s is a tag (distribution specification).
func isTag(s string) bool {
	if s == "" || len(s) > maxTagBytes || s[0] == '.' || s[0] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isAlphanumeric(c) && c != '_' && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

// isDigest reports whether s is a digest (image specification, descriptor).
func isDigest(s string) bool {
	algorithm, encoded, _ := strings.Cut(s, ":")
	if len(s) > maxReferenceBytes || algorithm == "" || encoded == "" {
		return false
	}
	for i := range len(algorithm) {
		c := algorithm[i]
		separates := c == '+' || c == '.' || c == '_' || c == '-'
		if separates && (i == 0 || i == len(algorithm)-1 || !isLowerAlphanumeric(algorithm[i-1])) || !separates && !isLowerAlphanumeric(c) {
			return false
		}
	}
	for i := range len(encoded) {
		if c := encoded[i]; !isAlphanumeric(c) && c != '=' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

func isLowerAlphanumeric(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }

func isAlphanumeric(c byte) bool { return isLowerAlphanumeric(c) || 'A' <= c && c <= 'Z' }

// query holds the known parameters of a request. Unknown parameters are dropped and never
// forwarded.
type query struct {
	count, last  string   // of tags
	artifactType string   // of referrers
	page         string   // of either list, sealed: the next page of the upstream's own list
	digest       string   // of an upload
	algorithm    string   // of the digest that an upload will have
	mount, from  string   // of the beginning of an upload
	tags         []string // that a manifest pushed by digest gets
}

func parseQuery(u *url.URL) (query, error) {
	if u.RawQuery == "" {
		return query{}, nil
	}
	// Before parsing: ten thousand parameters fit into a request, and cost as much as twenty requests.
	if strings.Count(u.RawQuery, "&") >= maxParameters {
		return query{}, refuse(refusal.PathInvalid, "UNSUPPORTED", "the query has more than 64 parameters; the registry's API has fewer")
	}
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return query{}, refuse(refusal.PathInvalid, "UNSUPPORTED", "the query cannot be read")
	}
	var q query
	for name, into := range map[string]*string{
		"n": &q.count, "last": &q.last, "artifactType": &q.artifactType, pageParameter: &q.page, "digest": &q.digest, "digest-algorithm": &q.algorithm, "mount": &q.mount, "from": &q.from,
		"ns": new(string), // containerd sends the registry that it means; only the path counts
	} {
		if len(values[name]) > 1 {
			return query{}, refuse(refusal.PathInvalid, "UNSUPPORTED", "the parameter "+name+" is there twice")
		}
		*into = values.Get(name)
	}
	for _, digest := range []string{q.digest, q.mount} {
		if digest != "" && !isDigest(digest) {
			return query{}, refuse(refusal.PathInvalid, "DIGEST_INVALID", "the digest is none; write sha256:HEX")
		}
	}
	if q.algorithm != "" && !isDigest(q.algorithm+":0") {
		return query{}, refuse(refusal.PathInvalid, "DIGEST_INVALID", "the digest-algorithm is none; write sha256 or sha512")
	}
	if q.tags = values["tag"]; len(q.tags) > maxTags {
		return query{}, refuseAs(refusal.TooLong, refusal.PathInvalid, "UNSUPPORTED", "a manifest can be pushed with 10 tags at once; push it again with the others")
	}
	for _, tag := range q.tags {
		if !isTag(tag) {
			return query{}, refuse(refusal.PathInvalid, "MANIFEST_INVALID", "the parameter tag is not a valid tag")
		}
	}
	return q, nil
}

// isName reports whether a repository's name is valid in registries.
func isName(name string) bool {
	_, err := registryauth.ParseScope("repository:" + name + ":" + actionPull)
	return err == nil && !strings.ContainsAny(name, ":ABCDEFGHIJKLMNOPQRSTUVWXYZ")
}
