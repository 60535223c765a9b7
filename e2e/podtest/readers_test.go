package podtest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/node"
	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// The names of docs/how-to/readers.md, and a namespace whose images its scanner may not read.
const (
	readerNamespace = "security"
	readerAccount   = "scanner"
	billing         = "billing"
)

// k8schain reads the ServiceAccount, for its imagePullSecrets.
const accountReader = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: read-accounts, namespace: security}
rules: [{apiGroups: [""], resources: [serviceaccounts], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: read-accounts, namespace: security}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: read-accounts}
subjects: [{kind: ServiceAccount, name: scanner, namespace: security}]
`

// readers runs pods of docs/how-to/readers.md.
type readers struct {
	*site
	manifest string    // of the pod
	keys     string    // a directory with cosign.key and cosign.pub
	buildkit string    // the address of a BuildKit outside of the pods
	tried    []attempt // in the order of time
}

// attempt is one program that reads one image.
type attempt struct {
	reader, image string
	exit          string
	event         pullpass.Event
	output        string
}

// TestReaders runs the pod of docs/how-to/readers.md with each program: it reads what the document's rule allows, with no pull secret in
// the cluster.
func TestReaders(t *testing.T) {
	blocks := documents(t, "how-to/readers.md")
	_, documented, found := strings.Cut(blocks[0], "rules:\n")
	if !found {
		t.Fatal("docs/how-to/readers.md shows no rule")
	}
	const own = "- {name: own, subjects: [{namespaces: [security, billing]}], allow: [{repositories: [\"{namespace}/**\"], actions: [pull, push]}]}\n"
	r := &readers{site: startSite(t, own+controllerRules()+documented, readerNamespace, billing), manifest: fitted(t, blocks[1])}
	r.CreateServiceAccount(t, readerNamespace, readerAccount, nil)
	r.ServePods(t)
	r.Kubectl(t, accountReader, "create", "-f", "-")
	r.publish(t)
	// The pods run at the same time: most of their time is waiting.
	chosen := chosenReaders()
	for _, reader := range chosen {
		r.push(t, readerNamespace, reader.name, r.image(t, reader))
		for _, namespace := range []string{team, billing} {
			r.start(t, reader, namespace)
		}
	}
	for _, reader := range chosen {
		t.Run(reader.name, func(t *testing.T) {
			for _, namespace := range []string{team, billing} {
				r.verifyAttempt(t, reader, r.await(t, reader, namespace), namespace == team)
			}
		})
	}
	for _, c := range controllers {
		if isChosen(c.name) {
			t.Run(c.name, func(t *testing.T) { r.testController(t, c) })
		}
	}
	r.checkSecrets(t)
	t.Logf("readers of images\n%s", r.lines())
}

// fitted is the pod on the only node of a cluster that has no scheduler and no network for pods.
func fitted(t testing.TB, manifest string) string {
	t.Helper()
	return testenv.Replace(t, manifest, "\n  serviceAccountName: scanner\n",
		"\n  serviceAccountName: scanner\n  nodeName: node-1\n  hostNetwork: true\n  terminationGracePeriodSeconds: 0\n")
}

// verifyAttempt compares the audit line, the exit code and the output with those that the rule of the document demands.
func (r *readers) verifyAttempt(t *testing.T, reader reader, a attempt, isGranted bool) {
	t.Helper()
	e := a.event
	if e.Namespace != readerNamespace || e.ServiceAccount.Name != readerAccount || e.Node.Name != "node-1" || e.CredentialID == "" || !strings.HasPrefix(e.Client, reader.agent) {
		t.Errorf("%s: audit %+v, want the pod and a client %q", a.image, e, reader.agent)
	}
	if isGranted && (a.exit != "0" || e.Result != "granted" || e.Rule != "scanners") {
		t.Errorf("%s: exit code %s, audit %+v, output:\n%s", a.image, a.exit, e, a.output)
	}
	if !isGranted && (a.exit == "0" || e.Reason != "scope_not_granted" || len(e.Granted) > 0 || !strings.Contains(a.output, reader.refused)) {
		t.Errorf("%s: exit code %s, audit %+v, want %q in the output:\n%s", a.image, a.exit, e, reader.refused, a.output)
	}
}

// image is that of a program, whose only certificate is the registry's CA. The helper is not in it.
func (r *readers) image(t testing.TB, reader reader) v1.Image {
	t.Helper()
	program := reader.program(t)
	files := []node.File{
		{Path: "/usr/local/bin/" + reader.name, Content: read(t, program)},
		{Path: "/etc/ssl/certs/ca-certificates.crt", Content: read(t, r.ca.File)},
		{Path: "/etc/passwd", Content: []byte("root:x:0:0:root:/root:/bin/sh\n")},
		{Path: "/tmp/empty"},
	}
	if reader.libraries {
		output := testenv.Value(exec.CommandContext(t.Context(), "ldd", program).Output())(t)
		for _, word := range strings.Fields(string(output)) {
			if path.IsAbs(word) {
				files = append(files, node.File{Path: word, Content: read(t, word)})
			}
		}
	}
	if reader.files != nil {
		files = append(files, reader.files(t, r)...)
	}
	return node.ProgramImage(t, files...)
}

func read(t testing.TB, file string) []byte {
	t.Helper()
	return []byte(testenv.ReadFile(t, file))
}

// start runs a program in a pod, to read an image of a namespace.
func (r *readers) start(t testing.TB, reader reader, namespace string) {
	t.Helper()
	_, manifest, _ := strings.Cut(r.manifest, "\n---\n")
	manifest = r.running(t, manifest, reader.name, reader.args(r, registryName+"/"+reader.reads(namespace)), reader.environment)
	r.Kubectl(t, testenv.Replace(t, manifest, "metadata: {name: scanner,", "metadata: {name: "+namespace+"-"+reader.name+","), "create", "-f", "-")
}

// running is a manifest of the document whose pod runs a program.
func (r *readers) running(t testing.TB, manifest, program string, args []string, environment string) string {
	t.Helper()
	command := testenv.Value(json.Marshal(append([]string{program}, args...)))(t)
	for _, change := range [][2]string{
		{`command: [syft, "registry:registry.example.com/team-a/web:rc"]`, "command: " + string(command) + "\n    terminationMessagePolicy: FallbackToLogsOnError"},
		{"image: registry.example.com/security/syft\n", "image: " + registryName + "/" + readerNamespace + "/" + program + "\n"},
		{"ghcr.io/pullpass/", registryName + "/" + readerNamespace + "/"},
		{"    env:\n", "    env:\n    - {name: HOME, value: /tmp}\n" + environment},
	} {
		manifest = testenv.Replace(t, manifest, change[0], change[1])
	}
	return manifest
}

// await waits until the program has ended.
func (r *readers) await(t testing.TB, reader reader, namespace string) attempt {
	t.Helper()
	var pod, state cluster.Object
	if !testenv.Poll(2*podLimit, func() bool {
		pod = r.Get(t, "/api/v1/namespaces/"+readerNamespace+"/pods/"+namespace+"-"+reader.name)
		states, _ := container(pod)["state"].(map[string]any)
		state, _ = states["terminated"].(map[string]any)
		return state != nil
	}) {
		t.Fatalf("%s does not end: %v; events: %+v", reader.name, pod["status"], r.Events(t, pod))
	}
	a := attempt{reader: reader.name, image: reader.reads(namespace), exit: fmt.Sprint(state["exitCode"]), output: state.Text("message")}
	repository, _, _ := strings.Cut(a.image, ":")
	if !testenv.Poll(podLimit/6, func() bool {
		i := slices.IndexFunc(r.proxy.Audit(t), func(e pullpass.Event) bool {
			a.event = e
			return about(e, pod, "") && slices.Contains(e.Requested, "repository:"+repository+":pull")
		})
		return i >= 0
	}) {
		t.Fatalf("%s requested no token for %s; exit code %s, output:\n%s", reader.name, a.image, a.exit, a.output)
	}
	r.tried = append(r.tried, a)
	return a
}

// publish pushes what is read: images that are signed, and charts. One repository of each kind is the team's, and one is not.
func (r *readers) publish(t testing.TB) {
	t.Helper()
	config, _, _ := strings.Cut(r.manifest, "\n---\n")
	r.Kubectl(t, config, "create", "-f", "-")
	r.push(t, readerNamespace, "pullpass-client:v0.1.0", node.ProgramImage(t,
		node.File{Path: "/docker-credential-pullpass", Content: read(t, programs.CredentialHelper(t))}))
	r.keys = t.TempDir()
	for _, namespace := range []string{team, billing} {
		image := node.Image(t, namespace)
		reference := r.push(t, namespace, "web:rc", image)
		r.publishAs(t, namespace, reference, image)
	}
	r.startBuildKit(t)
}

// publishAs signs an image and pushes a chart with a team's password, which is in a file.
func (r *readers) publishAs(t testing.TB, namespace, reference string, image v1.Image) {
	t.Helper()
	dir := t.TempDir()
	login := base64.StdEncoding.EncodeToString([]byte("serviceaccount:" + r.passwords[namespace]))
	testenv.WriteFile(t, filepath.Join(dir, "config.json"), fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, registryName, login))
	environment := append(programs.HelmEnvironment(t), "DOCKER_CONFIG="+dir, "SSL_CERT_FILE="+r.ca.File, "COSIGN_PASSWORD=not-a-secret")
	do := func(name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir, cmd.Env = r.keys, environment
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v\n%s", filepath.Base(name), args, err, output)
		}
	}
	if *slowReaders != "" {
		cosign := programs.Cosign(t)
		if _, err := os.Stat(filepath.Join(r.keys, "cosign.key")); err != nil {
			do(cosign, "generate-key-pair")
		}
		digest := strings.TrimSuffix(reference, ":rc") + "@" + testenv.Value(image.Digest())(t).String()
		for _, format := range []string{"true", "false"} { // a verifier knows one or the other
			do(cosign, "sign", "--key", "cosign.key", "--use-signing-config=false", "--tlog-upload=false", "--new-bundle-format="+format, "--yes", digest)
		}
	}
	chart := filepath.Join(dir, "chart")
	testenv.Must(t, os.Mkdir(chart, 0o700))
	testenv.WriteFile(t, filepath.Join(chart, "Chart.yaml"), "apiVersion: v2\nname: chart\nversion: 0.1.0\n")
	do(programs.Helm(t), "package", chart)
	do(programs.Helm(t), "push", "chart-0.1.0.tgz", "oci://"+registryName+"/"+namespace)
}

// startBuildKit runs a BuildKit, which has no credential: its clients have.
func (r *readers) startBuildKit(t testing.TB) {
	t.Helper()
	dir := t.TempDir()
	r.buildkit = "tcp://" + process.FreeAddress(t)
	config := testenv.WriteFile(t, filepath.Join(dir, "buildkitd.toml"), fmt.Sprintf(
		"[worker.oci]\nbinary = %q\nsnapshotter = \"native\"\ndefaultCgroupParent = %q\n[worker.containerd]\nenabled = false\n",
		programs.Runc(t), path.Join("/", isolate.Cgroup(), "buildkit")))
	cmd := exec.Command(programs.Buildkitd(t), "--config", config, "--addr", r.buildkit, "--root", filepath.Join(dir, "data"))
	cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+r.ca.File)
	buildkit := process.Start(t, cmd)
	t.Cleanup(func() { buildkit.Kill(t) }) // SIGTERM is an error to it
	buildkit.Await(t, podLimit, func(ctx context.Context) error {
		return exec.CommandContext(ctx, programs.Buildctl(t), "--addr", r.buildkit, "debug", "workers").Run()
	})
}

// checkSecrets shows that the cluster has no pull secret.
func (r *readers) checkSecrets(t testing.TB) {
	t.Helper()
	list := r.Get(t, "/api/v1/secrets")
	items, isList := list["items"].([]any)
	if !isList {
		t.Fatalf("no list of secrets: %v", list)
	}
	for _, item := range items {
		secret := cluster.Object(item.(map[string]any))
		if slices.Contains([]string{"kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg"}, secret.Text("type")) {
			t.Errorf("the cluster has the pull secret %s", secret.Name())
		}
	}
}

// lines has two lines for each image: the result of the request, and the last line that the program wrote.
func (r *readers) lines() string {
	var table strings.Builder
	for _, a := range r.tried {
		e := a.event
		lines := strings.Split(strings.TrimSpace(a.output), "\n")
		fmt.Fprintf(&table, "%-18s %-14s exit %-3s %-8s %-18s %s\n%s\n", a.reader, a.image, a.exit, e.Result, e.Reason, e.Client, lines[len(lines)-1])
	}
	return table.String()
}
