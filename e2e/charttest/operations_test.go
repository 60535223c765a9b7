package charttest

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// The document's last step: a pod runs from a private image with nothing but its ServiceAccount.
func (i *installation) testFirstPull(t *testing.T) {
	i.push(t, "team-a/web")
	i.do(t, i.manual, "kubectl run")
	i.saw("the first pull", "as docs/start/install.md says")
}

// The nodes were configured for this from the beginning; now it is asked of them.
func (i *installation) testProof(t *testing.T) {
	values := i.read(t, "values.yaml")
	proof := testenv.Replace(t, i.block(t, "yaml", "proof:"), "mode: audit", "mode: enforce")
	i.write(t, "values.yaml", testenv.Replace(t, values, "    kubernetes: {inCluster: true}\n", "    kubernetes: {inCluster: true}\n"+proof))
	i.do(t, i.manual, "--set-file")
	nobody := i.asker.Clone()
	nobody.TLSClientConfig.Certificates = nil
	var refused error
	i.everywhere(t, "nodes have to prove who they are", func() bool {
		_, refused = askFrom(t.Context(), nobody, i.token, "team-a/web")
		return refused != nil && strings.HasPrefix(refused.Error(), "403 ")
	})
	i.builder.CloseIdleConnections() // the server requested no certificate when they were opened
	if _, err := i.ask(t.Context(), i.token, "team-a/web"); err != nil {
		t.Error(err)
	}
	printed := i.do(t, i.manual, " kubelet-config ")
	for _, n := range i.nodes {
		for _, place := range []string{"/etc/pullpass/credential-provider.yaml", "/etc/containerd/certs.d/" + registryName + "/hosts.toml"} {
			for line := range strings.Lines(testenv.ReadFile(t, n.Path(place))) {
				if !strings.Contains(printed, line) {
					t.Errorf("%s of %s has the line %q, which kubelet-config does not print in the pod", place, n.Name(), line)
				}
			}
		}
	}
	i.saw("nodes prove who they are", "without a certificate: %.60v", refused)
}

// everywhere waits until the pods, which are asked in turn, are all of one mind.
func (i *installation) everywhere(t testing.TB, what string, done func() bool) {
	t.Helper()
	testenv.Await(t, waitLimit, what, func() bool {
		for range 10 {
			if !done() {
				return false
			}
			time.Sleep(pollPeriod)
		}
		return true
	})
}

// testOperations changes Pullpass while pods pull through it.
func (i *installation) testOperations(t *testing.T) {
	var images []string
	for n := range 100 {
		images = append(images, i.push(t, fmt.Sprintf("team-a/app-%d", n)))
	}
	i.saw("images pushed", "%d", len(images))
	p := i.startPulls(t, images)
	first := i.pods(t)
	if len(first) != 2 {
		t.Errorf("pods %q, want two", first)
	}
	same := func(what string) {
		t.Helper()
		if now := i.pods(t); !slices.Equal(now, first) {
			t.Errorf("%s: new pods %q, before %q", what, now, first)
		}
	}

	i.testPolicy(t)
	same("a new policy")
	i.testNewKey(t)
	same("a new key")
	i.testNewCA(t)
	same("a new CA")

	_, err := i.tryUpgrade(t, "--set=policy.rules[0].allow[0].actions[0]=pul")
	if err == nil || !strings.Contains(err.Error(), `/etc/pullpass/config/policy.yaml: rules[0].allow[0].actions[0]: \"pul\" is not an action`) {
		t.Errorf("an upgrade with a faulty policy: %v", err)
	}
	same("a refused upgrade")
	i.saw("helm upgrade: a faulty policy", "refused, and why")

	i.upgrade(t, "--values=policy.yaml", "--set=config.registries[0].tokenLifetime=1m")
	i.everywhere(t, "the new configuration counts", func() bool {
		body := testenv.Value(i.ask(t.Context(), i.token, "team-a/web"))(t)
		return body.ExpiresIn <= 60 // it may be one that was issued a moment before
	})
	same("a new configuration")
	i.saw("helm upgrade: a new configuration", "counts without a restart")

	i.upgrade(t, "--values=policy.yaml", "--set-string=env[0].name=GOGC,env[0].value=200")
	testenv.Await(t, waitLimit, "no pod goes on with the environment of before", func() bool {
		return !slices.ContainsFunc(i.pods(t), func(pod string) bool { return slices.Contains(first, pod) })
	})
	i.saw("helm upgrade: another environment", "new pods")

	i.upgrade(t, "--values=policy.yaml", "--set-string=env[0].name=GOGC,env[0].value=200", "--set=replicas=3")
	i.saw("helm upgrade: two replicas become three", "%d pods", len(i.pods(t)))

	i.evict(t)

	i.run(t, "helm", "rollback", "pullpass", "2", "--namespace="+namespace, "--wait")
	i.everywhere(t, "the policy of before counts", func() bool { return !i.sharedGranted(t) })
	i.saw("helm rollback to what was before", "%d pods, and the policy of before", len(i.pods(t)))
	p.finish(t)
}

// testPolicy lets another team pull what it could not.
func (i *installation) testPolicy(t *testing.T) {
	image := i.push(t, "shared/base")
	if i.sharedGranted(t) {
		t.Error("team-b may pull what no rule allows")
	}
	i.write(t, "policy.yaml", "policy: {rules: [{name: all, subjects: [{namespaces: ['*']}], allow: [{repositories: ['**'], actions: [pull, push]}]}]}")
	i.upgrade(t, "--values=policy.yaml")
	i.saw("helm upgrade: a new policy", "")
	i.everywhere(t, "the new policy counts", func() bool { return i.sharedGranted(t) })
	pod := i.Create(t, "/api/v1/namespaces/team-b/pods", cluster.Object{
		"metadata": cluster.Object{"name": "shared"}, "spec": cluster.Object{"containers": []cluster.Object{{"name": "c", "image": image}}},
	})
	i.awaitRunning(t, pod)
	i.saw("the new policy counts", "without a restart")
}

// sharedGranted asks as team-b.
func (i *installation) sharedGranted(t testing.TB) bool {
	t.Helper()
	return strings.Contains(string(testenv.TokenPart(t, i.mustAsk(t, i.otherToken, "shared/base").Token, 1)), "shared/base")
}

// testNewKey replaces the key that signs, below the CA that the registry trusts.
func (i *installation) testNewKey(t *testing.T) {
	i.replaceKey(t, "signing-ca")
	i.saw("another signing key in the Secret", "signs without a restart")
}

// testNewCA does what docs/how-to/keys.md says for keys from files. The registry has both CAs already.
func (i *installation) testNewCA(t *testing.T) {
	i.write(t, "roots.pem", i.read(t, "signing-ca.crt")+i.read(t, "next-ca.crt"))
	values := i.read(t, "values.yaml")
	i.write(t, "values.yaml", testenv.Replace(t, values, "    issuer: "+pullpass.Issuer+"\n", "    issuer: "+pullpass.Issuer+"\n    signing: {caFile: roots.pem}\n"))
	command, _, _ := strings.Cut(openManual(t, "how-to/keys.md", i.directory).block(t, "sh", "helm upgrade"), "\n")
	command = testenv.Replace(t, command, " deploy/helm/pullpass ", " "+chart(t)+" ")
	i.run(t, "sh", "-euc", "cd "+i.directory+"\n"+command+` --values policy.yaml --set-file 'files.node-ca\.crt=node-ca.crt'`)
	i.write(t, "values.yaml", values)
	i.everywhere(t, "both CAs are published", func() bool { return strings.Count(i.certificates(t), "BEGIN CERTIFICATE") == 2 })
	i.saw("helm upgrade: another CA", "published without a restart")
	i.replaceKey(t, "next-ca")
	i.saw("a signing key of the other CA in the Secret", "signs without a restart")
}

// replaceKey makes a key of a CA, as docs/start/install.md does, and waits until it signs.
func (i *installation) replaceKey(t testing.TB, ca string) {
	t.Helper()
	header := func() string {
		return string(testenv.TokenPart(t, i.mustAsk(t, i.token, "team-a/web").Token, 0))
	}
	before := header()
	commands := strings.ReplaceAll(i.block(t, "sh", "openssl req -x509"), "signing-ca", ca)
	commands = commands[strings.Index(commands, "openssl req -newkey"):]
	commands = strings.TrimSpace(commands) + " --dry-run=client --output=yaml | kubectl apply --server-side --force-conflicts --filename=-"
	i.run(t, "sh", "-euc", "cd "+i.directory+"\n"+commands)
	i.everywhere(t, "the new key signs", func() bool { return header() != before })
}

// testHostNetwork moves Pullpass into the network of a node. The two nodes here have one network, so there is room for one pod.
func (i *installation) testHostNetwork(t *testing.T) {
	i.run(t, "kubectl", "label", "--overwrite", "namespace", namespace, "pod-security.kubernetes.io/enforce=privileged")
	i.upgrade(t, "--set=hostNetwork=true,networkPolicy.enabled=false,ports.public=9443,ports.admin=9091,replicas=1")
	testenv.Await(t, waitLimit, "the endpoint is at a node's address", func() bool {
		ready := i.endpoints(t)
		return len(ready) == 1 && slices.Contains(isolate.Addresses(), strings.TrimSuffix(ready[0], ":9443"))
	})
	image := i.push(t, "team-a/last")
	i.awaitRunning(t, i.Create(t, "/api/v1/namespaces/team-a/pods", cluster.Object{
		"metadata": cluster.Object{"name": "last"}, "spec": cluster.Object{"containers": []cluster.Object{{"name": "c", "image": image}}},
	}))
	i.saw("helm upgrade: in the network of a node", "pulls go there")
}

// testNotes does what the chart says next.
func (i *installation) testNotes(t *testing.T) {
	notes := i.run(t, "helm", "get", "notes", "pullpass", "--namespace="+namespace)
	notes = strings.NewReplacer("HOST", registryName, "NAMESPACE/SERVICEACCOUNT", "team-a/default", "repository:NAME", "repository:team-a/web").Replace(notes)
	done := 0
	for line := range strings.Lines(notes) {
		if command, ok := strings.CutPrefix(line, "  "); ok {
			i.run(t, "sh", "-euc", command)
			done++
		}
	}
	if done != 4 {
		t.Errorf("%d commands in\n%s", done, notes)
	}
	i.saw("what helm install says next", "%d commands", done)
}

func (i *installation) upgrade(t testing.TB, args ...string) {
	t.Helper()
	if _, err := i.tryUpgrade(t, args...); err != nil {
		t.Fatal(err)
	}
}

func (i *installation) tryUpgrade(t testing.TB, args ...string) (string, error) {
	t.Helper()
	command := []string{"helm", "upgrade", "pullpass", chart(t), "--namespace=" + namespace, "--wait",
		"--values=" + filepath.Join(i.directory, "values.yaml"), `--set-file=files.node-ca\.crt=` + filepath.Join(i.directory, "node-ca.crt")}
	for _, arg := range args {
		command = append(command, strings.Replace(arg, "--values=", "--values="+i.directory+"/", 1))
	}
	return i.try(t, command...)
}

// pods are the names of those of Pullpass that are not about to end.
func (i *installation) pods(t testing.TB) (names []string) {
	t.Helper()
	for _, pod := range list(i.Get(t, "/api/v1/namespaces/"+namespace+"/pods?labelSelector=app.kubernetes.io%2Fname%3Dpullpass"), "items") {
		if pod.Text("metadata", "deletionTimestamp") == "" {
			names = append(names, pod.Name())
		}
	}
	slices.Sort(names)
	return names
}

// evict evicts all pods at once, as draining their nodes would: one may go, and the others only when another has come.
func (i *installation) evict(t testing.TB) {
	t.Helper()
	testenv.Await(t, waitLimit, "the disruption controller has seen all pods", func() bool {
		budget := i.Get(t, "/apis/policy/v1/namespaces/"+namespace+"/poddisruptionbudgets/pullpass")
		status, _ := budget["status"].(map[string]any)
		return fmt.Sprint(status["currentHealthy"], status["disruptionsAllowed"]) == "3 1"
	})
	var evicted, kept int
	for _, pod := range i.pods(t) {
		_, err := i.Try(t.Context(), "POST", "/api/v1/namespaces/"+namespace+"/pods/"+pod+"/eviction", cluster.Object{
			"apiVersion": "policy/v1", "kind": "Eviction", "metadata": cluster.Object{"name": pod},
		})
		switch {
		case err == nil:
			evicted++
		case strings.Contains(err.Error(), "disruption budget"):
			kept++
		default:
			t.Error(err)
		}
	}
	if evicted != 1 || kept != 2 {
		t.Errorf("%d pods were evicted and %d were not, want 1 and 2", evicted, kept)
	}
	i.saw("eviction of all pods at once", "%d of %d", evicted, evicted+kept)
	i.run(t, "kubectl", "rollout", "status", "--namespace="+namespace, "deploy/pullpass")
}

// testUninstall finds nothing of the release after its end.
func (i *installation) testUninstall(t *testing.T) {
	release := func() []string {
		return i.objects(t, "--all-namespaces", "--selector=app.kubernetes.io/instance=pullpass")
	}
	before := release()
	for _, object := range parse(t, i.run(t, "helm", "get", "manifest", "pullpass", "--namespace="+namespace)) {
		kind := strings.ToLower(object.Text("kind"))
		if !slices.ContainsFunc(before, func(name string) bool {
			return strings.HasPrefix(name, kind) && strings.HasSuffix(name, "/"+object.Name())
		}) {
			t.Errorf("%s %s is not found while it is there, only %q", kind, object.Name(), before)
		}
	}
	i.run(t, "helm", "uninstall", "pullpass", "--namespace="+namespace, "--wait")
	i.saw("helm uninstall", "%d objects before", len(before))
	testenv.Await(t, waitLimit, "all objects are gone", func() bool { return len(release()) == 0 })
	var left []string
	for _, object := range i.objects(t, "--all-namespaces") {
		if strings.Contains(object, "pullpass") {
			left = append(left, object)
		}
	}
	// Only objects of the administrator are left.
	if want := []string{"namespace/pullpass", "secret/pullpass-serving", "secret/pullpass-signing"}; !slices.Equal(left, want) {
		t.Errorf("left are %q, want %q", left, want)
	}
	i.saw("what is left", "%q", left)
}

// objects are the names of all objects that a selection of kubectl finds, but for events and those that controllers make of others.
func (i *installation) objects(t testing.TB, selection ...string) (names []string) {
	t.Helper()
	var kinds []string
	for kind := range strings.Lines(i.run(t, "kubectl", "api-resources", "--verbs=list", "--output=name")) {
		if kind = strings.TrimSpace(kind); kind != "events" && kind != "events.events.k8s.io" && kind != "componentstatuses" {
			kinds = append(kinds, kind)
		}
	}
	output := i.run(t, append([]string{"kubectl", "get", strings.Join(kinds, ","), "--ignore-not-found", "--output=name"}, selection...)...)
	for name := range strings.Lines(output) {
		names = append(names, strings.TrimSpace(name))
	}
	slices.Sort(names)
	return names
}
