package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/server/console"
	"github.com/pullpass/pullpass/internal/server/explain"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

type object = kubetest.Object

// rig is a cluster with a refused pod, and a Pullpass with its console.
type rig struct {
	*kubetest.Server
	kubeconfig string
	decisions  *console.Log
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{Server: kubetest.NewAPIServer(t), decisions: console.NewLog(console.LogConfig{})}
	dir := t.TempDir()
	testkit.Write(t, dir, "kubeconfig", r.Kubeconfig())
	r.kubeconfig = filepath.Join(dir, "kubeconfig")

	r.Put("pods", object{
		"metadata": object{"namespace": "team-a", "name": "web-0", "uid": "uid-2"},
		"spec":     object{"serviceAccountName": "web", "nodeName": "node1"},
		"status": object{"containerStatuses": []object{
			{"name": "app", "image": "registry.example.com/shared/base:1", "state": object{"waiting": object{"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}},
			{"name": "beside", "image": "registry.example.com/team-a/web:1", "state": object{"running": object{}}},
		}},
	}, object{
		"metadata": object{"namespace": "pullpass", "name": "pullpass-1", "uid": "uid-9", "labels": object{"app.kubernetes.io/name": "pullpass"}},
		"spec": object{"containers": []object{{
			"name": "pullpass", "image": "ghcr.io/pullpass/pullpass:v0.1.0", "args": []string{"serve", "--config", "/etc/pullpass/config/pullpass.yaml"},
			"ports": []object{{"name": "https", "containerPort": 8443}, {"name": "admin", "containerPort": 9191}},
		}}},
		"status": object{"conditions": []object{{"type": "Ready", "status": "True"}}},
	})
	r.Put("serviceaccounts", object{"metadata": object{"namespace": "team-a", "name": "web", "uid": "uid-1", "annotations": object{
		"pullpass.dev/repositories": "base/go", "kubectl.kubernetes.io/last-applied-configuration": "{}",
	}}})
	r.Put("events", r.event("e1", "Pullpass refused repository:shared/base:pull at registry.example.com: no rule. Remedy: ask", object{"kind": "Pod", "name": "web-0", "uid": "uid-2"}, "pullpass"),
		r.event("e2", "of the pod before it", object{"kind": "Pod", "name": "web-0", "uid": "uid-0"}, "pullpass"),
		r.event("e3", "of another program", object{"kind": "Pod", "name": "web-0", "uid": "uid-2"}, "other"))
	r.Put("repositoryaccesses", object{
		"metadata": object{"namespace": "team-a", "name": "web"},
		"spec":     object{"serviceAccounts": []string{"web"}, "repositories": []string{"shared/base"}, "actions": []string{"pull"}},
		"status": object{"observedGeneration": 1,
			"conditions":   []object{{"type": "Granted", "status": "False", "reason": "NothingGranted", "message": "0 of 1 repositories are granted"}},
			"repositories": []object{{"repository": "shared/base", "granted": "None", "reason": "no rule allows it", "remedy": "ask an administrator"}},
		},
	}, object{
		"metadata": object{"namespace": "team-a", "name": "of-others"},
		"spec":     object{"serviceAccounts": []string{"api"}, "repositories": []string{"x"}, "actions": []string{"pull"}},
	})
	r.Fail("create pods/portforward", r.forward(r.console(t), "9191"))
	return r
}

func (*rig) event(name, message string, about object, component string) object {
	return object{
		"metadata": object{"namespace": "team-a", "name": name}, "involvedObject": about, "reason": "ImagePullDenied", "message": message, "count": 4,
		"lastTimestamp": time.Now().Add(-time.Minute).UTC().Format(time.RFC3339), "source": object{"component": component},
	}
}

// console serves a real one, of a policy without network.
func (r *rig) console(t *testing.T) *httptest.Server {
	t.Helper()
	dir := t.TempDir()
	testkit.Write(t, dir, "policy.yaml", `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- {name: own, subjects: [{namespaces: ["team-*"]}], allow: [{repositories: ["{namespace}/**"], actions: [pull]}]}
`)
	testkit.Write(t, dir, "accounts.yaml", `
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: ServiceAccount, metadata: {name: web, namespace: team-a, uid: uid-1}}
`)
	cfg := testkit.Value(config.Parse([]byte(`
apiVersion: pullpass.dev/v1beta1
kind: ProxyConfiguration
clusters:
- {name: prod-eu, issuer: "https://oidc.example.com", audiences: [registry.example.com], kubernetes: {manifestFiles: [accounts.yaml]}}
registries: [{service: registry.example.com, issuer: pullpass.example.com}]
policyFiles: [policy.yaml]
`), filepath.Join(dir, "pullpass.yaml"), dir))(t)
	known := testkit.Value(explain.Open(cfg, t.Output()))(t)
	h := testkit.Value(console.New(console.Config{
		Log: r.decisions, Known: func() explain.Known { return known }, Health: func() []console.Group { return nil }, Logger: slog.New(slog.DiscardHandler),
	}))(t)
	mux := http.NewServeMux()
	mux.Handle(console.Prefix, h)
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"ready": true, "checks": {"issuers": [{"name": "prod-eu", "healthy": true}], "redis": [{"name": "redis:6379", "healthy": false, "message": "connection refused"}]}}`)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

// decide has Pullpass note a decision about the pod.
func (r *rig) decide(t *testing.T, scope string, result exchange.Result) {
	t.Helper()
	go r.decisions.Run(t.Context())
	r.decisions.Record(&exchange.Event{
		Time: time.Now(), ID: "DECISION", Result: result, Status: 200, Cluster: "prod-eu", Namespace: "team-a", ServiceAccount: &exchange.Object{Name: "web", UID: "uid-1"},
		Pod: &exchange.Object{Name: "web-0", UID: "uid-2"}, Node: &exchange.Object{Name: "node1", UID: "uid-3"}, GrantType: "basic", Service: "registry.example.com", Requested: []string{scope},
	})
}

// upgraded makes a connection of a request, and calls each for its streams, one after the other.
func upgraded(w http.ResponseWriter, r *http.Request, protocol string, each func(httpstream.Stream)) {
	if _, err := httpstream.Handshake(r, w, []string{protocol}); err != nil {
		return
	}
	streams := make(chan httpstream.Stream, 3)
	connection := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, _ <-chan struct{}) error {
		streams <- stream
		return nil
	})
	if connection == nil {
		return
	}
	defer connection.Close()
	for {
		select {
		case <-connection.CloseChan():
			return
		case stream := <-streams:
			each(stream)
		}
	}
}

// forward is a kubelet that forwards one port to a server.
func (*rig) forward(to *httptest.Server, port string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var faults httpstream.Stream
		upgraded(w, r, "portforward.k8s.io", func(stream httpstream.Stream) {
			switch {
			case stream.Headers().Get(corev1.StreamType) == corev1.StreamTypeError:
				faults = stream
			case stream.Headers().Get(corev1.PortHeader) != port:
				io.WriteString(faults, "connection \x1b[1mrefused: port "+stream.Headers().Get(corev1.PortHeader))
				faults.Close()
				stream.Close()
			default:
				backend, err := net.Dial("tcp", to.Listener.Addr().String())
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(backend, stream) }()
				go func() { _, _ = io.Copy(stream, backend); stream.Close(); backend.Close() }()
			}
		})
	}
}

// runs is a kubelet that runs a program: it prints its arguments, and ends with an exit code.
func (*rig) runs(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		upgraded(w, r, "v4.channel.k8s.io", func(stream httpstream.Stream) {
			switch stream.Headers().Get(corev1.StreamType) {
			case corev1.StreamTypeStdout:
				fmt.Fprintf(stream, "%s: %q", query.Get("container"), query["command"])
			case corev1.StreamTypeStderr:
				fmt.Fprint(stream, "and its errors\x1b[2J")
			default:
				status := object{"status": "Success"}
				if code != 0 {
					status = object{"status": "Failure", "reason": "NonZeroExitCode", "details": object{"causes": []object{{"reason": "ExitCode", "message": strconv.Itoa(code)}}}}
				}
				json.NewEncoder(stream).Encode(status)
			}
			stream.Close()
		})
	}
}

// kubectl runs the plugin.
func (r *rig) kubectl(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errors bytes.Buffer
	code = run(t.Context(), append(args, "--kubeconfig", r.kubeconfig), &out, &errors)
	return code, out.String(), errors.String()
}

// expect runs the plugin, and wants texts in its output, or absent after "!".
func (r *rig) expect(t *testing.T, wantCode int, command string, wants ...string) string {
	t.Helper()
	code, stdout, stderr := r.kubectl(t, strings.Fields(command)...)
	if code != wantCode {
		t.Errorf("%s: exit code %d, want %d", command, code, wantCode)
	}
	for _, want := range wants {
		text, unwanted := strings.CutPrefix(want, "!")
		if strings.Contains(stdout+stderr, text) == unwanted {
			t.Errorf("%s: want %q", command, want)
		}
	}
	if t.Failed() {
		t.Logf("%s:\n%s%s", command, stdout, stderr)
	}
	return stdout
}

var forbidden = kubetest.Status(http.StatusForbidden, "Forbidden", "it is forbidden")

func TestWhy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	objects := []string{
		"pod          team-a/web-0, on node node1\naccount      web\n",
		"waiting      app for registry.example.com/shared/base:1: ImagePullBackOff: Back-off pulling image\n",
		"refused      1m", "s ago (4 times): Pullpass refused repository:shared/base:pull at registry.example.com: no rule. Remedy: ask\n",
		`annotation   pullpass.dev/repositories: "base/go"`,
		"request      RepositoryAccess web; Granted False (NothingGranted): 0 of 1 repositories are granted\n             shared/base: None: no rule allows it\n             remedy: ask an administrator\n",
		"!of-others", "!last-applied", "!of the pod before it", "!of another program",
	}
	r.expect(t, 1, "why web-0 -n team-a", append(objects, "not known    explanation: Pullpass remembers no decision about this pod")...)
	r.decide(t, "repository:shared/base:pull", exchange.ResultNone)
	testkit.Eventually(t, "the decision is explained", func() bool {
		_, stdout, _ := r.kubectl(t, "why", "web-0", "-n", "team-a")
		return strings.Contains(stdout, "now          none 200")
	})
	r.expect(t, 1, "why web-0 -n team-a", append(objects, "\nsubject      prod-eu/team-a/web, ServiceAccount UID uid-1\n", "changed      reason: none -> scope_not_granted", "!not known")...)

	var answer struct {
		Refusals []struct{ Count int }
		Requests []struct {
			Status struct{ Repositories []struct{ Granted string } }
		}
		Explanation struct{ Now struct{ Result string } }
	}
	testkit.Must(t, json.Unmarshal([]byte(r.expect(t, 1, "why web-0 -n team-a -o json")), &answer))
	if len(answer.Refusals) != 1 || answer.Refusals[0].Count != 4 || answer.Requests[0].Status.Repositories[0].Granted != "None" || answer.Explanation.Now.Result != "none" {
		t.Errorf("%+v", answer)
	}
}

// A repository that is granted now is not refused, also if an event says so.
func TestWhyOfGrantedPod(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.decide(t, "repository:team-a/web:pull", exchange.ResultGranted)
	testkit.Eventually(t, "the decision is explained", func() bool {
		code, _, _ := r.kubectl(t, "why", "web-0", "-n", "team-a")
		return code == 0
	})
	r.Fail("list events", forbidden)
	r.expect(t, 0, "why web-0 -n team-a", "not known    events: ")
}

// Each part that the user may not read is named, with the command that checks the right.
func TestWhyNamesMissingRights(t *testing.T) {
	t.Parallel()
	for request, want := range map[string]string{
		"list events":             "not known    events: you may not list events in namespace team-a; an administrator can allow it; to check, run: kubectl auth can-i list events -n team-a --kubeconfig=",
		"get serviceaccounts":     "not known    annotations: you may not get serviceaccounts in namespace team-a; an administrator can allow it; to check, run: kubectl auth can-i get serviceaccounts -n team-a ",
		"list repositoryaccesses": "not known    RepositoryAccess: you may not list repositoryaccesses.pullpass.dev in namespace team-a; ",
		"list pods":               "not known    explanation: you may not list pods in namespace pullpass; ",
		"create pods/portforward": "not known    explanation: you may not create pods/portforward in namespace pullpass; an administrator can allow it; to check, run: kubectl auth can-i create pods --subresource=portforward -n pullpass ",
	} {
		t.Run(request, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.Fail(request, forbidden)
			code := 1
			if request == "list events" { // and there is no decision: nothing is known
				code = 2
			}
			out := r.expect(t, code, "why web-0 -n team-a", "pod          team-a/web-0", want)
			if request == "list events" && strings.Contains(out, "no event of Pullpass") {
				t.Errorf("an unknown is told as none: %s", out)
			}
		})
	}
}

func TestWhyCannotAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.expect(t, 2, "why gone -n team-a", `namespace team-a has no pod "gone"`)
	r.expect(t, 2, "why web-0 -n team-a -o yaml", `--output "yaml" is not known`)
	r.expect(t, 2, "why", "accepts 1 arg(s), received 0")
	r.expect(t, 2, "why web-0 --context other", `context "other" does not exist`)
	r.expect(t, 1, "why web-0 -n team-a --pullpass-namespace other", "namespace other has no pod with the label app.kubernetes.io/name=pullpass; name the namespace of Pullpass with --pullpass-namespace")
	r.Fail("list repositoryaccesses", kubetest.Status(http.StatusNotFound, "NotFound", "the server could not find the requested resource"))
	r.Fail("create pods/portforward", r.forward(httptest.NewServer(http.NotFoundHandler()), "9191"))
	r.expect(t, 1, "why web-0 -n team-a", "RepositoryAccess: the cluster has no RepositoryAccess objects", "explanation: the console of Pullpass is off, or too old")
	r.Fail("create pods/portforward", r.forward(nil, "1"))
	r.expect(t, 1, "why web-0 -n team-a", "explanation: pod pullpass-1 of namespace pullpass: the port-forward: connection ?[1mrefused: port 9191")
	r.Fail("get pods", forbidden)
	r.expect(t, 2, "why web-0 -n team-a", "you may not get pods in namespace team-a; ", "auth can-i get pods -n team-a")
}

func TestCanI(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.expect(t, 0, "can-i pull team-a/web --as team-a/web", "subject      prod-eu/team-a/web", "now          granted 200")
	r.expect(t, 0, "can-i pull team-a/web --as web -n team-a", "now          granted 200")
	r.expect(t, 1, "can-i pull,push team-a/web --as prod-eu/team-a/web", "now          partial 200")
	r.expect(t, 1, "can-i pull shared/base --as team-a/web", "now          none 200")
	r.expect(t, 1, "can-i pull shared/base --as team-a/web -o json", `"result": "none"`, `"kind": "Explanation"`)
	r.expect(t, 2, "can-i eat%20 x --as team-a/web", "--scope")
	r.expect(t, 2, "can-i pull x --as team-a/web --service other", `"other" is not configured`)
	r.expect(t, 2, "can-i pull x --as team-a/", `--as "team-a/" is not [NAMESPACE/]SERVICEACCOUNT`)
	r.expect(t, 2, "can-i pull x", `required flag(s) "as" not set`)
	r.expect(t, 2, "can-i pull x --as web -o yaml", `--output "yaml" is not known`)
	r.Fail("create pods/portforward", forbidden)
	r.expect(t, 2, "can-i pull x --as team-a/web", "kubectl pullpass: you may not create pods/portforward in namespace pullpass; ")
}

func TestWhoCanAndReach(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.expect(t, 0, "who-can pull team-a/web", "who can      pull team-a/web", "1 of 1 ServiceAccounts")
	r.expect(t, 0, "who-can push team-a/web -o json", `"kind": "WhoCan"`, `"rules": []`)
	r.expect(t, 2, "who-can eat team-a/web", "is not an action; use pull, push or delete")
	r.expect(t, 2, "who-can pull", "accepts 2 arg(s)")
	r.expect(t, 0, "reach web -n team-a", "subject      prod-eu/team-a/web", "team-a/**: pull")
	r.expect(t, 0, "reach team-a/web -o json", `"serviceAccount": "prod-eu/team-a/web"`)
	r.expect(t, 2, "reach a/b/c/d", `SERVICEACCOUNT "a/b/c/d" is not`)
	r.expect(t, 2, "reach prod-us/team-a/web", "prod-us")
	r.Fail("list pods", forbidden)
	for _, command := range []string{"who-can pull x", "reach web"} {
		r.expect(t, 2, command, "you may not list pods in namespace pullpass; ")
	}
}

func TestRequest(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const manifest = `apiVersion: pullpass.dev/v1beta1
kind: RepositoryAccess
metadata:
  name: api
  namespace: team-a
spec:
  actions:
  - pull
  - push
  repositories:
  - team-a/api
  - shared/**
  serviceAccounts:
  - api
`
	if out := r.expect(t, 0, "request pull,push team-a/api shared/** --as team-a/api --dry-run=client -o yaml"); out != manifest {
		t.Errorf("got\n%s", out)
	}
	r.expect(t, 0, "request pull,push team-a/api --as api -n team-a --dry-run=client", "repositoryaccess.pullpass.dev/api created (dry run)\n")
	if r.Object("repositoryaccesses", "team-a", "api") != nil {
		t.Error("a dry run wrote the object")
	}
	r.expect(t, 0, "request pull team-a/api --as api -n team-a", "repositoryaccess.pullpass.dev/api created\n")
	written, _ := json.Marshal(r.Object("repositoryaccesses", "team-a", "api")["spec"])
	if string(written) != `{"actions":["pull"],"repositories":["team-a/api"],"serviceAccounts":["api"]}` {
		t.Errorf("%s", written)
	}
	r.expect(t, 2, "request pull team-a/api --as api -n team-a", "the RepositoryAccess api exists; choose another name with --name, or run: kubectl edit repositoryaccess api -n team-a")
	r.expect(t, 0, "request pull team-a/api --as api -n team-a --name more -o json", `"name": "more"`)
	r.expect(t, 2, "request eat team-a/api --as api", "RepositoryAccess pullpass/api: actions[0]")
	r.expect(t, 2, "request pull Team --as api", "repositories[0]")
	r.expect(t, 2, "request pull x --as a/b/c", "--as names a cluster")
	r.expect(t, 2, "request pull x --as api --dry-run=server", `--dry-run "server" is not known`)
	r.expect(t, 2, "request pull x --as api -o text", `--output "text" is not known; use name, json or yaml`)
	r.Fail("create repositoryaccesses", forbidden)
	r.expect(t, 2, "request pull x --as team-b/api", "you may not create repositoryaccesses.pullpass.dev in namespace team-b; ", "kubectl auth can-i create repositoryaccesses.pullpass.dev -n team-b")
	r.Fail("create repositoryaccesses", kubetest.Status(http.StatusNotFound, "NotFound", "the server could not find the requested resource"))
	r.expect(t, 2, "request pull x --as api", "the cluster has no RepositoryAccess objects")
}

func TestStatus(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.expect(t, 0, "status", "POD          READY   IMAGE                              FAILING\npullpass-1   yes     ghcr.io/pullpass/pullpass:v0.1.0   redis redis:6379: connection refused\n")
	r.expect(t, 0, "status -o json", `"pod": "pullpass-1"`, `"issuers": [`)
	r.expect(t, 2, "status -o yaml", `--output "yaml" is not known`)
	r.expect(t, 2, "status --pullpass-namespace other", "namespace other has no pod")
	r.Fail("create pods/portforward", forbidden)
	r.expect(t, 0, "status", "yes ", "not known: you may not create pods/portforward in namespace pullpass; ")
	pod := r.Object("pods", "pullpass", "pullpass-1")
	pod["status"] = object{}
	r.Put("pods", pod)
	r.expect(t, 1, "status", "pullpass-1   no ")
	r.Fail("list pods", forbidden)
	r.expect(t, 2, "status", "you may not list pods in namespace pullpass; ")
}

// Another program may answer in the place of Pullpass.
func TestOtherAnswers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const isOther = "the answer is not one of Pullpass"
	page := strings.Repeat("<p>", 1<<20)
	for _, test := range []struct {
		status            int
		body, who, checks string
	}{
		{200, `{}`, isOther, isOther},
		{200, `{"answer": {}, "checks": {}}`, isOther, isOther},
		{200, `{"text": "x", "checks": {"files": []}}`, isOther, "none"},
		{503, `{"problem": "it rains", "checks": {"files": []}}`, "it rains", "none"},
		{500, `{"problem": "` + page + `", "checks": {"files": []}}`, "<p>", "/readyz: 500: " + isOther},
		{404, `{"checks": {"files": []}}`, "remembers no decision", "/readyz: 404: " + isOther},
		{200, page, "invalid character", "invalid character"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(test.status)
			io.WriteString(w, test.body)
		}))
		t.Cleanup(server.Close)
		r.Fail("create pods/portforward", r.forward(server, "9191"))
		r.expectShort(t, 2, "who-can pull team-a/web", test.who)
		r.expectShort(t, 0, "status", test.checks)
	}
	html := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, page) }))
	t.Cleanup(html.Close)
	r.Fail("create pods/portforward", r.forward(html, "9191"))
	r.expectShort(t, 2, "who-can pull team-a/web", "the console of Pullpass: 200 <p>")
	r.Fail("create pods/portforward", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
		io.WriteString(w, page)
	})
	r.expectShort(t, 2, "who-can pull team-a/web", "<p>")
	r.expectShort(t, 0, "status", "not known: ")
}

// expectShort wants a text in a short output.
func (r *rig) expectShort(t *testing.T, wantCode int, command, want string) {
	t.Helper()
	code, stdout, stderr := r.kubectl(t, strings.Fields(command)...)
	if code != wantCode || len(stdout+stderr) > 8<<10 || !strings.Contains(stdout+stderr, want) {
		t.Errorf("%s: exit code %d, %d bytes: %.1000s\nwant %d, %q", command, code, len(stdout+stderr), stdout+stderr, wantCode, want)
	}
}

func TestNodes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Set("nodes", "node1", "annotations", object{"pullpass.dev/node-install": `{"state":"ready","profile":"kubeadm","since":"2026-03-01T12:00:00Z"}`})
	r.expect(t, 0, "nodes", "node1   ready   2026-03-01T12:00:00Z", "node2   -       -", "1 of 2 nodes are ready")
	r.expect(t, 0, "nodes -o json", `"state": "ready"`)
	r.Set("nodes", "node2", "annotations", object{"pullpass.dev/node-install": `{"state":"failed","reason":"` + strings.Repeat("x", 100_000) + `"}`}) // by a node taken over
	r.expect(t, 0, "nodes", strings.Repeat("x", 497)+"...", "!"+strings.Repeat("x", 498))
	r.expect(t, 2, "nodes -o yaml", `--output "yaml" is not known`)
	r.Fail("get leases", forbidden)
	r.expect(t, 0, "nodes", "1 of 2 nodes are ready", "the turn is not known: you may not get leases in namespace pullpass-nodes; ")
	r.Fail("list nodes", forbidden)
	r.expect(t, 2, "nodes", "you may not list nodes in the cluster; an administrator can allow it; to check, run: kubectl auth can-i list nodes --kubeconfig=")
}

// Two releases in one namespace have policies and revocations of their own.
func TestReleases(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Fail("create pods/exec", r.runs(0))
	second := r.Object("pods", "pullpass", "pullpass-1")
	second["metadata"] = object{"namespace": "pullpass", "name": "staging-1", "labels": object{"app.kubernetes.io/name": "pullpass", "app.kubernetes.io/instance": "staging"}}
	second["spec"] = object{"containers": []object{{"name": "second", "args": []string{"serve", "--config=/staging.yaml"}}}}
	r.Put("pods", second)
	for _, command := range []string{"revoke list", "who-can pull x", "status", "audit"} {
		r.expect(t, 2, command, `namespace pullpass has Pullpass of several releases: ["" "staging"]; choose one with --release`)
	}
	r.expect(t, 0, "revoke list --release staging", `second: ["/pullpass" "revoke" "list" "--config=/staging.yaml"]`)
	r.expect(t, 2, "revoke list --release other", "namespace pullpass has no pod with the label app.kubernetes.io/name=pullpass,app.kubernetes.io/instance=other; name the namespace of Pullpass with --pullpass-namespace, or correct --release")
}

func TestRevoke(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Fail("create selfsubjectreviews", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1", "status": {"userInfo": {"username": "alice@example.com"}}}`)
	})
	r.Fail("create pods/exec", r.runs(0))
	const begin = `pullpass: ["/pullpass" "revoke" `
	r.expect(t, 0, "revoke --node prod-eu/worker-17 --for 4h --reason examined",
		begin+`"--config=/etc/pullpass/config/pullpass.yaml" "--node=prod-eu/worker-17" "--reason=examined" "--for=4h" "--by=alice@example.com"]`, "and its errors")
	r.expect(t, 0, "revoke undo --pod-uid 7 --by bob", begin+`"undo" "--config=/etc/pullpass/config/pullpass.yaml" "--pod-uid=7" "--by=bob"]`)
	r.expect(t, 0, "revoke list", begin+`"list" "--config=/etc/pullpass/config/pullpass.yaml"]`)
	r.expect(t, 2, "revoke list --node x", "unknown flag: --node")
	r.Count("")
	r.expect(t, 2, "revoke --token-id "+strings.Repeat("x", 300)+" --reason x", "--token-id: not a valid token id", "!xxx")
	if n := r.Count(""); n != 0 {
		t.Errorf("%d requests with an invalid token id", n)
	}
	r.Fail("create pods/exec", r.runs(1))
	r.expect(t, 2, "revoke list", "and its errors?[2J", "!kubectl pullpass:", "!\x1b")
	r.Fail("create pods/exec", kubetest.Status(http.StatusInternalServerError, "InternalError", "from a kubelet\x1b[2J"))
	r.expect(t, 2, "revoke list", "from a kubelet?[2J", "!\x1b")
	r.Fail("create pods/exec", forbidden)
	r.expect(t, 2, "revoke list", "you may not create pods/exec in namespace pullpass; ", "kubectl auth can-i create pods --subresource=exec -n pullpass")
	r.Fail("create selfsubjectreviews", forbidden)
	r.expect(t, 2, "revoke --node a/b --reason x", "you may not create selfsubjectreviews.authentication.k8s.io in the cluster; ")
	pod := r.Object("pods", "pullpass", "pullpass-1")
	pod["spec"] = object{"containers": []object{{"name": "other"}}}
	r.Put("pods", pod)
	r.expect(t, 2, "revoke list", "pod pullpass-1 of namespace pullpass: no container has the argument --config")
}

func TestAudit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	line := func(id, repository string) string {
		return fmt.Sprintf(`{"time":"2026-03-01T12:00:00Z","id":%q,"result":"granted","status":200,"requested":["repository:%s:pull"],"granted":["repository:%s:pull"]}`+"\n", id, repository, repository)
	}
	second := r.Object("pods", "pullpass", "pullpass-1")
	second["metadata"] = object{"namespace": "pullpass", "name": "pullpass-2", "labels": object{"app.kubernetes.io/name": "pullpass"}}
	r.Put("pods", second)
	r.Fail("get pods", func(w http.ResponseWriter, q *http.Request) {
		switch {
		case q.URL.Query().Get("container") != "pullpass":
		case strings.HasSuffix(q.URL.Path, "/pods/pullpass-1/log"):
			io.WriteString(w, line("FIRST", "team-a/web")+line("OTHER", "team-b/api")+`{"time": "cut`)
		case strings.HasSuffix(q.URL.Path, "/pods/pullpass-2/log"):
			io.WriteString(w, line("SECOND", "team-a/web"))
		}
	})
	r.expect(t, 0, "audit --repository team-a/web", "FIRST", "SECOND", "!OTHER", "warning: 1 lines are damaged")
	r.expect(t, 0, "audit -o json", `"id":"OTHER"`)
	r.expect(t, 2, "audit --repository=", "--repository is empty; leave it out to search without it")
	r.expect(t, 2, "audit --since x", `--since "x" is neither a time`)
	r.expect(t, 2, "audit -o table", `--output "table" is not known`)
	r.Fail("get pods", forbidden)
	r.expect(t, 2, "audit", "kubectl pullpass: you may not get pods/log in namespace pullpass; ", "kubectl auth can-i get pods --subresource=log -n pullpass")
}
