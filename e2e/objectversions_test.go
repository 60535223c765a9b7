package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// definitionsOf returns the CustomResourceDefinitions by their names. If version is not empty, they have only that version, and store it.
func definitionsOf(t *testing.T, version string) map[string]cluster.Object {
	t.Helper()
	all := map[string]cluster.Object{}
	decoder := yaml.NewDecoder(strings.NewReader(testenv.ReadFile(t, filepath.Join(programs.Checkout(t), crdsFile))))
	for range 2 {
		var d map[string]any
		testenv.Must(t, decoder.Decode(&d))
		spec := d["spec"].(map[string]any)
		var kept []any
		for _, v := range spec["versions"].([]any) {
			if v := v.(map[string]any); version == "" || v["name"] == version {
				v["storage"] = version != "" || v["storage"].(bool)
				kept = append(kept, v)
			}
		}
		spec["versions"] = kept
		all[cluster.Object(d).Name()] = d
	}
	return all
}

// TestObjectVersions has objects that were stored in the former version, and rewrites them with the commands of
// docs/reference/promises.md.
func TestObjectVersions(t *testing.T) {
	const (
		collection = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
		former     = "pullpass.dev/v1alpha1"
	)
	s := startSite(t, cluster.Options{})
	served := func(path string) {
		t.Helper()
		within(t, reconnectLimit, path+" is served", func() bool {
			_, err := s.Try(t.Context(), http.MethodGet, path, nil)
			return err == nil
		})
	}
	for _, d := range definitionsOf(t, "v1alpha1") {
		s.Create(t, collection, d)
	}
	served("/apis/" + former + "/accesspolicies")
	served("/apis/" + former + "/repositoryaccesses")
	policy, request := accessPolicy("stored", cluster.Object{"rules": []cluster.Object{rule("r")}}), repositoryAccess("stored")
	policy["apiVersion"], request["apiVersion"] = former, former
	s.Create(t, "/apis/"+former+"/accesspolicies", policy)
	s.Create(t, "/apis/"+former+"/namespaces/default/repositoryaccesses", request)

	replace := func(what, version, refused string) {
		t.Helper()
		for name, d := range definitionsOf(t, version) {
			_, err := s.Try(t.Context(), http.MethodPatch, collection+"/"+name, cluster.Object{"spec": d["spec"]})
			judgeObject(t, what+": "+name, err, refused)
		}
	}
	replace("this release", "", "")
	served(policiesPath)
	served(requestsPath("default"))
	judge := func() {
		t.Helper()
		for _, path := range []string{policiesPath, requestsPath("default")} {
			if found := s.Get(t, path+"/stored"); found.Text("apiVersion") != "pullpass.dev/v1beta1" || found["spec"] == nil {
				t.Errorf("%s: %v", path, found)
			}
		}
	}
	judge()
	replace("a roll-back", "v1alpha1", "must remain in spec.versions")
	replace("without the former version", "v1beta1", "must remain in spec.versions")

	bin := t.TempDir()
	testenv.Must(t, os.Symlink(programs.Kubectl(t), filepath.Join(bin, "kubectl")))
	shell := func(script string) string {
		t.Helper()
		command := exec.CommandContext(t.Context(), "sh", "-ec", script)
		command.Env = append(os.Environ(), "KUBECONFIG="+s.AdminKubeconfig(t), "PATH="+bin+":"+os.Getenv("PATH"))
		output, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", script, err, output)
		}
		return string(output)
	}
	if output := shell("kubectl get accesspolicies.v1alpha1.pullpass.dev"); !strings.Contains(output, "Warning: "+former+" AccessPolicy is deprecated; use pullpass.dev/v1beta1") {
		t.Errorf("kubectl says %s", output)
	}
	shell("kubectl get accesspolicies,repositoryaccesses -A -o json | kubectl replace -f -")
	shell(`kubectl patch crd accesspolicies.pullpass.dev repositoryaccesses.pullpass.dev --subresource status --type merge -p '{"status":{"storedVersions":["v1beta1"]}}'`)
	replace("without the former version, when it is not stored", "v1beta1", "")
	judge()
}
