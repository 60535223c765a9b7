package tokensecrets

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/pullpass/pullpass/internal/test/kubetest"
)

// Very many ServiceAccounts that opt in at once in one namespace do not delay other namespaces.
func TestNamespacesTakeTurns(t *testing.T) {
	t.Parallel()
	queue := newQueue()
	defer queue.ShutDown()
	for i := range 1000 {
		queue.Add(fmt.Sprint("crowd/sa-", i))
	}
	queue.Add("team-a/web")
	queue.Add("team-a/web")
	queue.Add("team-b/web")
	var first []string
	for range 4 {
		key, _ := queue.Get()
		first = append(first, key)
		queue.Done(key)
	}
	if got := strings.Join(first, " "); got != "crowd/sa-0 team-a/web team-b/web crowd/sa-1" || queue.Len() != 998 {
		t.Errorf("%s have the first turns; %d wait", got, queue.Len())
	}
}

// Of objects that have opted in, only the names and UIDs are kept.
func TestLittleIsKept(t *testing.T) {
	t.Parallel()
	for name, streams := range map[string]bool{"streamed": true, "listed": false} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, r *rig) {
				r.api.Streams(streams)
				large := func(i int) kubetest.Object {
					o := object("team-a", fmt.Sprint("large-", i), fmt.Sprint("uid-large-", i), Enabled)
					o["metadata"].(kubetest.Object)["annotations"] = kubetest.Object{"a": strings.Repeat("a", 250<<10)}
					return o
				}
				for i := range 20 { // more than the size limit of a page
					r.api.Put("serviceaccounts", large(i))
				}
				r.leads(t)
				r.api.Put("serviceaccounts", large(20), large(0)) // through the watch
				r.settle()
				all := r.accounts.GetIndexer().List()
				if len(all) != 23 {
					t.Errorf("%d are known", len(all))
				}
				for _, o := range all {
					m := *o.(*metav1.PartialObjectMetadata)
					m.Name, m.Namespace, m.UID, m.ResourceVersion = "", "", "", ""
					if !reflect.DeepEqual(m, metav1.PartialObjectMetadata{}) {
						t.Fatalf("%.300v is kept", m)
					}
				}
				if _, metadata := r.secret(t, "team-a", "large-20"); metadata == nil {
					t.Error("no Secret")
				}
			})
		})
	}
}

// After a restore of etcd, a ServiceAccount that opts in gets a Secret as before.
func TestRestoredEtcd(t *testing.T) {
	t.Parallel()
	for name, streams := range map[string]bool{"streamed": true, "listed": false} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, r *rig) {
				r.api.Streams(streams)
				defer r.leads(t)()
				restore := r.api.Snapshot()
				for i := range 100 {
					r.api.Put("serviceaccounts", object("team-a", fmt.Sprint("lost-", i), "uid-lost", Enabled))
				}
				r.settle()
				r.api.Refuse(true)
				time.Sleep(time.Second)
				restore()
				r.api.Refuse(false)
				time.Sleep(time.Minute)
				r.api.Put("serviceaccounts", object("team-a", "late", "uid-late", Enabled))
				r.settle()
				if _, metadata := r.secret(t, "team-a", "late"); metadata == nil {
					t.Error("no Secret")
				}
			})
		})
	}
}

// A watch that missed a deletion reports it with a marker, which stays as it is.
func TestMarkersAreKept(t *testing.T) {
	t.Parallel()
	marker := cache.DeletedFinalStateUnknown{Key: "team-a/web", Obj: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "web"}}}
	if got, err := keep(marker); err != nil || !reflect.DeepEqual(got, marker) {
		t.Errorf("%v, error %v", got, err)
	}
	var names []string
	h := handler(func(o metav1.Object) { names = append(names, o.GetName()) })
	h.OnDelete(marker)
	h.OnDelete("text")
	if len(names) != 1 || names[0] != "web" {
		t.Errorf("%q are handled", names)
	}
}
