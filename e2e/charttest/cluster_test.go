package charttest

import (
	"strings"
	"testing"
	"time"
)

// TestCluster runs on one cluster.
func TestCluster(t *testing.T) {
	s := startSite(t)
	defer func() { t.Logf("what was seen\n%s%s in all", s.table.String(), time.Since(s.begin).Round(time.Second)) }()
	defer func() {
		if t.Failed() {
			output, err := s.try(t, "kubectl", "describe", "pods", "--namespace="+namespace)
			t.Logf("pods of Pullpass: %v\n%s", err, output)
		}
	}()
	s.testAccepted(t)
	s.testGitOps(t)
	i := s.install(t)
	i.testFirstPull(t)
	i.testNotes(t)
	i.testProof(t)
	i.testOperations(t)
	i.testHostNetwork(t)
	i.testUninstall(t)
}

// The API server accepts each object that the chart makes, by its own rules and by the definitions that the
// operators publish. Nothing is kept.
func (s *site) testAccepted(t *testing.T) {
	kinds := map[string]bool{}
	const namespace = "--namespace=accepted"
	s.CreateNamespace(t, "accepted", nil)
	s.CreateNamespace(t, "accepted-nodes", nil) // what is not kept cannot have anything in it
	for _, set := range sets(t) {
		rendered := s.run(t, "helm", "template", set.release, chart(t), namespace, "--values="+set.values(), "--set=nodes.install.namespace=accepted-nodes")
		objects := parse(t, rendered)
		var here, elsewhere []string
		for document := range strings.SplitSeq(rendered, "\n---\n") {
			if strings.Contains(document, "\n  namespace: ") {
				elsewhere = append(elsewhere, document)
			} else {
				here = append(here, document)
			}
		}
		apply := []string{"kubectl", "apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename=-"}
		output := s.input(t, strings.Join(here, "\n---\n"), append(apply, namespace)...)
		if len(elsewhere) > 0 {
			output += s.input(t, strings.Join(elsewhere, "\n---\n"), apply...)
		}
		if accepted := strings.Count(output, " serverside-applied (server dry run)\n"); accepted != len(objects) {
			t.Errorf("%s: %d objects of %d are accepted:\n%s", set.name, accepted, len(objects), output)
		}
		for _, object := range objects {
			kinds[object.Text("kind")] = true
		}
		s.saw("accepted by the API server: "+set.name, "%d objects", len(objects))
	}
	for _, kind := range []string{"Deployment", "DaemonSet", "ValidatingAdmissionPolicy", "Job", "HorizontalPodAutoscaler", "PodDisruptionBudget", "NetworkPolicy", "Certificate", "Issuer", "ServiceMonitor", "PodMonitor", "PrometheusRule", "TLSRoute", "ExternalSecret", "Bundle"} {
		if !kinds[kind] {
			t.Errorf("no set of values has a %s", kind)
		}
	}
}
