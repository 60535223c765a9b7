package kube

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// BenchmarkGrowth looks up the ServiceAccount, the namespace and the pod of a token, beside
// more and more of them. "make performance" draws it.
func BenchmarkGrowth(b *testing.B) {
	for _, n := range []int{100, 10_000, 150_000} {
		b.Run(fmt.Sprintf("of=service-accounts-and-pods/n=%d", n), func(b *testing.B) {
			c := newTestCluster(b, newAPIServer(), ClusterConfig{AnnotationKeys: []string{key}, PodChecks: true})
			c.accounts.Load().source = (&crowd{n, func(i int) metav1.ObjectMeta { return metadataOf(i, namespaceName(i), accountName(i)) }, true}).source()
			c.pods.source = (&crowd{n, func(i int) metav1.ObjectMeta { return metadataOf(i, namespaceName(i), podName(i)) }, true}).source()
			c.namespaces.source = (&crowd{min(n, manyNamespaces), func(i int) metav1.ObjectMeta { return metadataOf(i, "", namespaceName(i)) }, true}).source()
			go c.Run(b.Context())
			for _, r := range []*resource{c.accounts.Load().resource, c.pods, c.namespaces} {
				<-r.synced
			}
			ids := make([]oidc.Identity, 64)
			for i := range ids {
				ids[i] = identity("one", namespaceName(i), accountName(i), uuid(i))
				ids[i].Kubernetes.Pod = oidc.ObjectRef{Name: podName(i), UID: uuid(i)}
			}
			defer testkit.MeasureCPU(b)()
			for i := 0; b.Loop(); i++ {
				if _, err := c.Lookup(b.Context(), ids[i%len(ids)], nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
