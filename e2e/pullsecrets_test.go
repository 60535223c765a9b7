package e2e

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// TestPullSecrets takes imagePullSecrets away from a ServiceAccount as "pullpass pull-secrets" says, with a real API server:
// its admission copies them into pods, it sends what is asked for as Protobuf, and it judges the patches.
func TestPullSecrets(t *testing.T) {
	s := startSite(t, cluster.Options{})
	proxy := s.pullpass(t, s.config())
	admin := s.AdminKubeconfig(t)
	type row struct {
		Verdict, Kind, Name, Command string
		Secrets                      []string
	}
	rows := func() (all []row) {
		t.Helper()
		out := proxy.Command(t, "pull-secrets", "--kubeconfig", admin, "--registry", "localhost:5443", "--namespace", "moving", "-o", "json")
		if strings.Contains(out, "sekret") {
			t.Errorf("a Secret is shown:\n%s", out)
		}
		var report struct{ Rows []row }
		testenv.Must(t, json.Unmarshal([]byte(out), &report))
		return report.Rows
	}
	expect := func(what string, got []row, want ...string) {
		t.Helper()
		var lines []string
		for _, r := range got {
			lines = append(lines, r.Verdict+": "+r.Kind+" "+r.Name+" "+strings.Join(r.Secrets, ","))
		}
		if strings.Join(lines, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s:\n%s\nwant\n%s", what, strings.Join(lines, "\n"), strings.Join(want, "\n"))
		}
	}

	s.CreateNamespace(t, "moving", nil)
	s.Create(t, "/api/v1/namespaces/moving/secrets", cluster.Object{
		"metadata": cluster.Object{"name": "regcred"}, "type": "kubernetes.io/dockerconfigjson",
		"stringData": cluster.Object{".dockerconfigjson": `{"auths":{"localhost:5443":{"username":"sekret","password":"sekret"}}}`},
	})
	s.Create(t, "/api/v1/namespaces/moving/serviceaccounts", cluster.Object{
		"metadata": cluster.Object{"name": "web"}, "imagePullSecrets": []cluster.Object{{"name": "regcred"}},
	})
	s.Create(t, "/api/v1/namespaces/moving/secrets", cluster.Object{
		"metadata": cluster.Object{"name": "web-token", "annotations": cluster.Object{"kubernetes.io/service-account.name": "web"}},
		"type":     "kubernetes.io/service-account-token",
	})
	pod := s.Create(t, "/api/v1/namespaces/moving/pods", cluster.Object{
		"metadata": cluster.Object{"name": "web-0"},
		"spec": cluster.Object{"serviceAccountName": "web", "automountServiceAccountToken": false,
			"containers": []cluster.Object{{"name": "c", "image": "localhost:5443/moving/web:v1"}}},
	})
	found := rows()
	expect("before", found, "not checked: Nodes localhost:5443 ", "ready: ServiceAccount web regcred", "ready: Pod web-0 regcred",
		"still used: Secret regcred ", "unknown: Secret web-token ")

	// The command of the row, as kubectl sends it.
	_, after, ok := strings.Cut(found[1].Command, " patch serviceaccount web --type=json -p ")
	if !ok {
		t.Fatalf("the command is %q", found[1].Command)
	}
	patch := func() int {
		t.Helper()
		req := testenv.Value(http.NewRequestWithContext(t.Context(), http.MethodPatch, s.Issuer+"/api/v1/namespaces/moving/serviceaccounts/web",
			bytes.NewReader([]byte(strings.Trim(after, "'")))))(t)
		req.Header.Set("Content-Type", "application/json-patch+json")
		resp := testenv.Value(s.CA.Transport(t, s.Admin.TLS(t)).RoundTrip(req))(t)
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	if code := patch(); code != http.StatusOK {
		t.Errorf("the patch is answered %d", code)
	}
	if code := patch(); code != http.StatusUnprocessableEntity {
		t.Errorf("the patch, where the name is not there any more, is answered %d", code)
	}
	// They have no owner any more, so they count as the pod's own.
	expect("after the ServiceAccount", rows(), "not checked: Nodes localhost:5443 ", "ready: Pod web-0 regcred", "still used: Secret regcred ", "unknown: Secret web-token ")
	s.Delete(t, cluster.PodPath(pod))
	expect("after the pod", rows(), "not checked: Nodes localhost:5443 ", "unused: delete: Secret regcred ", "unknown: Secret web-token ")
}
