package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"sigs.k8s.io/yaml"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
)

// maxManifestBytes bounds one file. kubectl prints about 400 bytes for a
// ServiceAccount.
const maxManifestBytes = 64 << 20

// ManifestsConfig configures Manifests.
type ManifestsConfig struct {
	// Files lists the files of each cluster, by the cluster's name. They hold
	// ServiceAccounts as kubectl get -o yaml prints them: a List, or documents
	// separated by ---. Other kinds are passed over.
	Files          map[string][]string
	AnnotationKeys []string // the annotations to keep
}

// Manifests is a set of ServiceAccounts from files. It is safe for concurrent
// use.
type Manifests struct {
	files   map[string][]string
	reload  sync.Mutex // one change at a time
	keys    []string
	current atomic.Pointer[accounts]
}

var _ exchange.ServiceAccounts = (*Manifests)(nil)

// accounts is immutable.
type accounts struct {
	byUID map[uidKey]account
	uids  map[nameKey]string
}

// The keys hold the cluster: two clusters may have equal names, and after a
// restore from a backup equal UIDs.
type (
	uidKey  struct{ cluster, uid string }
	nameKey struct{ cluster, namespace, name string }
)

type account struct {
	namespace, name string
	annotations     map[string]string
}

// NewManifests reads the files. The error joins all faults, each with its file
// and document.
func NewManifests(c ManifestsConfig) (*Manifests, error) {
	m := &Manifests{files: maps.Clone(c.Files), keys: slices.Clone(c.AnnotationKeys)}
	if err := m.Reload(); err != nil {
		return nil, err
	}
	return m, nil
}

// Reload reads all files again. On an error everything stays as it was.
func (m *Manifests) Reload() error {
	m.reload.Lock()
	defer m.reload.Unlock()
	return m.read(m.keys)
}

// SetAnnotationKeys changes which annotations are kept, and reads all files
// again unless the keys are the same. On an error everything stays as it was.
func (m *Manifests) SetAnnotationKeys(keys []string) error {
	m.reload.Lock()
	defer m.reload.Unlock()
	if slices.Equal(keys, m.keys) {
		return nil
	}
	if err := m.read(keys); err != nil {
		return err
	}
	m.keys = slices.Clone(keys)
	return nil
}

func (m *Manifests) read(keys []string) error {
	r := reader{keys: keys, accounts: accounts{byUID: map[uidKey]account{}, uids: map[nameKey]string{}}}
	for _, cluster := range slices.Sorted(maps.Keys(m.files)) {
		for _, name := range m.files[cluster] {
			r.readFile(cluster, name)
		}
	}
	if err := errors.Join(r.faults...); err != nil {
		return err
	}
	m.current.Store(&r.accounts)
	return nil
}

// Annotations returns the annotations of the ServiceAccount with the identity's
// cluster and UID, and nil when the files have none. A ServiceAccount of the
// same name with another UID is another one: names are reused. The error is
// always nil.
func (m *Manifests) Annotations(_ context.Context, id oidc.Identity) (map[string]string, error) {
	a, ok := m.current.Load().byUID[uidKey{id.Cluster, id.ServiceAccount.UID}]
	if !ok || a.namespace != id.Namespace || a.name != id.ServiceAccount.Name {
		return nil, nil
	}
	return a.annotations, nil
}

// UID returns the UID of a ServiceAccount by its name, or "" when the files
// have none. It is for people who ask about a name; a decision never starts
// from one.
func (m *Manifests) UID(cluster, namespace, name string) string {
	return m.current.Load().uids[nameKey{cluster, namespace, name}]
}

// object is what matters of a Kubernetes object in a file.
type object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		UID         string            `json:"uid"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Items []object `json:"items"`
}

// reader gathers accounts and faults.
type reader struct {
	keys     []string
	accounts accounts
	faults   []error
}

func (r *reader) fault(format string, args ...any) {
	r.faults = append(r.faults, fmt.Errorf(format, args...))
}

func (r *reader) readFile(cluster, name string) {
	info, err := os.Stat(name)
	if err != nil {
		r.faults = append(r.faults, err)
		return
	}
	if info.Size() > maxManifestBytes {
		r.fault("%s: has %d bytes; at most %d are read: split it", name, info.Size(), maxManifestBytes)
		return
	}
	data, err := os.ReadFile(name)
	if err != nil {
		r.faults = append(r.faults, err)
		return
	}
	r.readDocuments(cluster, name, data)
}

func (r *reader) readDocuments(cluster, name string, data []byte) {
	for i, document := range documents(data) {
		var o object
		if err := yaml.Unmarshal(document, &o); err != nil {
			r.fault("%s: document %d: is not YAML as kubectl prints it: %w", name, i+1, err)
			continue
		}
		r.add(cluster, fmt.Sprintf("%s: document %d", name, i+1), o)
	}
}

func (r *reader) add(cluster, where string, o object) {
	switch o.Kind {
	case "List", "ServiceAccountList":
		for i, item := range o.Items {
			if item.Kind == "" && o.Kind == "ServiceAccountList" {
				item.APIVersion, item.Kind = o.APIVersion, "ServiceAccount" // the API leaves it out inside a typed list
			}
			r.add(cluster, fmt.Sprintf("%s: items[%d]", where, i), item)
		}
		return
	case "ServiceAccount":
	case "":
		if o.APIVersion == "" && o.Metadata.Name == "" {
			return // an empty document
		}
		r.fault("%s: kind is missing", where)
		return
	default:
		return
	}
	switch {
	case o.APIVersion != "v1":
		r.fault("%s: apiVersion of a ServiceAccount is %q, not v1", where, o.APIVersion)
		return
	case o.Metadata.Name == "" || o.Metadata.Namespace == "":
		r.fault("%s: metadata.name or metadata.namespace of a ServiceAccount is missing", where)
		return
	case o.Metadata.UID == "":
		r.fault("%s: ServiceAccount %s/%s has no metadata.uid, and a name may be reused by another: write the file with kubectl get serviceaccounts -A -o yaml",
			where, o.Metadata.Namespace, o.Metadata.Name)
		return
	}
	byUID := uidKey{cluster, o.Metadata.UID}
	byName := nameKey{cluster, o.Metadata.Namespace, o.Metadata.Name}
	_, sameUID := r.accounts.byUID[byUID]
	_, sameName := r.accounts.uids[byName]
	if sameUID || sameName {
		r.fault("%s: ServiceAccount %s/%s or its UID stands in the files of cluster %s already: keep one", where, byName.namespace, byName.name, cluster)
		return
	}
	a := account{namespace: byName.namespace, name: byName.name}
	for _, key := range r.keys {
		if value, ok := o.Metadata.Annotations[key]; ok {
			if a.annotations == nil {
				a.annotations = map[string]string{}
			}
			a.annotations[key] = value
		}
	}
	r.accounts.byUID[byUID] = a
	r.accounts.uids[byName] = o.Metadata.UID
}

// documents splits a file at the lines that start with --- (YAML 1.2 section
// 9.1.2), as kubectl does.
func documents(data []byte) [][]byte {
	var all [][]byte
	var current []byte
	for line := range bytes.Lines(data) {
		if bytes.HasPrefix(line, []byte("---")) {
			all = append(all, current)
			current = nil
			line = line[3:] // content may follow on the same line
		}
		current = append(current, line...)
	}
	return append(all, current)
}
