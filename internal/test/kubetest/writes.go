package kubetest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// selector says which objects a list or watch wants: of selectors, k=v is known.
type selector struct{ namespace, field, label string }

func newSelector(r *http.Request) selector {
	query := r.URL.Query()
	namespace := ""
	if _, rest, ok := strings.Cut(r.URL.Path, "/namespaces/"); ok {
		namespace, _, _ = strings.Cut(rest, "/")
	}
	return selector{namespace, query.Get("fieldSelector"), query.Get("labelSelector")}
}

func (s selector) matches(o Object) bool {
	if s.namespace != "" && metadata(o)["namespace"] != s.namespace {
		return false
	}
	for term := range strings.SplitSeq(s.field, ",") {
		path, value, ok := strings.Cut(term, "=")
		if !ok {
			continue
		}
		var field any = o
		for name := range strings.SplitSeq(path, ".") {
			fields, _ := field.(Object)
			field = fields[name]
		}
		if field != value {
			return false
		}
	}
	labels, _ := metadata(o)["labels"].(Object)
	for term := range strings.SplitSeq(s.label, ",") {
		if key, value, ok := strings.Cut(term, "="); ok && labels[key] != value {
			return false
		}
	}
	return true
}

// sees is a change as a watch sees it: what is not selected any more is gone.
func (s selector) sees(c change) (change, bool) {
	if c.event == "BOOKMARK" || s.matches(c.object) {
		return c, true
	}
	if c.event == "MODIFIED" {
		c.event = "DELETED"
		return c, true
	}
	return c, false
}

// generated counts the specs of objects whose status is a subresource.
func generated(resource, event string, old, o Object) Object {
	if resource != "accesspolicies" && resource != "repositoryaccesses" {
		return o
	}
	generation := 1
	if event == "MODIFIED" {
		generation = metadata(old)["generation"].(int)
		if !reflect.DeepEqual(old["spec"], o["spec"]) {
			generation++
		}
	}
	o = maps.Clone(o)
	o["metadata"] = maps.Clone(metadata(o))
	metadata(o)["generation"] = generation
	return o
}

// write creates, patches and replaces objects, and issues tokens.
func (s *Server) write(w http.ResponseWriter, r *http.Request, verb, resource, namespace, name string) {
	var sent Object
	_ = json.NewDecoder(r.Body).Decode(&sent)
	if resource == "serviceaccounts/token" {
		s.issue(w, sent, namespace, name)
		return
	}
	resource, ofStatus := strings.CutSuffix(resource, "/status")
	// Hold the lock from read to write, so that no other write comes in between.
	s.writing.Lock()
	defer s.writing.Unlock()
	if verb == "create" {
		name, _ = sent["metadata"].(Object)["name"].(string)
	}
	s.mu.Lock()
	old, there := s.objects[resource][namespace+"/"+name]
	s.mu.Unlock()
	status := func(code int, reason string) {
		answerJSON(w, code, Object{
			"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
			"message": fmt.Sprintf("%s %q: %s", resource, name, reason), "details": Object{"name": name, "kind": resource},
		})
	}
	switch {
	case verb == "create" && there:
		status(http.StatusConflict, "AlreadyExists")
		return
	case verb == "create":
		sent["metadata"].(Object)["namespace"] = namespace
		sent["metadata"].(Object)["uid"] = "uid-" + strconv.Itoa(s.next())
	case verb == "put" && there:
		wants := sent["metadata"].(Object)
		for _, field := range []string{"uid", "resourceVersion"} {
			if value, ok := wants[field]; ok && value != metadata(old)[field] {
				status(http.StatusConflict, "Conflict")
				return
			}
		}
		for _, field := range []string{"uid", "resourceVersion", "deletionTimestamp"} {
			if value, ok := metadata(old)[field]; ok {
				wants[field] = value
			}
		}
	case r.Header.Get("Content-Type") == "application/apply-patch+yaml":
		if !there || sent["metadata"].(Object)["uid"] != metadata(old)["uid"] {
			status(http.StatusConflict, "Conflict") // as with a UID of none
			return
		}
		sent["metadata"].(Object)["namespace"] = namespace
		if ofStatus { // nothing else is changed
			status := sent["status"]
			sent = maps.Clone(old)
			sent["status"] = status
		}
	case !there:
		status(http.StatusNotFound, "NotFound")
		return
	default:
		is := metadata(old)
		wants, _ := sent["metadata"].(Object)
		for _, field := range []string{"uid", "resourceVersion"} {
			if value, ok := wants[field]; ok && value != is[field] {
				status(http.StatusConflict, "Conflict")
				return
			}
		}
		sent = merge(old, sent).(Object)
	}
	if r.URL.Query().Get("dryRun") == "" {
		s.Put(resource, sent)
		sent = s.Object(resource, namespace, name) // with its resourceVersion
	}
	code := http.StatusOK
	if verb == "create" {
		code = http.StatusCreated
	}
	answerJSON(w, code, encode(sent, resource, r))
}

// Merge changes an object by a merge patch (RFC 7396), as others do that write it.
func (s *Server) Merge(resource, namespace, name string, change Object) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if o := s.Object(resource, namespace, name); o != nil {
		s.Put(resource, merge(o, change).(Object))
	}
}

// merge is a merge patch (RFC 7396). It changes neither of the two.
func merge(old, patch any) any {
	changes, ok := patch.(Object)
	if !ok {
		return patch
	}
	was, _ := old.(Object)
	merged := maps.Clone(was)
	if merged == nil {
		merged = Object{}
	}
	for key, value := range changes {
		if value == nil {
			delete(merged, key)
			continue
		}
		merged[key] = merge(merged[key], value)
	}
	return merged
}

// Write answers a request about a Secret, for what was given to Fail.
func (s *Server) Write(w http.ResponseWriter, r *http.Request) {
	parts := append(strings.Split(strings.Trim(r.URL.Path, "/"), "/"), "") // api/v1/namespaces/NAMESPACE/secrets[/NAME]
	verb := strings.ToLower(r.Method)
	if r.Method == http.MethodPost {
		verb = "create"
	}
	s.write(w, r, verb, "secrets", parts[3], parts[5])
}

func (s *Server) next() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revision++
	return s.revision
}

// KeyID is the key of the tokens that are issued from now on.
func (s *Server) KeyID(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keyID = id
}

// issue answers a TokenRequest for a Secret, with an unsigned token.
func (s *Server) issue(w http.ResponseWriter, sent Object, namespace, name string) {
	spec, _ := sent["spec"].(Object)
	bound, _ := spec["boundObjectRef"].(Object)
	uid, _ := sent["metadata"].(Object)["uid"].(string)
	s.mu.Lock()
	account, ok := s.objects["serviceaccounts"][namespace+"/"+name]
	secret, there := s.objects["secrets"][namespace+"/"+fmt.Sprint(bound["name"])]
	keyID := s.keyID
	s.mu.Unlock()
	switch {
	case !ok || !there:
		Status(http.StatusNotFound, "NotFound", "not found")(w, nil)
		return
	case uid != "" && uid != metadata(account)["uid"], metadata(secret)["uid"] != bound["uid"]:
		Status(http.StatusConflict, "Conflict", "the UID does not match")(w, nil)
		return
	}
	now := time.Now().Unix()
	part := func(o Object) string {
		text, _ := json.Marshal(o)
		return base64.RawURLEncoding.EncodeToString(text)
	}
	seconds, _ := spec["expirationSeconds"].(float64)
	token := part(Object{"alg": "RS256", "kid": keyID}) + "." + part(Object{
		"aud": spec["audiences"], "iat": now, "exp": now + int64(seconds), "jti": strconv.Itoa(s.next()),
		"sub": "system:serviceaccount:" + namespace + ":" + name,
		"kubernetes.io": Object{"namespace": namespace, "serviceaccount": Object{"name": name, "uid": metadata(account)["uid"]},
			"secret": Object{"name": bound["name"], "uid": bound["uid"]}},
	}) + ".c2ln"
	answer := maps.Clone(sent)
	answer["kind"], answer["apiVersion"] = "TokenRequest", "authentication.k8s.io/v1"
	answer["status"] = Object{"token": token, "expirationTimestamp": time.Unix(now+int64(seconds), 0).UTC().Format(time.RFC3339)}
	answerJSON(w, http.StatusCreated, answer)
}

// Objects returns copies of all objects of a resource, sorted by namespace and name.
func (s *Server) Objects(resource string) []Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Object
	for _, key := range slices.Sorted(maps.Keys(s.objects[resource])) {
		all = append(all, maps.Clone(s.objects[resource][key]))
	}
	return all
}

// Object returns a copy of an object, or nil.
func (s *Server) Object(resource, namespace, name string) Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.objects[resource][namespace+"/"+name])
}
