package charttest

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const pullSecretsSet = "pull-secrets"

// TestPullSecrets: the chart has all that deploy/kubernetes has for pull secrets, for its namespace and its audience, and the flags of
// the running programs agree.
func TestPullSecrets(t *testing.T) {
	s := set{pullSecretsSet, "pullpass", "tokens"}
	rendered := parse(t, s.template(t))
	content := testenv.ReadFile(t, filepath.Join(programs.Checkout(t), "deploy", "kubernetes", "pull-secrets-controller.yaml"))
	text := strings.NewReplacer("system:serviceaccount:pullpass:", "system:serviceaccount:tokens:", "namespace: pullpass\n", "namespace: tokens\n", "pull.registry.example.com", "pull.example.com").Replace(content)
	documents := parse(t, text)
	if len(documents) < 12 {
		t.Fatalf("%d objects in deploy/kubernetes", len(documents))
	}
	for _, want := range documents {
		got := rendered.named(want.Text("kind"), want.Name())
		if want.Text("kind") == "Deployment" {
			continue
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s %s is\n%v\nwant\n%v", want.Text("kind"), want.Name(), got, want)
		}
	}
	deployment := rendered.named("Deployment", "pullpass-pull-secrets")
	container := list(deployment, "spec", "template", "spec", "containers")[0]
	if got, want := texts(container["args"]), []string{"pull-secrets", "controller", "--namespace=tokens", "--audience=pull.example.com", "--registry=registry.example.com", "--admin-address=:9090"}; !slices.Equal(got, want) {
		t.Errorf("arguments %q, want %q", got, want)
	}
	if replicas := fmt.Sprint(deployment["spec"].(map[string]any)["replicas"]); replicas != "2" || deployment.Text("spec", "template", "spec", "serviceAccountName") != "pullpass-pull-secrets" {
		t.Errorf("%s replicas as %s", replicas, deployment.Text("spec", "template", "spec", "serviceAccountName"))
	}

	without, err := helm(t, "template", s.release, chart(t), "--namespace="+s.namespace, "--values="+s.values(), "--set=pullSecrets.changePods=false", "--set=pullSecrets.registries={a.example.com,b.example.com:5000}")
	testenv.Must(t, err)
	if all := parse(t, without); len(all.kind("MutatingAdmissionPolicy")) != 0 || len(all.kind("MutatingAdmissionPolicyBinding")) != 0 || len(all.kind("ValidatingAdmissionPolicy")) != 2 ||
		!strings.Contains(without, `"--registry=b.example.com:5000"`) || strings.Contains(without, `"--registry=registry.example.com"`) {
		t.Errorf("without changes of pods: %s", without)
	}
}
