package charttest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

var update = flag.Bool("update", false, "write testdata/golden")

// TestGolden compares what the chart makes of each set of values with what it made before.
func TestGolden(t *testing.T) {
	for _, s := range sets(t) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			got := withoutFiles(t, s.template(t))
			file := "testdata/golden/" + s.name + ".yaml"
			if *update {
				testenv.Must(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			if got != testenv.ReadFile(t, file) {
				t.Errorf("%s is different; see it with git diff after: go test ./charttest -run=TestGolden -update", file)
			}
			output := testenv.Value(helm(t, "lint", "--strict", chart(t), "--values="+s.values()))(t)
			if strings.Contains(output, "[WARNING]") {
				t.Error(output)
			}
		})
	}
}

// withoutFiles leaves out the files that the chart copies unchanged: a new alert does not change the chart.
func withoutFiles(t *testing.T, rendered string) string {
	t.Helper()
	for name, indent := range map[string]string{"alerts.yaml": "  ", "dashboard.json": "    ", "crds.yaml": ""} {
		text := indent + strings.ReplaceAll(testenv.ReadFile(t, filepath.Join(chart(t), "files", name)), "\n", "\n"+indent)
		rendered = strings.Replace(rendered, text, indent+"# files/"+name, 1)
	}
	return rendered
}

// The chart says what the administrator has to do next.
func TestNotes(t *testing.T) {
	for _, s := range sets(t) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			output := testenv.Value(helm(t, "install", "--dry-run=client", s.release, chart(t), "--namespace="+s.namespace, "--values="+s.values()))(t)
			_, notes, _ := strings.Cut(output, "\nNOTES:\n")
			file := "testdata/golden/" + s.name + ".txt"
			if *update {
				testenv.Must(t, os.WriteFile(file, []byte(notes), 0o644))
				return
			}
			if notes != testenv.ReadFile(t, file) {
				t.Errorf("%s is different; see it with git diff after: go test ./charttest -run=TestNotes -update", file)
			}
		})
	}
}

const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// Mistakes are refused by name when Helm reads the values, before anything is changed.
func TestMistakes(t *testing.T) {
	for _, c := range []struct{ name, values, want string }{
		{"nothing is said", "", "'/image/repository': minLength: got 0, want 1"},
		{"neither cluster nor identity", "config: {clusters: []}", "'/config/clusters': minItems: got 0, want 1"},
		{"identities that are none", "config: {clusters: [], identities: []}", "'/config/identities': minItems: got 0, want 1"},
		{"no registry", "config: {registries: []}", "'/config/registries': minItems: got 0, want 1"},
		{"mistyped value", "replica: 3", "additional properties 'replica' not allowed"},
		{"mistyped value further down", "serving: {secret: a}", "'/serving': additional properties 'secret' not allowed"},
		{"mistyped field of the configuration", "config: {cluster: []}", "'/config': additional properties 'cluster' not allowed"},
		{"mistyped field of the policy", "policy: {rule: []}", "'/policy': additional properties 'rule' not allowed"},
		{"digest in the repository", "image: {repository: a@sha256:0}", "'/image/repository': 'not' failed"},
		{"digest without its algorithm", "image: {digest: 0123}", "'/image/digest'"},
		{"tag that is a number", "image: {tag: 1.0}", "'/image/tag': got number, want string"},
		{"key among the files", "files: {tls.key: '-----BEGIN PRIVATE KEY-----'}", "'/files/tls.key': 'not' failed"},
		{"file with the name of the configuration", "files: {pullpass.yaml: a}", "invalid propertyName 'pullpass.yaml'"},
		{"file in a directory", "files: {a/b: c}", "invalid propertyName 'a/b'"},
		{"Secret with a path", "secrets: [../a]", "'/secrets/0'"},
		{"cert-manager without issuer", "serving: {certManager: {enabled: true, dnsNames: [a.example.com]}}", "'/serving/certManager/issuerRef': missing property 'name'"},
		{"cert-manager without names", "serving: {certManager: {enabled: true, issuerRef: {name: a}}}", "'/serving/certManager/dnsNames': minItems: got 0, want 1"},
		{"kind of Service", "service: {type: Loadbalancer}", "'/service/type': value must be one of 'ClusterIP', 'NodePort', 'LoadBalancer'"},
		{"node port of a ClusterIP", "service: {nodePort: 30443}", "'/service/nodePort': value must be 0"},
		{"traffic policy of a ClusterIP", "service: {externalTrafficPolicy: Local}", "'/service/externalTrafficPolicy': value must be 'Cluster'"},
		{"port that needs root", "ports: {public: 443}", "'/ports/public': minimum: got 443, want 1,024"},
		{"no replica", "replicas: 0", "'/replicas': minimum: got 0, want 1"},
		{"variable that is a number", "env: [{name: GOGC, value: 200}]", "'/env/0/value': got number, want string"},
		{"delay with a unit", "shutdownDelay: 10s", "'/shutdownDelay': got string, want integer"},

		{"kind of the configuration", "config: {kind: ProxyConfiguration}", "config.kind: the chart sets it; remove it"},
		{"version of the configuration", "config: {apiVersion: a}", "config.apiVersion: the chart sets it; remove it"},
		{"policy files", "config: {policyFiles: [a]}", "config.policyFiles: the chart sets it; use policy"},
		{"audit file", "config: {audit: {file: a}}", "config.audit: a pod keeps no files; the audit log is its standard output"},
		{"address", "config: {server: {address: ':443'}}", "config.server.address: the chart sets it; use ports.public"},
		{"delay in the configuration", "config: {server: {shutdownDelay: 1s}}", "config.server.shutdownDelay: the chart sets it; use shutdownDelay"},
		{"certificate", "config: {server: {tls: {certFile: a}}}", "config.server.tls.certFile: the chart sets it; use serving"},
		{"key", "config: {server: {tls: {keyFile: a}}}", "config.server.tls.keyFile: the chart sets it; use serving"},
		{"admin address", "config: {admin: {address: ':9090'}}", "config.admin.address: the chart sets it; use ports.admin"},
		{"gateway's address", "config: {gateway: {url: 'https://a', service: a, address: ':443'}}", "config.gateway.address: the chart sets it; use ports.gateway"},
		{"gateway's certificate", "config: {gateway: {url: 'https://a', service: a, tls: {certFile: a}}}", "config.gateway.tls: the chart sets it; use gateway.serving"},
		{"gateway without an address for clients", "config: {gateway: {service: a}}", "'/config/gateway': missing property 'url'"},
		{"cert-manager without issuer for the gateway", "gateway: {serving: {certManager: {enabled: true}}}", "gateway.serving.certManager.issuerRef: is missing"},
		{"key set for the gateway with keys that change by themselves",
			"{config: {registries: [{service: b}, {service: a, signing: {trust: jwks}}], gateway: {url: 'https://a', service: a}}, signing: {certManager: {enabled: true}}}",
			"signing.certManager: a has trust jwks"},
		{"one key for the gateway and others", "{config: {registries: [{service: b}, {service: a}], gateway: {url: 'https://a', service: a}}, signing: {secretName: k}, gateway: {signing: {secretName: k}}}",
			"gateway.signing.secretName: k is that of signing as well"},
		{"every audience", "kubeletAudiences: ['*']", "'/kubeletAudiences/0'"},
		{"every audience of a cluster", "config: {clusters: [{name: a, issuer: 'https://a', audiences: ['*'], kubernetes: {inCluster: true}}]}", "the audience * would let kubelets request tokens for every audience"},
		{"node port of the gateway's ClusterIP", "gateway: {service: {nodePort: 30443}}", "'/gateway/service/nodePort': value must be 0"},
		{"assertions with keys of their own making", "config: {assertions: {issuer: 'https://a'}}", "config.assertions.keyFile: is missing; a pod keeps no keys"},
		{"managed keys", "config: {registries: [{service: a, signing: {managedDir: b}}]}", "config.registries: signing.managedDir of a: a pod keeps no keys; use signing"},
		{"certificates of two origins", "{certificates: {create: true, names: [a]}, signing: {certManager: {enabled: true}}}", "certificates.create: signing has a certificate from elsewhere"},
		{"certificates without a name", "certificates: {create: true}", "certificates.names: is empty"},
		{"name that is none", "certificates: {names: ['a,b']}", "'/certificates/names/0'"},
		{"key set with keys that are made", "{config: {registries: [{service: a, signing: {trust: jwks}}]}, certificates: {create: true, names: [a]}}",
			"certificates.create: a has trust jwks"},
		{"key sets with keys that change by themselves", "{config: {registries: [{service: a, signing: {trust: jwks}}]}, signing: {certManager: {enabled: true}}}",
			"signing.certManager: a has trust jwks, and would not know the keys that cert-manager makes"},
		{"one key for two algorithms", "{config: {registries: [{service: a}, {service: b, signing: {algorithm: RS256}}]}, signing: {certManager: {enabled: true}}}",
			"config.registries have several algorithms (ES256, RS256)"},
		{"NetworkPolicy without effect", "hostNetwork: true", "networkPolicy.enabled: has no effect on pods in the nodes' network"},
		{"Prometheus is kept out", "monitoring: {serviceMonitor: {enabled: true}}", "networkPolicy.metricsFrom: is empty, and Prometheus could not read metrics"},
		{"external Secret of no store", "serving: {externalSecret: {enabled: true, certificate: {key: a}, key: {key: b}}}", "'/serving/externalSecret/secretStoreRef': missing property 'name'"},
		{"external Secret without a key", "gateway: {signing: {externalSecret: {enabled: true, secretStoreRef: {name: a}, certificate: {key: a}}}}", "'/gateway/signing/externalSecret/key': missing property 'key'"},
		{"Secret with two owners", "signing: {certManager: {enabled: true}, externalSecret: {enabled: true, secretStoreRef: {name: a}, certificate: {key: a}, key: {key: b}}}",
			"signing.externalSecret.enabled: certManager creates the same Secret"},
		{"bundle of no CA", "signing: {trustBundle: {enabled: true}}", "signing.trustBundle.caFile: is empty"},
		{"bundle of a CA that is not there", "signing: {trustBundle: {enabled: true, caFile: a.crt}}", "signing.trustBundle.caFile: a.crt is not in files"},
		{"route of no Gateway", "service: {tlsRoute: {enabled: true, hostnames: [a.example.com]}}", "'/service/tlsRoute/parentRefs': minItems: got 0, want 1"},
		{"route of an address", "service: {tlsRoute: {enabled: true, parentRefs: [{name: a}], hostnames: ['[::1]']}}", "'/service/tlsRoute/hostnames/0'"},
		{"route of no name", "service: {tlsRoute: {enabled: true, parentRefs: [{name: a}]}}", "service.tlsRoute.hostnames: is empty; name the hosts of the certificate"},
		{"route to no gateway", "gateway: {service: {tlsRoute: {enabled: true, parentRefs: [{name: a}]}}}", "gateway.service.tlsRoute.enabled: there is no config.gateway"},
		{"PodMonitor is kept out", "monitoring: {podMonitor: {enabled: true}}", "networkPolicy.metricsFrom: is empty, and Prometheus could not read metrics"},
		{"metrics that are read twice", "monitoring: {serviceMonitor: {enabled: true}, podMonitor: {enabled: true}}", "monitoring.podMonitor.enabled: monitoring.serviceMonitor is enabled, too"},
		{"unknown platform", "nodes: {install: {profile: talos}}", "'/nodes/install/profile': value must be one of"},
		{"installer in the namespace of others", "nodes: {install: {namespace: kube-system}}", "'/nodes/install/namespace': 'not' failed"},
		{"installer by a tag", "nodes: {install: {enabled: true, registry: a}}", "image.digest: is missing; nodes.install runs the image as root on every node"},
		{"installer for nothing", "{image: {digest: " + digest + "}, nodes: {install: {enabled: true}}}", "nodes.install: needs one of registry and mirrors"},
		{"installer for a registry and for mirrors", "{image: {digest: " + digest + "}, nodes: {install: {enabled: true, registry: a, mirrors: [b]}}}", "nodes.install: needs one of registry and mirrors"},
		{"taint without a pull", "{image: {digest: " + digest + "}, nodes: {install: {enabled: true, registry: a, taint: true}}}", "nodes.install.probe.image: is missing"},
		{"CA for containerd that is not there", "{image: {digest: " + digest + "}, nodes: {install: {enabled: true, registry: a, caFile: a.crt}}}", "nodes.install.caFile: a.crt is not in files"},
		{"installer for a cluster that is not there", "{image: {digest: " + digest + "}, nodes: {install: {enabled: true, registry: a, cluster: prod-us}}}", "nodes.install.cluster: prod-us is not in config.clusters; write one of their names (prod-eu)"},
		{"installer for a service that is not there", "{image: {digest: " + digest + "}, nodes: {install: {enabled: true, registry: a, service: a}}}", "nodes.install.service: a is not in config.registries; write one of their services (registry.example.com)"},
		{"installer for a registry behind the gateway", "{image: {digest: " + digest + "}, config: {upstreams: [{name: ghcr.io}]}, nodes: {install: {enabled: true, registry: ghcr.io}}}", "nodes.install.registry: ghcr.io is in config.upstreams"},
		{"installer for a mirror that is not there", "{image: {digest: " + digest + "}, config: {gateway: {url: 'https://a', service: a}}, nodes: {install: {enabled: true, mirrors: [ghcr.io]}}}", "nodes.install.mirrors: ghcr.io is not in config.upstreams"},
		{"installer for a mirror without a gateway", "{image: {digest: " + digest + "}, config: {upstreams: [{name: ghcr.io}]}, nodes: {install: {enabled: true, mirrors: [ghcr.io]}}}", "nodes.install.mirrors: ghcr.io is not in config.upstreams, beside a config.gateway"},
		{"pull secrets that no cluster accepts", "pullSecrets: {enabled: true}", "pullSecrets.enabled: no cluster of config.clusters with kubernetes.inCluster has pullSecrets.audience"},
		{"audience that changes the policy", "{pullSecrets: {enabled: true}, config: {clusters: [{kubernetes: {inCluster: true}, pullSecrets: {audience: \"a'] || true || ['\"}}]}}",
			"pullSecrets.audience \"a'] || true || ['\" has a quotation mark, a backslash or a space"},
		{"registry with a path", "pullSecrets: {registries: [a/b]}", "'/pullSecrets/registries/0'"},
		{"affinity that Kubernetes does not have", "service: {sessionAffinity: ClientIp}", "'/service/sessionAffinity': value must be one of 'None', 'ClientIP'"},
		{"time of no affinity", "service: {sessionAffinityTimeout: 600}", "'/service/sessionAffinityTimeout': value must be 0"},
		{"affinity of more than a day", "service: {sessionAffinity: ClientIP, sessionAffinityTimeout: 86401}", "'/service/sessionAffinityTimeout': maximum: got 86,401, want 86,400"},
		{"dual stack by another name", "service: {ipFamilyPolicy: DualStack}", "'/service/ipFamilyPolicy': value must be one of"},
		{"two families on a single stack", "service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4, IPv6]}", "'/service/ipFamilies': maxItems: got 2, want 1"},
		{"family in lower case", "service: {ipFamilies: [ipv6]}", "'/service/ipFamilies/0': value must be one of 'IPv4', 'IPv6'"},
		{"class of no load balancer", "service: {type: NodePort, loadBalancerClass: a}", "'/service/loadBalancerClass': value must be ''"},
		{"source ranges of no load balancer", "service: {loadBalancerSourceRanges: [10.0.0.0/8]}", "'/service/loadBalancerSourceRanges': maxItems: got 1, want 0"},
		{"source that is not a range", "service: {type: LoadBalancer, loadBalancerSourceRanges: [10.0.0.1]}", "'/service/loadBalancerSourceRanges/0'"},
		{"source ranges of the gateway's ClusterIP", "gateway: {service: {loadBalancerSourceRanges: [10.0.0.0/8]}}", "'/gateway/service/loadBalancerSourceRanges': maxItems: got 1, want 0"},
		{"annotation that is a number", "podAnnotations: {a: 1}", "'/podAnnotations/a': got number, want string"},
		{"annotation of the chart", "podAnnotations: {checksum/redis: a}", "invalid propertyName 'checksum/redis'"},
		{"label by which Services find pods", "podLabels: {app.kubernetes.io/name: a}", "invalid propertyName 'app.kubernetes.io/name'"},
		{"volume of the chart", "extraVolumes: [{name: signing, emptyDir: {}}]", "'/extraVolumes/0/name': 'not' failed"},
		{"mount of no volume", "extraVolumeMounts: [{name: a, mountPath: /a}]", "extraVolumeMounts[0].name: a is not in extraVolumes"},
		{"mount of a volume of the chart", "{extraVolumes: [{name: a, emptyDir: {}}], extraVolumeMounts: [{name: signing, mountPath: /a}]}", "extraVolumeMounts[0].name: signing is not in extraVolumes"},
		{"mount over the configuration", "{extraVolumes: [{name: a, emptyDir: {}}], extraVolumeMounts: [{name: a, mountPath: /etc//pullpass/config/}]}", "extraVolumeMounts[0].mountPath: /etc//pullpass/config/ is in /etc/pullpass"},
		{"mount over all of the chart's", "{extraVolumes: [{name: a, emptyDir: {}}], extraVolumeMounts: [{name: a, mountPath: /etc/pullpass}]}", "extraVolumeMounts[0].mountPath: /etc/pullpass is in /etc/pullpass"},
		{"mount over the account", "{extraVolumes: [{name: a, emptyDir: {}}], extraVolumeMounts: [{name: a, mountPath: /var/run/secrets/kubernetes.io/serviceaccount/token}]}", "extraVolumeMounts[0].mountPath: /var/run/secrets/kubernetes.io/serviceaccount/token is in /var/run/secrets/kubernetes.io/serviceaccount, which the chart fills"},
		{"name in capitals", "nameOverride: Tokens", "'/nameOverride'"},
		{"name of the chart's other pods", "nameOverride: pullpass-pull-secrets", "'/nameOverride'"},
		{"name that leaves no place for a suffix", "fullnameOverride: a-name-of-more-than-forty-characters-is-too", "'/fullnameOverride'"},
		{"name of the controller", "{fullnameOverride: pullpass-pull-secrets, pullSecrets: {enabled: true}, config: {clusters: [{kubernetes: {inCluster: true}, pullSecrets: {audience: a}}]}}",
			"fullnameOverride: pullpass-pull-secrets is the name of the pull secrets controller"},
		{"test without a token", "{config: {clusters: [{name: a, audiences: [b]}]}, test: {enabled: true}}", "test.enabled: no cluster of config.clusters with kubernetes.inCluster has audiences"},
		{"test that is not a node", "{config: {clusters: [{name: a, audiences: [b], kubernetes: {inCluster: true}, node: {proof: {mode: enforce}}}]}, test: {enabled: true}}", "test.enabled: a has node.proof.mode enforce"},
		{"label of a selector", "commonLabels: {app.kubernetes.io/instance: a}", "invalid propertyName 'app.kubernetes.io/instance'"},
		{"label with a meaning", "commonLabels: {pod-security.kubernetes.io/enforce: privileged}", "invalid propertyName 'pod-security.kubernetes.io/enforce'"},
		{"label that Kubernetes refuses", "commonLabels: {team: a b}", "'/commonLabels/team'"},
		{"label that is said twice", "{commonLabels: {team: a}, podLabels: {team: b}}", "commonLabels: team is in podLabels, too"},
		{"metric with a blank", "autoscaling: {requests: {metric: 'a b'}}", "'/autoscaling/requests/metric'"},
		{"metric of no kind", "autoscaling: {requests: {type: Object}}", "'/autoscaling/requests/type': value must be one of 'Pods', 'External'"},
		{"fewer at most than at least", "{replicas: 3, autoscaling: {enabled: true, maxReplicas: 2}}", "autoscaling.maxReplicas: is less than replicas"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			args := []string{"template", "pullpass", chart(t)}
			if c.values != "" {
				file := filepath.Join(t.TempDir(), "values.yaml")
				testenv.WriteFile(t, file, c.values)
				args = append(args, "--values=testdata/values/default.yaml", "--values="+file)
			}
			if _, err := helm(t, args...); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// Clients look for the address in a URL among the addresses of a certificate.
func TestCertificatesOfAddresses(t *testing.T) {
	t.Parallel()
	const serving, own = "serving: {certManager: {dnsNames: [pullpass.example.com, 192.0.2.1]}}\n", "gateway: {serving: {certManager: {enabled: true}}}\n"
	for _, c := range []struct {
		values, certificate string
		names, addresses    []string
	}{
		{serving + "config: {gateway: {url: 'https://192.0.2.2:5000'}}", "pullpass-serving", []string{"pullpass.example.com"}, []string{"192.0.2.1", "192.0.2.2"}},
		{serving + own + "config: {gateway: {url: 'https://192.0.2.2'}}", "pullpass-serving", []string{"pullpass.example.com"}, []string{"192.0.2.1"}},
		{own + "config: {gateway: {url: 'https://192.0.2.2'}}", "pullpass-gateway-serving", nil, []string{"192.0.2.2"}},
		{own + "config: {gateway: {url: 'https://[2001:db8::1]:5000'}}", "pullpass-gateway-serving", nil, []string{"2001:db8::1"}},
		{own + "config: {gateway: {url: 'https://7.example.com'}}", "pullpass-gateway-serving", []string{"7.example.com"}, nil},
	} {
		file := filepath.Join(t.TempDir(), "values.yaml")
		testenv.WriteFile(t, file, c.values)
		output := testenv.Value(helm(t, "template", "pullpass", chart(t), "--values=testdata/values/gateway.yaml", "--values="+file))(t)
		spec, _ := parse(t, output).named("Certificate", c.certificate)["spec"].(map[string]any)
		if names, addresses := texts(spec["dnsNames"]), texts(spec["ipAddresses"]); !slices.Equal(names, c.names) || !slices.Equal(addresses, c.addresses) {
			t.Errorf("%s\n%s has the names %q and the addresses %q", c.values, c.certificate, names, addresses)
		}
	}
}

// Objects have the release's name, or the one that the administrator chooses. The Services, the PodDisruptionBudget and the
// NetworkPolicy find the pods by any name.
func TestNames(t *testing.T) {
	const long = "a-release-whose-name-has-fifty-characters-in-helm"
	for _, c := range []struct{ release, values, name, label string }{
		{"pullpass", "", "pullpass", "pullpass"},
		{"eu", "", "eu-pullpass", "pullpass"},
		{"eu", "nameOverride=tokens", "eu-tokens", "tokens"},
		{"tokens-eu", "nameOverride=tokens", "tokens-eu", "tokens"},
		{"eu", "fullnameOverride=registry", "registry", "pullpass"},
		{"eu", "nameOverride=tokens,fullnameOverride=registry", "registry", "tokens"},
		{long, "", "a-release-whose-name-has-fifty-pullpass", "pullpass"},
		{long, "nameOverride=twenty-characters-is", "a-release-whose-nam-twenty-characters-is", "twenty-characters-is"},
	} {
		t.Run(c.release+" "+c.values, func(t *testing.T) {
			t.Parallel()
			output := testenv.Value(helm(t, "template", c.release, chart(t), "--values=testdata/values/gateway.yaml", "--set="+c.values))(t)
			rendered := parse(t, output)
			pods, _ := rendered.named("Deployment", c.name)["spec"].(map[string]any)["template"].(map[string]any)["metadata"].(map[string]any)["labels"].(map[string]any)
			if pods["app.kubernetes.io/name"] != c.label || pods["app.kubernetes.io/instance"] != c.release {
				t.Errorf("the pods have the labels %v", pods)
			}
			selectors := map[string]any{}
			for _, object := range rendered {
				spec, _ := object["spec"].(map[string]any)
				switch object.Text("kind") {
				case "Service":
					selectors["Service "+object.Name()] = spec["selector"]
				case "PodDisruptionBudget":
					selectors["PodDisruptionBudget "+object.Name()] = spec["selector"].(map[string]any)["matchLabels"]
				case "NetworkPolicy":
					selectors["NetworkPolicy "+object.Name()] = spec["podSelector"].(map[string]any)["matchLabels"]
				}
			}
			for _, want := range []string{"Service " + c.name, "Service " + c.name + "-gateway", "Service " + c.name + "-metrics", "PodDisruptionBudget " + c.name, "NetworkPolicy " + c.name} {
				selector, _ := selectors[want].(map[string]any)
				if len(selector) == 0 {
					t.Errorf("no selector of %s", want)
				}
				for label, value := range selector {
					if pods[label] != value {
						t.Errorf("%s selects %s=%v, and pods have %v", want, label, value, pods[label])
					}
				}
			}
		})
	}
}

// No two releases of a cluster share a cluster-scoped object, or one in a namespace that is not theirs. Exceptions are those of which
// a cluster has one set, and values leave them out: CustomResourceDefinitions, pullSecrets, and the namespace of nodes.install.
func TestReleases(t *testing.T) {
	scoped := []string{"ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "Namespace", "Bundle", "CustomResourceDefinition"}
	namespaced := []string{"ConfigMap", "Secret", "CronJob", "Deployment", "DaemonSet", "Service", "ServiceAccount", "Job", "Role", "RoleBinding", "NetworkPolicy", "PodDisruptionBudget", "HorizontalPodAutoscaler",
		"Certificate", "Issuer", "ServiceMonitor", "PodMonitor", "PrometheusRule", "TLSRoute", "ExternalSecret"}
	for _, s := range sets(t) {
		if s.name == pullSecretsSet {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			owners := map[string]string{}
			// With hyphens alone, the second and third releases would have the same prefix.
			for i, release := range []struct{ namespace, name, more string }{
				{"team", "pullpass", "crds.install=true"}, {"team", "a-pullpass", "crds.install=false"}, {"team-a", "pullpass", "crds.install=false"}, {"team-a", "eu", "crds.install=false"},
			} {
				more := fmt.Sprintf("%s,nodes.install.namespace=nodes-%d", release.more, i)
				if s.name == "site" { // which names its objects itself
					more += ",fullnameOverride="
				}
				output := testenv.Value(helm(t, "template", release.name, chart(t), "--namespace="+release.namespace, "--values="+s.values(), "--set="+more))(t)
				for _, object := range parse(t, output) {
					kind, namespace := object.Text("kind"), object.Namespace()
					switch {
					case slices.Contains(scoped, kind):
					case slices.Contains(namespaced, kind) && namespace == "":
						namespace = release.namespace
					case !slices.Contains(namespaced, kind):
						t.Errorf("is a %s cluster-scoped?", kind)
					}
					name := kind + " " + namespace + "/" + object.Name()
					if other, ok := owners[name]; ok {
						t.Errorf("%s is of %s and of %s/%s", name, other, release.namespace, release.name)
					}
					owners[name] = release.namespace + "/" + release.name
				}
			}
		})
	}
}

// The chart gives Pullpass the rights of deploy/kubernetes/rbac.yaml, and where policy is objects those of policy-objects.yaml,
// and none where it reads nothing of the cluster.
func TestRights(t *testing.T) {
	given := func(name string) objects {
		return parse(t, testenv.ReadFile(t, filepath.Join(programs.Checkout(t), "deploy", "kubernetes", name)))
	}
	want, ofObjects := rights(given("rbac.yaml")), append(given("policy-objects.yaml"), given("policy-objects-status.yaml")...)
	if len(want) < 10 {
		t.Fatalf("deploy/kubernetes/rbac.yaml gives %q", want)
	}
	for _, s := range sets(t) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			rendered := parse(t, s.template(t))
			name := s.namespace + "." + rendered.kind("Deployment")[0].Name()
			var roles objects
			for _, role := range rendered.kind("ClusterRole") {
				switch role.Name() {
				case "pullpass-pull-secrets": // TestPullSecrets
				case name:
					roles = append(roles, role)
				case name + "-node-install":
					if got := rights(objects{role}); !slices.Equal(got, []string{" nodes get", " nodes patch"}) {
						t.Errorf("the installer may %q", got)
					}
				case name + "-kubelets":
					for _, right := range rights(objects{role}) {
						if !strings.HasPrefix(right, " ") || !strings.HasSuffix(right, ".example.com request-serviceaccounts-token-audience") {
							t.Errorf("kubelets may %q", right)
						}
					}
				case name + "-objects", name + "-objects-edit", name + "-objects-view", name + "-objects-status":
					same := ofObjects.named("ClusterRole", "pullpass"+strings.TrimPrefix(role.Name(), name))
					isStatus := role.Name() == name+"-objects-status"
					if s.name != "objects-status" && (s.name != "objects" || isStatus) || same == nil || !slices.Equal(rights(objects{role}), rights(objects{same})) || !hasLabels(role, same) {
						t.Errorf("ClusterRole %v, want that of deploy/kubernetes/policy-objects.yaml and policy-objects-status.yaml", role)
					}
				default:
					t.Errorf("ClusterRole %s", role.Name())
				}
			}
			token := strings.Contains(fmt.Sprint(rendered.kind("Deployment")), "serviceAccountToken")
			if s.name == "manifests" || s.name == "builds" {
				if len(roles) != 0 || token {
					t.Errorf("roles %v, token %v", roles, token)
				}
			} else if got := rights(roles); !slices.Equal(got, rightsOf(want, s)) || !token {
				t.Errorf("rights\n%q\nwant those of deploy/kubernetes/rbac.yaml\n%q\nand a token (%v)", got, want, token)
			}
			for _, binding := range rendered.kind("ClusterRoleBinding") {
				subject := list(binding, "subjects")[0]
				account := (binding.Name() == name || binding.Name() == name+"-objects" || binding.Name() == name+"-objects-status") && subject.Text("kind") == "ServiceAccount" && subject.Text("namespace") == s.namespace &&
					rendered.named("ServiceAccount", subject.Text("name")) != nil
				if binding.Name() == "pullpass-pull-secrets" {
					continue // TestPullSecrets
				}
				nodes := binding.Name() == name+"-kubelets" && subject.Text("kind") == "Group" && subject.Text("name") == "system:nodes"
				install := binding.Name() == name+"-node-install" && subject.Text("kind") == "ServiceAccount" && subject.Text("namespace") == "pullpass-nodes" && subject.Text("name") == "pullpass-node-install"
				if !account && !nodes && !install || binding.Text("roleRef", "name") != binding.Name() {
					t.Errorf("binding %v", binding)
				}
			}
		})
	}
}

// hasLabels tells whether an object has those of another.
func hasLabels(has, wanted cluster.Object) bool {
	labels, _ := wanted["metadata"].(map[string]any)["labels"].(map[string]any)
	for key, value := range labels {
		own, _ := has["metadata"].(map[string]any)["labels"].(map[string]any)
		if own[key] != value {
			return false
		}
	}
	return true
}

// rightsOf adds, where tokens in Secrets are accepted, what deploy/kubernetes/pull-secrets.yaml gives.
func rightsOf(all []string, s set) []string {
	if s.name != pullSecretsSet {
		return all
	}
	all = append(slices.Clone(all), "authentication.k8s.io tokenreviews create")
	slices.Sort(all)
	return all
}

// rights are what the ClusterRoles allow, each as "GROUP RESOURCE VERB".
func rights(all objects) (found []string) {
	for _, role := range all.kind("ClusterRole") {
		for _, rule := range list(role, "rules") {
			for _, group := range texts(rule["apiGroups"]) {
				for _, resource := range texts(rule["resources"]) {
					for _, verb := range texts(rule["verbs"]) {
						found = append(found, group+" "+resource+" "+verb)
					}
				}
			}
		}
	}
	slices.Sort(found)
	return found
}
