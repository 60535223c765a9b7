package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/kubetest"
	"github.com/pullpass/pullpass/internal/testkit"
)

const gatewayConfig = `apiVersion: pullpass.dev/v1alpha1
kind: ProxyConfiguration
clusters: [{name: prod, issuer: "https://issuer.example.com", audiences: [gateway.example.com]}]
registries: [{service: gateway.example.com, issuer: pullpass.example.com}]
gateway: {url: https://gateway.example.com, service: gateway.example.com}
upstreams: [{name: ghcr.io}]
policyFiles: [policy.yaml]
`

// The agent says on the Node, in its metrics and to "status" what keeps the node from being installed.
func TestNodeInstallRunAndStatus(t *testing.T) {
	t.Parallel()
	api := kubetest.NewAPIServer(t)
	api.Set("nodes", "node1", "status", kubetest.Object{
		"nodeInfo":   kubetest.Object{"kubeletVersion": "v1.36.2"},
		"conditions": []any{kubetest.Object{"type": "Ready", "status": "True"}},
	})
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	testkit.Write(t, dir, "kubeconfig", api.Kubeconfig())
	testkit.Write(t, dir, "pullpass.yaml", gatewayConfig)
	testkit.Write(t, dir, "plugin", "the program")
	for name, content := range map[string]string{
		"var/lib/kubelet/kubeadm-flags.env":                        `KUBELET_KUBEADM_ARGS=""`,
		"usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf": "[Service]\nEnvironmentFile=-/etc/default/kubelet\n",
		"etc/default/other":                                        "",
	} {
		testkit.Must(t, os.MkdirAll(filepath.Join(dir, "host", filepath.Dir(name)), 0o755))
		testkit.Put(t, filepath.Join(dir, "host", name), content)
	}
	address := testkit.FreeAddress(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var stderr testkit.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"node-install", "run", "--node", "node1", "--namespace", "pullpass-nodes", "--host-root", filepath.Join(dir, "host"), "--kubeconfig", kubeconfig,
			"--config", filepath.Join(dir, "pullpass.yaml"), "--registry", "registry.example.com", "--service", "gateway.example.com", "--plugin", filepath.Join(dir, "plugin"), "--admin-address", address}, nil, io.Discard, &stderr)
	}()
	get := func(path string) (body string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
		testkit.Must(t, err)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return ""
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		testkit.Must(t, err)
		return string(text)
	}
	testkit.Eventually(t, "the agent has looked at its node", func() bool { return get("/readyz") == "ok\n" })
	testkit.Eventually(t, "the state is in the metrics", func() bool {
		return strings.Contains(get("/metrics"), `pullpass_node_install_state{node="node1",state="failed"} 1`)
	})

	status := func(args ...string) string {
		t.Helper()
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), append([]string{"node-install", "status", "--kubeconfig", kubeconfig}, args...), nil, &stdout, &stderr); code != 0 {
			t.Fatalf("exit code %d: %s", code, stderr.String())
		}
		return stdout.String()
	}
	text := status()
	for _, want := range []string{"NODE ", "node1   failed ", " v1.36.2 ", "systemd does not run the host", "node2   - ", "\n0 of 2 nodes are ready\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing:\n%s", want, text)
		}
	}
	if text := status("-o", "json"); !strings.Contains(text, `"state": "failed"`) {
		t.Error(text)
	}

	api.Put("leases", kubetest.Object{
		"metadata": kubetest.Object{"namespace": "pullpass-nodes", "name": "pullpass-node-install", "uid": "u", "annotations": kubetest.Object{
			"pullpass.dev/stopped": `{"node":"node2","uid":"uid-4","revision":"abc","reason":"\u001b[2J"}`,
		}},
		"spec": kubetest.Object{"holderIdentity": "node1/uid-3"},
	})
	api.Set("nodes", "node2", "annotations", kubetest.Object{"pullpass.dev/node-install": `{"state":"ready","profile":"k3s","revision":"\u001b[2J","since":"2026-01-02T03:04:05Z"}`})
	text = status()
	for _, want := range []string{"node2   ready    2026-01-02T03:04:05Z ", " k3s ", "\n1 of 2 nodes are ready; it is the turn of node1\n", `the roll-out of abc is stopped, because of the node node2: \x1b[2J`} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing:\n%s", want, text)
		}
	}
	if strings.Contains(text, "\x1b") {
		t.Errorf("an escape sequence of somebody's is printed:\n%q", text)
	}
	stop()
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d: %s", code, stderr.String())
	}
}
