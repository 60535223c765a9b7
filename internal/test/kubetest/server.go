package kubetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Object is one of Kubernetes, with its metadata.
type Object = map[string]any

// Server answers as kube-apiserver does (1.36 was compared), and fails when told
// to. It is a transport that serves itself in memory, so that the time of synctest
// rules both ends; NewAPIServer serves over TLS.
type Server struct {
	tls       *httptest.Server // nil: in memory
	writing   sync.Mutex       // is held before mu
	mu        sync.Mutex
	objects   map[string]map[string]Object // by resource, then NAMESPACE/NAME
	revision  int
	oldest    int                          // history before it is compacted away
	held      int                          // revision that lists and watches stand still at; 0: none
	then      map[string]map[string]Object // the objects at held
	changes   []change                     // the whole history
	changed   chan struct{}                // closed when something happened
	broken    int                          // watches are told 410 until they have seen this many such events
	streams   bool                         // lists can be streamed (KEP-3157)
	refuses   bool                         // connections
	failures  map[string]http.HandlerFunc
	requests  []string // VERB RESOURCE[ NAME]?query
	lists     int
	written   []Object // events
	userAgent string
	keyID     string         // of the tokens that are issued
	watches   map[string]int // that are open, by resource
}

type change struct {
	event, resource string
	object          Object
	revision        int
}

// NewServer returns an empty one, in memory.
func NewServer() *Server {
	return &Server{
		objects: map[string]map[string]Object{}, changed: make(chan struct{}), streams: true,
		revision: 100, failures: map[string]http.HandlerFunc{}, watches: map[string]int{},
	}
}

// Put adds or changes objects, of which it keeps copies.
func (s *Server) Put(resource string, objects ...Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects[resource] == nil {
		s.objects[resource] = map[string]Object{}
	}
	for _, o := range objects {
		event, key := "ADDED", keyOf(o)
		old, ok := s.objects[resource][key]
		if ok && metadata(old)["uid"] == metadata(o)["uid"] {
			event = "MODIFIED"
		} else if ok {
			s.record("DELETED", resource, old)
		}
		s.objects[resource][key] = s.record(event, resource, generated(resource, event, old, o))
	}
}

// Remove deletes an object.
func (s *Server) Remove(resource, namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := namespace + "/" + name
	s.record("DELETED", resource, s.objects[resource][key])
	delete(s.objects[resource], key)
}

// record returns the object with its new revision.
func (s *Server) record(event, resource string, o Object) Object {
	s.revision++
	o = maps.Clone(o)
	o["metadata"] = maps.Clone(metadata(o))
	metadata(o)["resourceVersion"] = strconv.Itoa(s.revision)
	s.changes = append(s.changes, change{event, resource, o, s.revision})
	s.wake()
	return o
}

func metadata(o Object) Object { return o["metadata"].(Object) }

func keyOf(o Object) string {
	namespace, _ := metadata(o)["namespace"].(string)
	return namespace + "/" + metadata(o)["name"].(string)
}

func (s *Server) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Compact forgets all history, so that every watching client must list again.
func (s *Server) Compact() {
	s.Forget()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken++
	s.wake()
}

// Hold lets lists and watches stand still, as those of a watch cache that lags. GETs go on.
func (s *Server) Hold(still bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held, s.then = 0, nil; still {
		s.held, s.then = s.revision, map[string]map[string]Object{}
		for resource, objects := range s.objects {
			s.then[resource] = maps.Clone(objects)
		}
	}
	s.wake()
}

// Snapshot returns a function that sets objects and revision back to those of now, as a restore of etcd does.
// API servers do not run meanwhile: call it between Refuse(true) and Refuse(false).
func (s *Server) Snapshot() (restore func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	revision, objects := s.revision, map[string]map[string]Object{}
	for resource, those := range s.objects {
		objects[resource] = maps.Clone(those)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.revision, s.objects, s.oldest = revision, objects, revision
		s.changes = slices.DeleteFunc(slices.Clone(s.changes), func(c change) bool { return c.revision > revision })
	}
}

// seen returns the objects that a list may have, and their revision.
func (s *Server) seen(resource string) (map[string]Object, int) {
	if s.held == 0 {
		return s.objects[resource], s.revision
	}
	return s.then[resource], s.held
}

// Forget is Compact for those that watch later.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revision++
	s.oldest = s.revision
}

// Prune forgets all but the last changes, as API servers do that compact their history. It also forgets which
// requests there were.
func (s *Server) Prune(keep int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = nil
	if from := len(s.changes) - keep; from > 0 && s.held == 0 {
		s.oldest = max(s.oldest, s.changes[from].revision)
		s.changes = slices.Clone(s.changes[from:])
	}
}

// Fail lets requests like "get pods" be answered by what is given; nil ends it.
func (s *Server) Fail(request string, with http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures[request] = with
}

// Refuse ends connections, and refuses further ones while all is set.
func (s *Server) Refuse(all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuses = all
	s.broken++ // connections that are open end
	s.wake()
}

// Count returns how many requests began like that since the last call.
func (s *Server) Count(prefix string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	s.requests = slices.DeleteFunc(s.requests, func(request string) bool {
		if strings.HasPrefix(request, prefix) {
			n++
			return true
		}
		return false
	})
	return n
}

// Asked returns the requests that were not counted.
func (s *Server) Asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Hang lets a request wait until its client gives up.
func Hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// Status is an error as the API server writes it.
func Status(code int, reason, message string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		answerJSON(w, code, Object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message})
	}
}

// Says answers with a body that no API server sends.
func Says(code int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(code)
		io.WriteString(w, body)
	}
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if parts[0] == "apis" { // apis/GROUP/VERSION
		parts = parts[1:]
	}
	parts = parts[min(2, len(parts)-1):]
	namespace := ""
	if parts[0] == "namespaces" && len(parts) > 2 {
		namespace, parts = parts[1], parts[2:]
	}
	resource, name, verb := parts[0], "", "list"
	switch {
	case r.Method == http.MethodPost && len(parts) > 2:
		resource, name, verb = parts[0]+"/"+parts[2], parts[1], "create"
	case r.Method == http.MethodPost:
		verb = "create"
	case resource != "events" && (r.Method == http.MethodPatch || r.Method == http.MethodPut):
		name, verb = parts[1], strings.ToLower(r.Method)
		if len(parts) > 2 {
			resource += "/" + parts[2]
		}
	case len(parts) > 1:
		name, verb = parts[1], "get"
	case r.URL.Query().Get("watch") != "":
		verb = "watch"
	}
	s.mu.Lock()
	s.requests = append(s.requests, strings.TrimSpace(verb+" "+resource+" "+name)+"?"+r.URL.RawQuery)
	s.userAgent = r.UserAgent()
	failure := s.failures[verb+" "+resource]
	if verb == "list" && r.URL.Query().Get("limit") != "1" { // a limit of 1 is of pages.CheckRevision
		s.lists++
	}
	s.mu.Unlock()
	switch {
	case s.tls != nil && r.Header.Get("Authorization") != "Bearer "+kubeconfigToken:
		answerStatus(w, http.StatusUnauthorized, "Unauthorized", Object{})
	case failure != nil:
		failure(w, r)
	case verb == "create" && resource == "tokenreviews":
		s.review(w, r)
	case verb == "put", verb == "patch", verb == "create" && resource != "events":
		s.write(w, r, verb, resource, namespace, name)
	case verb == "create":
		s.create(w, r)
	case verb == "get":
		s.Get(w, r, resource, namespace, name)
	case verb == "list":
		s.list(w, r, resource)
	default:
		s.watch(w, r, resource)
	}
}

// create takes events alone.
func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	var event Object
	_ = json.NewDecoder(r.Body).Decode(&event)
	s.mu.Lock()
	s.written = append(s.written, event)
	s.mu.Unlock()
	answerJSON(w, http.StatusCreated, event)
}

// Get answers a GET, for what was given to Fail.
func (s *Server) Get(w http.ResponseWriter, r *http.Request, resource, namespace, name string) {
	s.mu.Lock()
	o, ok := s.objects[resource][namespace+"/"+name]
	s.mu.Unlock()
	if !ok {
		answerJSON(w, http.StatusNotFound, Object{
			"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound",
			"message": fmt.Sprintf("%s %q not found", resource, name), "details": Object{"name": name, "kind": resource},
		})
		return
	}
	answerJSON(w, http.StatusOK, encode(o, resource, r))
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, resource string) {
	query := r.URL.Query()
	limit, _ := strconv.Atoi(query.Get("limit"))
	s.mu.Lock()
	defer s.mu.Unlock()
	objects, revision := s.seen(resource)
	keys := slices.Sorted(maps.Keys(objects))
	if after := query.Get("continue"); after != "" {
		keys = slices.DeleteFunc(keys, func(key string) bool { return key <= after })
	}
	metadata := Object{"resourceVersion": strconv.Itoa(revision)}
	// The watch cache has no pages (before 1.34).
	if limit > 0 && len(keys) > limit && query.Get("resourceVersion") != "0" {
		keys = keys[:limit]
		metadata["continue"] = keys[limit-1]
	}
	items, wanted := []any{}, newSelector(r)
	for _, key := range keys {
		if wanted.matches(objects[key]) {
			items = append(items, encode(objects[key], resource, r))
		}
	}
	kind := Object{"kind": kinds[resource] + "List", "apiVersion": "v1"}
	if partial(r) {
		kind = Object{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
	}
	kind["metadata"], kind["items"] = metadata, items
	answerJSON(w, http.StatusOK, kind)
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request, resource string) {
	query := r.URL.Query()
	streamed := query.Get("sendInitialEvents") == "true"
	if streamed && !s.streams {
		Status(http.StatusUnprocessableEntity, "Invalid", "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled")(w, r)
		return
	}
	from, _ := strconv.Atoi(query.Get("resourceVersion"))
	s.mu.Lock()
	broken := s.broken
	if _, revision := s.seen(resource); streamed && from > revision {
		s.mu.Unlock()
		answerJSON(w, http.StatusGatewayTimeout, Object{
			"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 504, "reason": "Timeout", "message": "Too large resource version",
			"details": Object{"causes": []any{Object{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}}},
		})
		return
	}
	if from != 0 && from < s.oldest {
		s.mu.Unlock()
		Status(http.StatusGone, "Expired", "too old resource version")(w, r)
		return
	}
	events, wanted := []change{}, newSelector(r)
	if streamed {
		objects, revision := s.seen(resource)
		for _, key := range slices.Sorted(maps.Keys(objects)) {
			if wanted.matches(objects[key]) {
				events = append(events, change{"ADDED", resource, objects[key], revision})
			}
		}
		events = append(events, bookmark(resource, revision, Object{"k8s.io/initial-events-end": "true"}))
		from = revision
	}
	s.watches[resource]++
	s.mu.Unlock()
	defer s.closed(resource)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	seconds, _ := strconv.Atoi(query.Get("timeoutSeconds"))
	timer := time.NewTimer(time.Duration(seconds) * time.Second)
	defer timer.Stop()
	bookmarks := time.NewTicker(time.Minute)
	defer bookmarks.Stop()
	for {
		for _, e := range events {
			json.NewEncoder(w).Encode(Object{"type": e.event, "object": encode(e.object, resource, r)})
		}
		w.(http.Flusher).Flush()
		s.mu.Lock()
		if s.broken > broken {
			refuses := s.refuses
			s.mu.Unlock()
			if !refuses {
				json.NewEncoder(w).Encode(Object{"type": "ERROR", "object": Object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired", "message": "compacted"}})
			}
			return
		}
		events = nil
		next, _ := slices.BinarySearchFunc(s.changes, from+1, func(c change, revision int) int { return c.revision - revision })
		for _, c := range s.changes[next:] {
			if c.resource != resource || s.held != 0 && c.revision > s.held {
				continue
			}
			if c, ok := wanted.sees(c); ok {
				events = append(events, c)
			}
		}
		_, revision := s.seen(resource)
		from = max(from, revision)
		changed := s.changed
		s.mu.Unlock()
		if len(events) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-bookmarks.C:
			events = append(events, bookmark(resource, from, nil))
		case <-timer.C:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func bookmark(resource string, revision int, annotations Object) change {
	return change{"BOOKMARK", resource, Object{"metadata": Object{"resourceVersion": strconv.Itoa(revision), "annotations": annotations}}, revision}
}

func (s *Server) closed(resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches[resource]--
}

// Open returns how many watches of a resource are.
func (s *Server) Open(resource string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watches[resource]
}

// partial reports whether only the metadata is asked for.
func partial(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
}

// kinds are those of objects, by resource.
var kinds = map[string]string{"nodes": "Node", "pods": "Pod", "serviceaccounts": "ServiceAccount", "namespaces": "Namespace", "secrets": "Secret", "leases": "Lease", "configmaps": "ConfigMap", "events": "Event",
	"accesspolicies": "AccessPolicy", "repositoryaccesses": "RepositoryAccess"}

// encode writes an object as it was asked for.
func encode(o Object, resource string, r *http.Request) Object {
	if partial(r) {
		return Object{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": o["metadata"]}
	}
	whole := maps.Clone(o)
	whole["kind"], whole["apiVersion"] = kinds[resource], "v1"
	switch resource {
	case "leases":
		whole["apiVersion"] = "coordination.k8s.io/v1"
	case "accesspolicies", "repositoryaccesses":
		whole["apiVersion"] = "pullpass.dev/v1beta1"
	}
	return whole
}

// RoundTrip serves in memory.
func (s *Server) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	refuses := s.refuses
	s.mu.Unlock()
	if refuses {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	reader, writer := io.Pipe()
	ctx, cancel := context.WithCancel(r.Context())
	response := &memoryResponse{header: http.Header{}, started: make(chan struct{}), writer: writer}
	context.AfterFunc(ctx, func() { writer.CloseWithError(ctx.Err()) })
	go func() {
		s.ServeHTTP(response, r.Clone(ctx))
		response.WriteHeader(http.StatusOK)
		response.Flush()
		writer.Close()
	}()
	select {
	case <-response.started:
	case <-ctx.Done():
		cancel()
		return nil, ctx.Err()
	}
	return &http.Response{
		StatusCode: response.code, Status: http.StatusText(response.code), Header: response.header, Request: r,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, ContentLength: -1, Body: &memoryBody{reader, cancel},
	}, nil
}

type memoryResponse struct {
	header  http.Header
	code    int
	started chan struct{} // closed when code is set
	writer  *io.PipeWriter
	buffer  bytes.Buffer
}

func (m *memoryResponse) Header() http.Header { return m.header }

func (m *memoryResponse) WriteHeader(code int) {
	if m.code == 0 {
		m.code = code
		close(m.started)
	}
}

func (m *memoryResponse) Write(data []byte) (int, error) {
	m.WriteHeader(http.StatusOK)
	return m.buffer.Write(data)
}

func (m *memoryResponse) Flush() {
	m.writer.Write(m.buffer.Bytes())
	m.buffer.Reset()
}

type memoryBody struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (m *memoryBody) Close() error {
	m.cancel()
	return m.PipeReader.Close()
}

// Streams says whether lists can be streamed, as they can at first.
func (s *Server) Streams(can bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams = can
}

// UserAgent returns that of the last request.
func (s *Server) UserAgent() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.userAgent
}
