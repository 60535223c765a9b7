package kube

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
)

// reader gathers the ServiceAccounts from the files of one cluster, one file after the other.
type reader struct {
	accounts accounts
	cluster  string
	faults   []error
	more     int // number of faults that are not kept
}

// maxFaults is the maximum number of reported faults.
const maxFaults = 100

func newReader(keys []string) reader {
	return reader{accounts: accounts{keys: keys, byUID: map[uidKey]account{}, uids: map[nameKey]string{}}}
}

func (r *reader) fail(err error) {
	if len(r.faults) == maxFaults {
		r.more++
		return
	}
	r.faults = append(r.faults, err)
}

func (r *reader) err() error {
	if r.more > 0 {
		return errors.Join(append(r.faults, fmt.Errorf("and %d more faults", r.more))...)
	}
	return errors.Join(r.faults...)
}

// place is the position of a value: file, document and path.
type place struct{ document, path string }

func (p place) field(name string) place {
	if p.path != "" {
		name = p.path + "." + name
	}
	return place{p.document, name}
}

func (p place) String() string {
	if p.path == "" {
		return p.document
	}
	return p.document + ": " + p.path
}

func (r *reader) fault(at place, format string, args ...any) {
	r.fail(fmt.Errorf("%s: %s", at, fmt.Sprintf(format, args...)))
}

func (r *reader) file(name string, data []byte) {
	if !utf8.Valid(data) {
		r.fault(place{document: name}, "is not UTF-8: save it as UTF-8")
		return
	}
	documents := slices.Collect(strictyaml.Documents(data))
	if len(documents) == 0 {
		// kubectl leaves such a file when it fails. It must not mean that no ServiceAccount has
		// annotations.
		r.fault(place{document: name}, "is empty: write the output of kubectl get serviceaccounts -A -o yaml into it")
	}
	left := maxManifestBytes // with expanded aliases
	for i, document := range documents {
		at := place{document: name + ": document " + strconv.Itoa(i+1)}
		root, size, err := strictyaml.Parse(document, left)
		if err != nil {
			r.fault(at, "is not valid YAML: %v", err)
			continue
		}
		left -= size
		value, problems := strictyaml.Value(root)
		for _, problem := range problems {
			r.fault(at, "is not valid YAML: %s", problem)
		}
		if len(problems) > 0 {
			continue
		}
		r.object(at, value, "")
	}
}

// object reads ServiceAccounts and lists of any kind, and skips other objects. The items of a typed
// list (ServiceAccountList) do not repeat their kind.
func (r *reader) object(at place, value any, listed string) {
	object, ok := value.(map[string]any)
	if !ok {
		r.fault(at, "is not a Kubernetes object: write one as kubectl get -o yaml prints it")
		return
	}
	kind, _ := object["kind"].(string)
	version, _ := object["apiVersion"].(string)
	if kind == "" && listed != "" {
		kind, version = listed, "v1"
	}
	switch {
	case kind == "" || version == "":
		r.fault(at, "has no kind or no apiVersion: write an object as kubectl get -o yaml prints it")
	case version == "v1" && (kind == "List" || kind == "ServiceAccountList"):
		items, ok := object["items"].([]any)
		if _, has := object["items"]; !ok && has && object["items"] != nil {
			r.fault(at.field("items"), "is not a list: write it as kubectl get -o yaml prints it")
		}
		for i, item := range items {
			r.object(place{at.document, fmt.Sprintf("%s[%d]", at.field("items").path, i)}, item, strings.TrimSuffix(kind, "List"))
		}
	case version == "v1" && kind == "ServiceAccount":
		r.serviceAccount(at, object)
	}
}

func (r *reader) serviceAccount(at place, object map[string]any) {
	at = at.field("metadata")
	metadata, ok := object["metadata"].(map[string]any)
	if !ok {
		r.fault(at, "is missing or not a mapping: write it as kubectl get -o yaml prints it")
		return
	}
	before := len(r.faults) + r.more
	found := account{namespace: r.text(at, metadata, "namespace"), name: r.text(at, metadata, "name")}
	uid, _ := metadata["uid"].(string)
	if uid == "" {
		r.fault(at.field("uid"), "is missing: names are reused, so only the uid tells which ServiceAccount is meant; kubectl get -o yaml prints it")
	}
	if value, has := metadata["annotations"]; has && value != nil {
		found.annotations = r.annotations(at.field("annotations"), value)
	}
	if len(r.faults)+r.more > before {
		return
	}
	byUID, byName := uidKey{r.cluster, uid}, nameKey{r.cluster, found.namespace, found.name}
	_, sameUID := r.accounts.byUID[byUID]
	_, sameName := r.accounts.uids[byName]
	if sameUID || sameName {
		r.fault(at, "the ServiceAccount %.253q of namespace %.63q, or its uid, is in the files of cluster %s already: keep the newer one", found.name, found.namespace, r.cluster)
		return
	}
	r.accounts.byUID[byUID] = found
	r.accounts.uids[byName] = uid
}

func (r *reader) text(at place, object map[string]any, field string) string {
	text, _ := object[field].(string)
	if text == "" {
		r.fault(at.field(field), "is missing or not text: write it as kubectl get -o yaml prints it")
	}
	return text
}

// annotations keeps the annotations with the wanted keys.
func (r *reader) annotations(at place, value any) map[string]string {
	object, ok := value.(map[string]any)
	if !ok {
		r.fault(at, "is not a mapping: write it as kubectl get -o yaml prints it")
		return nil
	}
	var kept map[string]string
	for _, key := range r.accounts.keys {
		value, has := object[key]
		if !has {
			continue
		}
		text, ok := value.(string)
		if !ok {
			r.fault(at, "%s is not text: write its value in quotes", key)
			continue
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[key] = text
	}
	return kept
}
