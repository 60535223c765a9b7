package podtest

import (
	"flag"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/node"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// "make readers" sets it.
var slowReaders = flag.String("readers", "", "`names` of readers of images that take minutes to build and are run too, separated by commas, or \"all\"")

// reader is a program that reads images, and is not a kubelet.
type reader struct {
	name      string
	program   func(testing.TB) string
	slow      bool // to build
	libraries bool // its image has the shared libraries that it is linked with

	files       func(testing.TB, *readers) []node.File // that its image has as well
	environment string                                 // of its container
	args        func(r *readers, image string) []string
	isChart     bool // it reads charts

	agent   string // its User-Agent begins so
	refused string // what it says, among other things, when it gets no token
}

// reads is what it reads in a namespace.
func (r reader) reads(namespace string) string {
	if r.isChart {
		return namespace + "/chart:0.1.0"
	}
	return namespace + "/web:rc"
}

// chosenReaders are those that this run of the tests has built.
func chosenReaders() (chosen []reader) {
	for _, r := range allTheReaders {
		if !r.slow || isChosen(r.name) {
			chosen = append(chosen, r)
		}
	}
	return chosen
}

func isChosen(name string) bool {
	return *slowReaders == "all" || slices.Contains(strings.Split(*slowReaders, ","), name)
}

func buildReaders(t testing.TB) {
	t.Helper()
	programs.Build(t, programs.Helm, programs.Buildkitd)
	if *slowReaders != "" {
		programs.Build(t, programs.Cosign) // signs what they read
	}
	for _, r := range chosenReaders() {
		programs.Build(t, r.program)
	}
	for _, c := range controllers {
		if isChosen(c.name) {
			programs.Build(t, c.program)
		}
	}
}

// args are the arguments of a program that ends with the image's name.
func args(args ...string) func(*readers, string) []string {
	return func(_ *readers, image string) []string { return append(args[:len(args):len(args)], image) }
}

// forEach is a file of a program's image, one for each image that is read, which it names.
func forEach(name, content string) func(testing.TB, *readers) []node.File {
	return func(testing.TB, *readers) (files []node.File) {
		for _, namespace := range []string{team, billing} {
			image := registryName + "/" + namespace + "/web:rc"
			files = append(files, node.File{Path: fileFor(image, name), Content: []byte(strings.ReplaceAll(content, "IMAGE", image))})
		}
		return files
	}
}

// fileFor is where forEach puts the file about an image.
func fileFor(image, name string) string { return "/files/" + path.Base(path.Dir(image)) + "/" + name }

var allTheReaders = []reader{
	{
		name: "crane", program: programs.Crane, agent: "crane/", refused: "UNAUTHORIZED: authentication required",
		args: args("manifest"),
	},
	{
		name: "skopeo", program: programs.Skopeo, libraries: true, agent: "skopeo/", refused: "denied: requested access to the resource is denied",
		args: func(_ *readers, image string) []string { return []string{"inspect", "docker://" + image} },
	},
	{
		name: "oras", program: programs.Oras, agent: "oras/", refused: "unauthorized: authentication required",
		args: args("manifest", "fetch"),
	},
	{
		name: "helm", program: programs.Helm, isChart: true, agent: "Helm/", refused: "unauthorized: authentication required",
		args: func(_ *readers, chart string) []string { return []string{"show", "chart", "oci://" + chart} },
	},
	{
		name: "buildctl", program: programs.Buildctl, agent: "containerd/", refused: "pull access denied",
		files: forEach("Dockerfile", "FROM IMAGE\n"),
		args: func(r *readers, image string) []string {
			dir := path.Dir(fileFor(image, "Dockerfile"))
			return []string{
				"--addr", r.buildkit, "build", "--progress", "plain", "--frontend", "dockerfile.v0", "--local", "context=" + dir, "--local", "dockerfile=" + dir,
				"--output", "type=tar,dest=/tmp/image.tar",
			}
		},
	},
	{
		name: "cosign", program: programs.Cosign, slow: true, agent: "cosign/", refused: "UNAUTHORIZED: authentication required",
		files: func(t testing.TB, r *readers) []node.File {
			return []node.File{{Path: "/cosign.pub", Content: read(t, r.keys+"/cosign.pub")}}
		},
		args: args("verify", "--key", "/cosign.pub", "--insecure-ignore-tlog"),
	},
	{
		name: "k8schain", program: programs.K8schain, slow: true, agent: "k8schain ", refused: "UNAUTHORIZED: authentication required",
		args: args(readerNamespace, readerAccount),
	},
	{
		name: "syft", program: programs.Syft, slow: true, agent: "syft ", refused: "UNAUTHORIZED: authentication required",
		environment: "    - {name: SYFT_CHECK_FOR_APP_UPDATE, value: \"false\"}\n",
		args:        func(_ *readers, image string) []string { return []string{"registry:" + image} },
	},
	{
		// Without a search for vulnerabilities, whose database is not here.
		name: "trivy", program: programs.Trivy, slow: true, agent: "trivy/", refused: "UNAUTHORIZED: authentication required",
		args: args("image", "--image-src", "remote", "--format", "cyclonedx", "--disable-telemetry", "--skip-version-check"),
	},
	{
		name: "kyverno", program: programs.KyvernoCLI, slow: true, agent: "Kyverno/", refused: "UNAUTHORIZED: authentication required",
		files: func(t testing.TB, r *readers) []node.File {
			pods := forEach("pod.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: app, namespace: default}\nspec: {containers: [{name: app, image: \"IMAGE\"}]}\n")
			return append(pods(t, r), node.File{Path: "/policy.yaml", Content: r.withKey(t, kyvernoPolicy)})
		},
		args: func(_ *readers, image string) []string {
			return []string{"apply", "/policy.yaml", "--resource", fileFor(image, "pod.yaml"), "--registry", "--detailed-results"}
		},
	},
	{
		name: "policy-tester", program: programs.PolicyTester, slow: true, agent: "go-containerregistry/", refused: "UNAUTHORIZED: authentication required",
		files: func(t testing.TB, r *readers) []node.File {
			return []node.File{{Path: "/policy.yaml", Content: r.withKey(t, imagePolicy)}}
		},
		args: args("-policy", "/policy.yaml", "-image"),
	},
}

// KEY is the public key, within a literal block.
const kyvernoPolicy = `apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: signed}
spec:
  rules:
  - name: signed
    match: {any: [{resources: {kinds: [Pod]}}]}
    verifyImages:
    - imageReferences: ["registry.example.com/*"]
      failureAction: Enforce
      mutateDigest: false
      verifyDigest: false
      attestors:
      - entries:
        - keys:
            rekor: {url: "https://rekor.example.com", ignoreTlog: true}
            ctlog: {ignoreSCT: true}
            publicKeys: |-
              KEY
`

const imagePolicy = `apiVersion: policy.sigstore.dev/v1beta1
kind: ClusterImagePolicy
metadata: {name: signed}
spec:
  images: [{glob: "registry.example.com/**"}]
  authorities:
  - name: key
    key:
      data: |
        KEY
`

// withKey puts the public key into a policy.
func (r *readers) withKey(t testing.TB, policy string) []byte {
	t.Helper()
	before, _, found := strings.Cut(policy, "KEY")
	if !found {
		t.Fatal("no KEY")
	}
	indent := before[strings.LastIndex(before, "\n"):]
	key := strings.TrimSpace(testenv.ReadFile(t, r.keys+"/cosign.pub"))
	return []byte(strings.Replace(policy, "KEY", strings.ReplaceAll(key, "\n", indent), 1))
}
