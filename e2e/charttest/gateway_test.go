package charttest

import (
	"encoding/base64"
	"os/exec"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// TestGatewayDocument does what docs/how-to/gateway.md says, with no cluster: its Secrets are what its values ask for, Pullpass finds no
// fault with them, prints what its nodes need, and grants what its pod asks for.
func TestGatewayDocument(t *testing.T) {
	m := openManual(t, "how-to/gateway.md", t.TempDir())
	serving := certs.NewCA(t, "registry-ca").Server(t, "gateway", "gateway.example.com")
	for file, path := range map[string]string{"tls.crt": serving.CertFile, "tls.key": serving.KeyFile} {
		content := testenv.ReadFile(t, path)
		m.write(t, file, content)
	}
	m.write(t, "ghcr.pass", "a")
	m.write(t, "harbor.pass", "b")
	m.write(t, "values.yaml", m.block(t, "yaml", "# values.yaml"))

	secrets := map[string]secret{}
	for _, text := range []string{"from-file=password", "openssl req -x509"} {
		script := "kubectl() { " + programs.Kubectl(t) + ` "$@" --dry-run=client --output=yaml; echo ---; }` + "\n" + m.block(t, "sh", text)
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", "cd "+m.directory+"\n"+script)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		made, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %s", err, &stderr)
		}
		for _, object := range parse(t, string(made)).kind("Secret") {
			secrets[object.Name()] = decoded(t, object)
		}
	}

	rendered := func() objects {
		args := strings.Fields(strings.ReplaceAll(m.block(t, "sh", "helm install"), "deploy/helm/pullpass", chart(t)))
		args[1] = "template"
		for i := range args {
			args[i] = strings.Replace(args[i], "values.yaml", m.directory+"/values.yaml", 1)
		}
		output, err := helm(t, args[1:len(args)-1]...) // but --wait
		testenv.Must(t, err)
		return parse(t, output)
	}()
	serve := command(t, rendered.kind("Deployment")[0], rendered, secrets)
	file := serve.Args[len(serve.Args)-1]
	pullpass := func(args ...string) string {
		t.Helper()
		output, err := exec.CommandContext(t.Context(), programs.Pullpass(t), args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v: %s", args, err, output)
		}
		return string(output)
	}
	pullpass("check", "--config", file)
	testenv.WriteFile(t, file, testenv.Replace(t, testenv.ReadFile(t, file), "inCluster: true", "inCluster: false")) // explain would ask it
	for text, want := range map[string]string{
		" kubelet-config ": `server = "https://gateway.example.com/v2/harbor.example.com"`,
		" explain ":        "GRANTED: pull",
	} {
		_, line, found := strings.Cut(strings.TrimSpace(m.block(t, "sh", text)), " -- /pullpass ")
		if !found {
			t.Fatalf("%q runs nothing in the pod", text)
		}
		if printed := pullpass(strings.Fields(strings.Replace(line, "/etc/pullpass/config/pullpass.yaml", file, 1))...); !strings.Contains(printed, want) {
			t.Errorf("%s: no %q in\n%s", line, want, printed)
		}
	}
	if service := rendered.named("Service", "pullpass-gateway"); list(service, "spec", "ports")[0]["port"] != 443 {
		t.Errorf("the gateway's Service is %v", service)
	}
}

func decoded(t testing.TB, object cluster.Object) secret {
	t.Helper()
	data, _ := object["data"].(map[string]any)
	made := secret{}
	for key, value := range data {
		content := testenv.Value(base64.StdEncoding.DecodeString(value.(string)))(t)
		made[key] = content
	}
	return made
}
