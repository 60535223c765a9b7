package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// apiServer answers as kube-apiserver does (1.36 was compared), and fails when
// told to. It is an http.Handler, and a transport that serves itself in memory,
// so that the time of synctest rules both ends.
type apiServer struct {
	mu        sync.Mutex
	objects   map[string]map[string]thing // by resource, then NAMESPACE/NAME
	revision  int
	oldest    int           // history before it is compacted away
	changes   []change      // the whole history
	changed   chan struct{} // closed when something happened
	broken    int           // watches are told 410 until they have seen this many such events
	streams   bool          // lists can be streamed (KEP-3157)
	refuses   bool          // connections
	failures  map[string]http.HandlerFunc
	requests  []string // VERB RESOURCE[ NAME]?query
	userAgent string
	watches   map[string]int // that are open, by resource
}

// thing is an object, as far as tests vary it.
type thing struct {
	resource, namespace, name, uid string
	labels, annotations            map[string]string
	nodeName                       string      // of a pod
	addresses                      [][2]string // of a Node: type and address
	revision                       int
}

type change struct {
	event string
	thing thing
}

func newAPIServer(things ...thing) *apiServer {
	s := &apiServer{
		objects: map[string]map[string]thing{}, changed: make(chan struct{}), streams: true,
		revision: 100, failures: map[string]http.HandlerFunc{}, watches: map[string]int{},
	}
	s.put(things...)
	return s
}

// put adds or changes objects.
func (s *apiServer) put(things ...thing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range things {
		key := t.namespace + "/" + t.name
		event := "ADDED"
		if s.objects[t.resource] == nil {
			s.objects[t.resource] = map[string]thing{}
		}
		if old, ok := s.objects[t.resource][key]; ok && old.uid == t.uid {
			event = "MODIFIED"
		} else if ok {
			s.record("DELETED", old)
		}
		s.objects[t.resource][key] = s.record(event, t)
	}
}

func (s *apiServer) remove(resource, namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := namespace + "/" + name
	s.record("DELETED", s.objects[resource][key])
	delete(s.objects[resource], key)
}

func (s *apiServer) record(event string, t thing) thing {
	s.revision++
	t.revision = s.revision
	s.changes = append(s.changes, change{event, t})
	s.wake()
	return t
}

func (s *apiServer) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// compact forgets all history, so that whoever watches must list again.
func (s *apiServer) compact() {
	s.forget()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken++
	s.wake()
}

// forget is compact for those that watch later.
func (s *apiServer) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revision++
	s.oldest = s.revision
}

// fail lets requests like "get pods" be answered by what is given; nil ends it.
func (s *apiServer) fail(request string, with http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures[request] = with
}

func (s *apiServer) refuse(all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuses = all
	s.broken++ // connections that are open end
	s.wake()
}

// count returns how many requests began like that since the last call.
func (s *apiServer) count(prefix string) int {
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

// asked returns the requests that were not counted.
func (s *apiServer) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// hang lets a request wait until its client gives up.
func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// status is an error as the API server writes it.
func status(code int, reason, message string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, code, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message})
	}
}

// says answers with a body that no API server sends.
func says(code int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(code)
		io.WriteString(w, body)
	}
}

func writeJSON(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(body)
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/api/v1/"), "/")
	namespace := ""
	if parts[0] == "namespaces" && len(parts) > 2 {
		namespace, parts = parts[1], parts[2:]
	}
	resource, name, verb := parts[0], "", "list"
	switch {
	case len(parts) > 1:
		name, verb = parts[1], "get"
	case r.URL.Query().Get("watch") != "":
		verb = "watch"
	}
	s.mu.Lock()
	s.requests = append(s.requests, strings.TrimSpace(verb+" "+resource+" "+name)+"?"+r.URL.RawQuery)
	s.userAgent = r.UserAgent()
	failure := s.failures[verb+" "+resource]
	s.mu.Unlock()
	switch {
	case failure != nil:
		failure(w, r)
	case verb == "get":
		s.get(w, r, resource, namespace, name)
	case verb == "list":
		s.list(w, r, resource)
	default:
		s.watch(w, r, resource)
	}
}

func (s *apiServer) get(w http.ResponseWriter, r *http.Request, resource, namespace, name string) {
	s.mu.Lock()
	t, ok := s.objects[resource][namespace+"/"+name]
	s.mu.Unlock()
	if !ok {
		writeJSON(w, http.StatusNotFound, map[string]any{
			"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound",
			"message": fmt.Sprintf("%s %q not found", resource, name), "details": map[string]any{"name": name, "kind": resource},
		})
		return
	}
	writeJSON(w, http.StatusOK, t.encode(r))
}

func (s *apiServer) list(w http.ResponseWriter, r *http.Request, resource string) {
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := slices.Sorted(maps.Keys(s.objects[resource]))
	if after := r.URL.Query().Get("continue"); after != "" {
		keys = slices.DeleteFunc(keys, func(key string) bool { return key <= after })
	}
	metadata := map[string]any{"resourceVersion": strconv.Itoa(s.revision)}
	// The watch cache has no pages (before 1.34).
	if limit > 0 && len(keys) > limit && r.URL.Query().Get("resourceVersion") != "0" {
		keys = keys[:limit]
		metadata["continue"] = keys[limit-1]
	}
	items := []any{}
	for _, key := range keys {
		items = append(items, s.objects[resource][key].encode(r))
	}
	kind := map[string]any{"kind": "NodeList", "apiVersion": "v1"}
	if partial(r) {
		kind = map[string]any{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
	}
	kind["metadata"], kind["items"] = metadata, items
	writeJSON(w, http.StatusOK, kind)
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, resource string) {
	query := r.URL.Query()
	streamed := query.Get("sendInitialEvents") == "true"
	if streamed && !s.streams {
		status(http.StatusUnprocessableEntity, "Invalid", "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled")(w, r)
		return
	}
	from, _ := strconv.Atoi(query.Get("resourceVersion"))
	s.mu.Lock()
	broken := s.broken
	if from != 0 && from < s.oldest {
		s.mu.Unlock()
		status(http.StatusGone, "Expired", "too old resource version")(w, r)
		return
	}
	events := []change{}
	if streamed {
		for _, key := range slices.Sorted(maps.Keys(s.objects[resource])) {
			events = append(events, change{"ADDED", s.objects[resource][key]})
		}
		events = append(events, change{"BOOKMARK", thing{annotations: map[string]string{"k8s.io/initial-events-end": "true"}, revision: s.revision}})
		from = s.revision
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
			json.NewEncoder(w).Encode(map[string]any{"type": e.event, "object": e.thing.encode(r)})
		}
		w.(http.Flusher).Flush()
		s.mu.Lock()
		if s.broken > broken {
			refuses := s.refuses
			s.mu.Unlock()
			if !refuses {
				json.NewEncoder(w).Encode(map[string]any{"type": "ERROR", "object": map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired", "message": "compacted"}})
			}
			return
		}
		events = nil
		for _, c := range s.changes {
			if c.thing.revision > from && c.thing.resource == resource {
				events = append(events, c)
			}
		}
		from = s.revision
		changed := s.changed
		s.mu.Unlock()
		if len(events) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-bookmarks.C:
			events = append(events, change{"BOOKMARK", thing{resource: resource, revision: from}})
		case <-timer.C:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func (s *apiServer) closed(resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches[resource]--
}

// open returns how many watches of a resource are.
func (s *apiServer) open(resource string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watches[resource]
}

// partial reports whether only the metadata is asked for.
func partial(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
}

// encode writes all that real objects have, so that something can be dropped.
func (t thing) encode(r *http.Request) map[string]any {
	object := map[string]any{"metadata": map[string]any{
		"name": t.name, "namespace": t.namespace, "uid": t.uid, "resourceVersion": strconv.Itoa(t.revision),
		"labels": t.labels, "annotations": t.annotations, "generateName": t.name + "-", "creationTimestamp": "2026-03-04T05:06:07Z",
		"ownerReferences": []any{map[string]any{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "owner", "uid": "uid-owner"}},
		"managedFields": []any{map[string]any{"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
			"fieldsV1": map[string]any{"f:status": map[string]any{}}}},
	}}
	if partial(r) {
		object["kind"], object["apiVersion"] = "PartialObjectMetadata", "meta.k8s.io/v1"
		return object
	}
	object["apiVersion"] = "v1"
	if t.resource == "pods" {
		object["kind"] = "Pod"
		object["spec"] = map[string]any{"nodeName": t.nodeName, "containers": []any{map[string]any{"name": "c", "image": "i"}}}
		return object
	}
	object["kind"] = "Node"
	addresses := []any{}
	for _, a := range t.addresses {
		addresses = append(addresses, map[string]any{"type": a[0], "address": a[1]})
	}
	object["status"] = map[string]any{"addresses": addresses, "images": []any{map[string]any{"names": []string{"image"}, "sizeBytes": 1}}}
	return object
}

// RoundTrip serves in memory.
func (s *apiServer) RoundTrip(r *http.Request) (*http.Response, error) {
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

// newTestCluster has a connection in memory.
func newTestCluster(t testing.TB, s *apiServer, config ClusterConfig) *Cluster {
	t.Helper()
	if config.Name == "" {
		config.Name = "one"
	}
	config.REST = &rest.Config{Host: "http://api.example.com", Transport: s}
	c, err := NewCluster(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
