package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/pullpass/pullpass/internal/base/file"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
)

// ManifestsConfig configures Manifests.
type ManifestsConfig struct {
	Files          map[string][]string // by cluster; if empty, no ServiceAccount is known
	AnnotationKeys []string            // no other annotation is kept
}

// Manifests are ServiceAccounts from files, as printed by "kubectl get serviceaccounts -A -o yaml"
// (or json), alone or as several YAML documents. It skips objects of other kinds. It is safe for
// concurrent use.
//
// The data is as old as the files: a ServiceAccount that was created later has no annotations here.
type Manifests struct {
	files   map[string][]string
	reload  sync.Mutex // one at a time
	current atomic.Pointer[accounts]
}

var _ exchange.Objects = (*Manifests)(nil)

// accounts is immutable after it is stored.
type accounts struct {
	keys  []string // of the annotations that are kept
	byUID map[uidKey]account
	uids  map[nameKey]string
}

// The keys contain the cluster: names can be equal in two clusters, and after a restore from a
// backup UIDs can be equal.
type (
	uidKey  struct{ cluster, uid string }
	nameKey struct{ cluster, namespace, name string }
)

type account struct {
	namespace, name string
	annotations     map[string]string // nil: it has no kept annotation
}

// maxManifestBytes limits each file. 100,000 ServiceAccounts as kubectl prints them are about 40
// MB.
const maxManifestBytes = 64 << 20

// NewManifests reads all files. An error joins all faults, each as FILE: document N: PATH: what is
// wrong: remedy.
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

// Reload reads all files again. If any file has a fault, the previous data stays, and the error is
// as for NewManifests.
func (m *Manifests) Reload() error {
	m.reload.Lock()
	defer m.reload.Unlock()
	return m.read(m.current.Load().keys)
}

// SetAnnotationKeys sets the annotations that are kept from now on. It reads the files again unless
// the keys are the same. If that fails, nothing changes.
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

// readFile reads at most limit bytes. The error for a larger file ends with the remedy.
func readFile(name string, limit int64, remedy string) ([]byte, error) {
	data, err := file.Read(name, limit)
	if errors.Is(err, file.ErrTooLarge) {
		return nil, fmt.Errorf("%s: has more than %d bytes: %s", name, limit, remedy)
	}
	return data, err
}

// Lookup returns the annotations of the ServiceAccount with the identity's UID, or none if the
// files do not have it. A recreated ServiceAccount of the same name does not count (ingress-nginx
// CVE-2021-25746 is the result of trusting a name). The map must not be changed. It returns no
// error: the last read files are all that can be known.
func (m *Manifests) Lookup(_ context.Context, id oidc.Identity, _ oidc.Credential) (exchange.Facts, error) {
	found, ok := m.current.Load().byUID[uidKey{id.Cluster, id.Kubernetes.ServiceAccount.UID}]
	if !ok || found.namespace != id.Kubernetes.Namespace || found.name != id.Kubernetes.ServiceAccount.Name {
		return exchange.Facts{}, nil
	}
	return exchange.Facts{Annotations: found.annotations}, nil
}

// UID returns the UID of a ServiceAccount by its name, or "" if the files do not have it. It is for
// people who ask about a name; a decision never starts from a name.
func (m *Manifests) UID(cluster, namespace, name string) string {
	return m.current.Load().uids[nameKey{cluster, namespace, name}]
}
