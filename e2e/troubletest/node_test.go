package troubletest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/node"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	nodeName = "worker-17"
	podLimit = 3 * time.Minute

	// Other names of the registry, for which the kubelet is configured with a mistake.
	noProviderName    = "no-provider.example.com"    // by no plugin
	otherAudienceName = "other-audience.example.com" // by a plugin that requests a wrong audience
)

// startCluster runs a control plane, and returns how Pullpass is told of it.
func (s *site) startCluster(t *testing.T) pullpass.Cluster {
	t.Helper()
	key := certs.NewRSAKey(t)
	s.cluster = cluster.Start(t, key)
	s.cluster.StartControllers(t, key)
	access := s.cluster.ApplyRBAC(t)
	return pullpass.Cluster{
		Name: "prod-us", Issuer: s.cluster.Issuer, Audiences: []string{registryName, gatewayName},
		Discovery:  pullpass.Discovery{CAFile: s.cluster.CA.File, TokenFile: access.TokenFile},
		Kubernetes: pullpass.Kubernetes{KubeconfigFile: access.KubeconfigFile},
	}
}

// startNode runs a node with containerd 1.
func (s *site) startNode(t *testing.T) {
	t.Helper()
	// It prints what is for nodes of the only cluster of its configuration, and answers no request.
	config := s.config
	config.Clusters = config.Clusters[1:]
	printer := pullpass.Start(t, s.ca, config)
	rbac := printer.Command(t, "kubelet-config", "--registry="+registryName, "--part=rbac")
	s.cluster.Apply(t, rbac)
	s.cluster.Apply(t, strings.ReplaceAll(rbac, registryName, otherAudience))
	s.cluster.CreateNamespace(t, "team-a", nil)
	s.cluster.CreateServiceAccount(t, "team-a", "web", nil)
	hosts := map[string]string{}
	for _, name := range []string{noProviderName, otherAudienceName} {
		hosts[name] = printer.Command(t, "kubelet-config", "--registry="+name, "--part=hosts")
	}
	const plugin = "other-audience"
	s.node = node.Start(t, node.Config{
		Name: nodeName, Address: isolate.Addresses()[0], OldContainerd: true, Cluster: s.cluster, Pullpass: printer,
		Registry: registryName, CA: s.ca, Hosts: hosts, Plugins: []node.Plugin{{Name: plugin}},
		Providers: fmt.Sprintf(`- name: %s
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: [%[2]s]
  args: ["--registry=%[2]s"]
  defaultCacheDuration: "0s"
  tokenAttributes: {cacheType: Token, serviceAccountTokenAudience: %[3]s, requireServiceAccount: true}
`, plugin, otherAudienceName, otherAudience),
	})
}

// kubeletLog is what a kubelet writes that ends because a provider has no defaultCacheDuration.
func (s *site) kubeletLog(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), podLimit)
	defer cancel()
	const good, bad = "/etc/pullpass/credential-provider.yaml", "/etc/pullpass/bad.yaml"
	config := strings.ReplaceAll(testenv.ReadFile(t, s.node.Path(good)), "defaultCacheDuration:", "# defaultCacheDuration:")
	testenv.WriteFile(t, s.node.Path(bad), config)
	kubelet := s.node.Command(programs.Kubelet(t), "--config=/var/lib/kubelet/config.yaml", "--kubeconfig=/var/lib/kubelet/kubeconfig",
		"--hostname-override="+nodeName, "--node-ip="+isolate.Addresses()[0], "--root-dir="+t.TempDir(),
		"--image-credential-provider-config="+bad, "--image-credential-provider-bin-dir=/usr/local/libexec/pullpass")
	defer context.AfterFunc(ctx, func() { _ = kubelet.Process.Kill() })()
	output, _ := kubelet.CombinedOutput() // it fails
	return string(output)
}

// podImages are the images of the pod in sections where it is not team-a/web.
func podImages() map[string]string {
	return map[string]string{
		"No credential":                     noProviderName + "/team-a/web:v1",
		"The token is for another audience": otherAudienceName + "/team-a/web:v1",
		"No rule grants it":                 registryName + "/team-b/app:v1",
		"The image does not exist":          registryName + "/team-a/missing:v1",
	}
}

// describe creates the pod, and describes it until its events have what the page shows.
func (s *site) describe(t *testing.T, shown shown, image string) (output string) {
	t.Helper()
	pod := s.cluster.Create(t, "/api/v1/namespaces/team-a/pods", cluster.Object{
		"metadata": cluster.Object{"name": "web"},
		"spec": cluster.Object{
			"nodeName": nodeName, "serviceAccountName": "web", "hostNetwork": true, "terminationGracePeriodSeconds": 0,
			"containers": []cluster.Object{{"name": "web", "image": image, "imagePullPolicy": "Always"}},
		},
	})
	defer func() {
		s.cluster.Delete(t, cluster.PodPath(pod))
		testenv.Await(t, podLimit, "the pod is gone", func() bool {
			_, err := s.cluster.Try(t.Context(), "GET", cluster.PodPath(pod), nil)
			return err != nil
		})
	}()
	testenv.Poll(podLimit, func() bool {
		output = s.run(t, shown.command)
		return strings.Contains(output, "Failed to pull image") && shown.missing(output) == ""
	})
	return output
}
