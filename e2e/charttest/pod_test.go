package charttest

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// TestCheck gives Pullpass the files that its pod would have: "pullpass check" finds no fault, so each file that the configuration
// names is where the pod has it. The hook does without them.
func TestCheck(t *testing.T) {
	for _, s := range sets(t) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			rendered := parse(t, s.template(t))
			secrets := given(t)
			maps.Copy(secrets, issued(t, rendered))
			deployment := rendered.kind("Deployment")[0]
			job := rendered.named("Job", deployment.Name()+"-check")
			checks := command(t, deployment, rendered, secrets)
			if checks.Args[1] != "serve" {
				t.Fatalf("the command is %q", checks.Args)
			}
			checks.Args[1] = "check"
			for _, cmd := range []*exec.Cmd{checks, command(t, job, rendered, nil)} {
				output, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%q: %v: %s", cmd.Args, err, output)
				}
				for line := range strings.Lines(string(output)) {
					if !strings.Contains(line, "no faults") && !strings.Contains(line, "admin.address: is not a loopback address") {
						t.Errorf("%q: %s", cmd.Args, line)
					}
				}
			}
		})
	}
}

// A configuration or a policy with a fault does not pass the hook.
func TestCheckFindsFaults(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"configuration", "config.limits.perAddress.rat=1", "limits.perAddress.rat"},
		{"policy", "policy.rules[0].allow[0].actions[0]=pul", "policy.yaml: rules[0].allow[0].actions[0]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			output := testenv.Value(helm(t, "template", "pullpass", chart(t), "--values=testdata/values/default.yaml", "--set="+c.value))(t)
			rendered := parse(t, output)
			cmd := command(t, rendered.named("Job", "pullpass-check"), rendered, nil)
			if output, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(output), c.want) {
				t.Errorf("%v: %s", err, output)
			}
		})
	}
}

// The pod of "helm test" sends what Pullpass expects to the Service: with the files that the pod has, only the cluster's DNS is missing.
func TestHelmTest(t *testing.T) {
	tests := 0
	for _, s := range sets(t) {
		rendered := parse(t, s.template(t))
		job := rendered.named("Job", rendered.kind("Deployment")[0].Name()+"-test")
		if job == nil {
			continue
		}
		tests++
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			cmd := command(t, job, rendered, given(t))
			address, ok := strings.CutPrefix(cmd.Args[2], "--url=https://")
			host, port, _ := strings.Cut(strings.TrimSuffix(address, "/token"), ":")
			service := rendered.named("Service", strings.TrimSuffix(host, "."+s.namespace+".svc"))
			if !ok || fmt.Sprint(list(service, "spec", "ports")[0]["port"]) != port {
				t.Errorf("%q, and the Service is %v", cmd.Args, service)
			}
			if output, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(output), "lookup "+host) {
				t.Errorf("%q: %v: %s", cmd.Args, err, output)
			}
		})
	}
	if tests < 3 {
		t.Errorf("%d sets of values have a test", tests)
	}
}

// given are the Secrets that the sets of values expect to be there.
func given(t testing.TB) map[string]secret {
	t.Helper()
	ec := map[string]any{"algorithm": "ECDSA"}
	ca := issue(t, cluster.Object{"commonName": "CA", "isCA": true, "usages": []any{"cert sign"}, "privateKey": ec}, nil)
	serving := issue(t, cluster.Object{"dnsNames": []any{"registry.example.com"}, "usages": []any{"server auth"}, "privateKey": ec}, ca)
	var leaves []secret
	for range 2 {
		leaf := issue(t, cluster.Object{"commonName": "signing", "usages": []any{"digital signature"}, "privateKey": ec}, ca)
		leaf["tls.crt"] = append(leaf["tls.crt"], ca["tls.crt"]...) // leaf first, CA last
		delete(leaf, "ca.crt")
		leaves = append(leaves, leaf)
	}
	signing, gateway := leaves[0], leaves[1]
	return map[string]secret{
		"pullpass-serving": serving, "eu-pullpass-serving": serving, "wildcard-example-com": serving,
		"pullpass-signing": signing, "token-keys": signing, "mirror": signing,
		"pullpass-gateway-serving": serving, "pullpass-gateway-signing": gateway, "gateway-example-com": serving, "ghcr": {"password": []byte("a")}, "harbor": {"password": []byte("a")},
		"assertions":      issue(t, cluster.Object{"commonName": "assertions", "privateKey": map[string]any{"algorithm": "RSA"}}, nil),
		"pullpass-redis":  {"password": []byte("a"), "ca.crt": ca["tls.crt"]},
		"cluster-prod-ap": {}, // the configuration need not name it
		"prod-us": {"token": []byte("a"), "kubeconfig": []byte(`{apiVersion: v1, kind: Config, current-context: a,
			contexts: [{name: a, context: {cluster: a, user: a}}],
			clusters: [{name: a, cluster: {server: "https://api.prod-us.example.com:6443", certificate-authority: ../../config/prod-us-ca.crt}}],
			users: [{name: a, user: {tokenFile: token}}]}`)},
	}
}

// command is that of the only container of a workload, with the files of its volumes below a directory instead of /.
func command(t *testing.T, workload cluster.Object, rendered objects, secrets map[string]secret) *exec.Cmd {
	t.Helper()
	root := t.TempDir()
	container := list(workload, "spec", "template", "spec", "containers")[0]
	mounts := map[string]string{}
	for _, mount := range list(container, "volumeMounts") {
		if mount["readOnly"] != true {
			t.Errorf("mount %v can be written to", mount)
		}
		mounts[mount.Text("name")] = mount.Text("mountPath")
	}
	for _, volume := range list(workload, "spec", "template", "spec", "volumes") {
		directory := filepath.Join(root, mounts[volume.Text("name")])
		delete(mounts, volume.Text("name"))
		testenv.Must(t, os.MkdirAll(directory, 0o755))
		for name, content := range contents(t, volume, rendered, secrets) {
			// Absolute names in files stand for the pod's root.
			text := strings.NewReplacer("/etc/pullpass/", root+"/etc/pullpass/", "/var/run/", root+"/var/run/").Replace(string(content))
			testenv.WriteFile(t, filepath.Join(directory, name), text)
		}
	}
	if len(mounts) > 0 {
		t.Errorf("no volumes for the mounts %v", mounts)
	}
	args := texts(container["args"])
	for i := range args {
		args[i] = strings.NewReplacer("/etc/pullpass/", root+"/etc/pullpass/", "/var/run/", root+"/var/run/").Replace(args[i])
	}
	return exec.CommandContext(t.Context(), programs.Pullpass(t), args...)
}

// contents are the files of a volume.
func contents(t *testing.T, volume cluster.Object, rendered objects, secrets map[string]secret) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	add := func(source cluster.Object) {
		t.Helper()
		name := source.Text("configMap", "name")
		switch {
		case source["serviceAccountToken"] != nil:
			files["token"] = []byte("token")
		case source["downwardAPI"] != nil:
			for _, item := range list(source, "downwardAPI", "items") {
				if field := item.Text("fieldRef", "fieldPath"); field != "metadata.namespace" {
					t.Errorf("the field %s is not known", field)
				}
				files[item.Text("path")] = []byte("default")
			}
		case name == "kube-root-ca.crt":
			files["ca.crt"] = authorities(secrets)
		case name != "":
			data, _ := rendered.named("ConfigMap", name)["data"].(map[string]any)
			if len(data) == 0 {
				t.Errorf("no ConfigMap %s", name)
			}
			for file, content := range data {
				files[file] = []byte(fmt.Sprint(content))
				if strings.HasSuffix(fmt.Sprint(content), "-CA") { // for certificates that are made anew each time
					files[file] = authorities(secrets)
				}
			}
		default:
			made := secrets[source.Text("secret", "secretName")]
			if made == nil {
				t.Errorf("no Secret for %v", source)
			}
			maps.Copy(files, made)
		}
	}
	if sources := list(volume, "projected", "sources"); len(sources) > 0 {
		for _, source := range sources {
			add(source)
		}
		return files
	}
	add(volume)
	return files
}

// authorities are the CAs of all Secrets.
func authorities(secrets map[string]secret) (bundle []byte) {
	for _, made := range secrets {
		bundle = append(bundle, made["ca.crt"]...)
	}
	return bundle
}
