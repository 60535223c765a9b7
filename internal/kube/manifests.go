package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/file"
	"github.com/pullpass/pullpass/internal/oidc"
)

// ManifestsConfig configures Manifests.
type ManifestsConfig struct {
	Files          map[string][]string // by cluster; may be empty, then no ServiceAccount is known
	AnnotationKeys []string            // no other annotation is kept
}

// Manifests are ServiceAccounts from files, as printed by "kubectl get
// serviceaccounts -A -o yaml" (or json), alone or as several YAML documents.
// Objects of other kinds are passed over. It is safe for concurrent use.
//
// What the files say is as old as the files: a ServiceAccount that was made
// since has no annotations here.
type Manifests struct {
	files   map[string][]string
	reload  sync.Mutex // one at a time
	current atomic.Pointer[accounts]
}

var _ exchange.Objects = (*Manifests)(nil)

// accounts is immutable once it is stored.
type accounts struct {
	keys  []string // of the annotations that are kept
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
	annotations     map[string]string // nil: none that is kept
}

// maxManifestBytes caps each file. 100,000 ServiceAccounts as kubectl prints
// them are about 40 MB.
const maxManifestBytes = 64 << 20

// NewManifests reads all files. An error joins everything that is wrong with
// them, each as FILE: document N: PATH: what is wrong: remedy.
func NewManifests(c ManifestsConfig) (*Manifests, error) {
	for cluster, files := range c.Files {
		if len(files) == 0 {
			return nil, fmt.Errorf("cluster %s: no manifest file is given: name one, or remove the cluster's manifestFiles", cluster)
		}
	}
	m := &Manifests{files: maps.Clone(c.Files)}
	if err := m.read(c.AnnotationKeys); err != nil {
		return nil, err
	}
	return m, nil
}

// Reload reads all files again. If anything is wrong with any of them, what was
// read last stays, and the error says what, as for NewManifests.
func (m *Manifests) Reload() error {
	m.reload.Lock()
	defer m.reload.Unlock()
	return m.read(m.current.Load().keys)
}

// SetAnnotationKeys says which annotations are kept from now on. It reads the
// files again, but not if the keys are the same. If that fails, nothing changes.
func (m *Manifests) SetAnnotationKeys(keys []string) error {
	m.reload.Lock()
	defer m.reload.Unlock()
	if slices.Equal(slices.Sorted(slices.Values(keys)), slices.Sorted(slices.Values(m.current.Load().keys))) {
		return nil
	}
	return m.read(keys)
}

// KeepsAnnotations reports whether annotations with all of these keys are kept.
func (m *Manifests) KeepsAnnotations(keys []string) bool {
	return containsAll(m.current.Load().keys, keys)
}

func (m *Manifests) read(keys []string) error {
	r := newReader(slices.Clone(keys))
	for _, cluster := range slices.Sorted(maps.Keys(m.files)) {
		r.cluster = cluster
		for _, name := range m.files[cluster] {
			data, err := readFile(name, maxManifestBytes, "split it into several files")
			if err != nil {
				r.fail(err)
				continue
			}
			r.file(name, data)
		}
	}
	if err := r.err(); err != nil {
		return err
	}
	m.current.Store(&r.accounts)
	return nil
}

// readFile reads at most limit bytes. A larger file is an error that ends with
// the remedy.
func readFile(name string, limit int64, remedy string) ([]byte, error) {
	data, err := file.Read(name, limit)
	if errors.Is(err, file.ErrTooLarge) {
		return nil, fmt.Errorf("%s: has more than %d bytes: %s", name, limit, remedy)
	}
	return data, err
}

// Lookup returns the annotations of the ServiceAccount with the identity's UID,
// and none if the files do not have it: a ServiceAccount of the same name
// that was made again is another one (ingress-nginx CVE-2021-25746 is what comes
// of believing anything else). The map must not be changed. There is no error:
// what the files said last is all that can be known.
func (m *Manifests) Lookup(_ context.Context, id oidc.Identity, _ oidc.Credential) (exchange.Facts, error) {
	found, ok := m.current.Load().byUID[uidKey{id.Cluster, id.Kubernetes.ServiceAccount.UID}]
	if !ok || found.namespace != id.Kubernetes.Namespace || found.name != id.Kubernetes.ServiceAccount.Name {
		return exchange.Facts{}, nil
	}
	return exchange.Facts{Annotations: found.annotations}, nil
}

// UID returns the UID of a ServiceAccount by its name, or "" when the files
// have none. It is for people who ask about a name; a decision never starts
// from one.
func (m *Manifests) UID(cluster, namespace, name string) string {
	return m.current.Load().uids[nameKey{cluster, namespace, name}]
}
