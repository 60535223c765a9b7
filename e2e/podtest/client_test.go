package podtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/node"
	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// The User-Agents begin so.
const (
	clientAgent = "client-in-pod "
	driverAgent = "csidriver "
)

// client is a pod with a registry client.
type client struct {
	pod     cluster.Object
	address string
}

type clients struct {
	documented client // the pod of docs/how-to/in-pod.md
	copied     client // another that mounts its token with subPath, which the document forbids
}

// startClients runs the pods, whose image has the helper and the registry's CA in it.
func (s *site) startClients(t testing.TB) clients {
	t.Helper()
	read := func(file string) []byte {
		return []byte(testenv.ReadFile(t, file))
	}
	s.push(t, team, "builder:latest", node.ProgramImage(t,
		node.File{Path: "/usr/local/bin/docker-credential-pullpass", Content: read(programs.CredentialHelper(t))},
		node.File{Path: "/usr/local/bin/client", Content: read(programs.PodClient(t))},
		node.File{Path: "/etc/ssl/certs/ca-certificates.crt", Content: read(s.ca.File)}))
	c := clients{client{address: process.FreeAddress(t)}, client{address: process.FreeAddress(t)}}

	// The cluster has no scheduler, and only the network of the node.
	manifest := testenv.Replace(t, document(t, "how-to/in-pod.md"), "\n  serviceAccountName: builder\n",
		"\n  serviceAccountName: builder\n  nodeName: "+s.node.Name()+"\n  hostNetwork: true\n  terminationGracePeriodSeconds: 0\n")
	const command = "[crane, copy, registry.example.com/team-a/web:rc, registry.example.com/team-a/web:v1]"
	s.Kubectl(t, testenv.Replace(t, manifest, command, fmt.Sprintf("[client, %q]", c.documented.address)), "create", "-f", "-")

	_, manifest, _ = strings.Cut(manifest, "\n---\n") // the ConfigMap is there
	manifest = testenv.Replace(t, manifest, command, fmt.Sprintf("[client, %q]", c.copied.address))
	manifest = testenv.Replace(t, manifest, "name: builder, namespace", "name: copied, namespace")
	manifest = testenv.Replace(t, manifest, "    env:\n", "    env:\n    - {name: PULLPASS_TOKEN_FILE, value: /copy/token}\n")
	s.Kubectl(t, testenv.Replace(t, manifest, "    volumeMounts:\n", "    volumeMounts:\n    - {name: pullpass, mountPath: /copy/token, subPath: token}\n"), "create", "-f", "-")

	c.documented.pod = s.awaitRunning(t, "builder")
	s.saw("the pod of docs/how-to/in-pod.md", "runs")
	c.copied.pod = s.awaitRunning(t, "copied")
	for _, started := range []client{c.documented, c.copied} {
		testenv.Await(t, podLimit, "the client listens", func() bool {
			resp, err := http.Get("http://" + started.address)
			if err == nil {
				_ = resp.Body.Close()
			}
			return err == nil
		})
	}
	return c
}

// ask lets the client do something. The error is what the client was told.
func (c client) ask(path string, images ...string) error {
	query := url.Values{}
	for i, image := range images {
		query.Set([]string{"from", "to"}[i], image)
	}
	resp, err := http.Get("http://" + c.address + path + "?" + query.Encode())
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New(strings.TrimSpace(string(content)))
	}
	return nil
}

// A client pulls and pushes in the repositories of its team and nowhere else. The pod has an event for each refusal.
func (s *site) testClient(t *testing.T, c client, own, other string) {
	t.Helper()
	testenv.Must(t, c.ask("/pull", own))
	id := s.pushAs(t, c, own)
	s.saw("a client in a pod pulls and pushes", "with %s", id)
	for _, e := range events(t, s.proxy, c.pod, clientAgent) {
		if e.ServiceAccount.Name != "builder" || e.Namespace != team || e.Node.Name != s.node.Name() || e.CredentialID != id {
			t.Errorf("audit %+v", e)
		}
	}
	for _, refused := range []struct {
		what, path, scope string
		images            []string
	}{
		{"pulls another team's image", "/pull", otherTeam + "/web:pull", []string{other}},
		{"pushes to another team", "/copy", otherTeam + "/app:pull,push", []string{own, registryName + "/" + otherTeam + "/app:v1"}},
	} {
		err := c.ask(refused.path, refused.images...)
		if err == nil {
			t.Errorf("a client in a pod %s", refused.what)
		}
		e := s.audited(t, c.pod, "repository:"+refused.scope)
		if e.Reason != "scope_not_granted" || len(e.Granted) > 0 {
			t.Errorf("audit %+v", e)
		}
		s.saw("a client in a pod "+refused.what, "%v", err)
		s.saw("… and its pod's event says", "%s", s.awaitMessage(t, c.pod, "ImagePullDenied: ", "repository:"+refused.scope, "Remedy: "))
	}
}

// pushAs lets a client push into a new repository of its team, and returns the id of the token that it used.
func (s *site) pushAs(t testing.TB, c client, own string) string {
	t.Helper()
	s.pushes++
	repository := fmt.Sprintf("%s/app-%d", team, s.pushes)
	testenv.Must(t, c.ask("/copy", own, registryName+"/"+repository+":v1"))
	e := s.audited(t, c.pod, "repository:"+repository+":pull,push")
	if e.Result != "granted" || e.CredentialID == "" {
		t.Errorf("audit %+v", e)
	}
	return e.CredentialID
}

// audited is the audit line about a request of a pod for a scope.
func (s *site) audited(t testing.TB, pod cluster.Object, scope string) pullpass.Event {
	t.Helper()
	return s.proxy.AwaitAudit(t, 0, scope, func(e pullpass.Event) bool { return about(e, pod, "") && slices.Contains(e.Requested, scope) })
}

// tokenID is the id of the token that the kubelet has written for a pod, as the audit log writes it.
func (s *site) tokenID(t testing.TB, pod cluster.Object) string {
	t.Helper()
	content := testenv.Value(s.node.Command("cat", "/var/lib/kubelet/pods/"+pod.UID()+"/volumes/kubernetes.io~projected/pullpass/token").Output())(t)
	token := string(content)
	s.proxy.NeverLog(token)
	var claims struct {
		ID string `json:"jti"`
	}
	testenv.Must(t, json.Unmarshal(testenv.TokenPart(t, token, 1), &claims))
	return "JTI=" + claims.ID
}
