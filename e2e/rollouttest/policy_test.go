package rollouttest

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// A pod of the installer can do to its own Node what it has to, and nothing else; to others nothing.
func TestRights(t *testing.T) {
	t.Parallel()
	f := startRights(t)
	token, unbound := f.installerOn(t, "own"), f.Token(t, cluster.TokenRequest{Namespace: namespace, ServiceAccount: "pullpass-node-install"})
	metadata := func(field string, change cluster.Object) cluster.Object {
		return cluster.Object{"metadata": cluster.Object{field: change}}
	}
	const (
		node   = "/api/v1/nodes/own"
		leases = "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases"
		events = "/api/v1/namespaces/default/events"
	)
	event := func(name string) cluster.Object {
		return cluster.Object{"metadata": cluster.Object{"generateName": "e-"}, "involvedObject": cluster.Object{"kind": "Node", "name": name}, "reason": "A", "message": "a", "type": "Normal"}
	}
	others := event("other")
	others["metadata"] = cluster.Object{"name": "others"}
	f.Create(t, events, others)
	lease := func(holder string) cluster.Object {
		return cluster.Object{"metadata": cluster.Object{"name": "pullpass-node-install"}, "spec": cluster.Object{"holderIdentity": holder}}
	}
	for _, c := range []struct {
		name, token, method, path string
		body                      cluster.Object
		refused                   string // "": it is not
	}{
		{"another Node", token, http.MethodPatch, "/api/v1/nodes/other", metadata("annotations", cluster.Object{key: "{}"}), "the Node is not the one that the token is for"},
		{"a token of no pod", unbound, http.MethodPatch, node, metadata("annotations", cluster.Object{key: "{}"}), "the token names no node"},
		{"another label", token, http.MethodPatch, node, metadata("labels", cluster.Object{"a": "c"}), "no other label"},
		{"one label less", token, http.MethodPatch, node, metadata("labels", cluster.Object{"a": nil}), "no other label"},
		{"one label more", token, http.MethodPatch, node, metadata("labels", cluster.Object{"node-role.kubernetes.io/control-plane": ""}), "no other label"},
		{"another annotation", token, http.MethodPatch, node, metadata("annotations", cluster.Object{"a": "c"}), "no other annotation"},
		{"one annotation less", token, http.MethodPatch, node, metadata("annotations", cluster.Object{"a": nil}), "no other annotation"},
		{"one annotation more", token, http.MethodPatch, node, metadata("annotations", cluster.Object{"c": "d"}), "no other annotation"},
		{"a finalizer", token, http.MethodPatch, node, cluster.Object{"metadata": cluster.Object{"finalizers": []string{"a.example.com/b"}}}, "nothing else of its Node"},
		{"an owner", token, http.MethodPatch, node, cluster.Object{"metadata": cluster.Object{"ownerReferences": []cluster.Object{{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "b"}}}}, "nothing else of its Node"},
		{"cordon", token, http.MethodPatch, node, cluster.Object{"spec": cluster.Object{"unschedulable": true}}, "nothing else of its Node"},
		{"the machine's name", token, http.MethodPatch, node, cluster.Object{"spec": cluster.Object{"providerID": "a"}}, "nothing else of its Node"},
		{"the network of its pods", token, http.MethodPatch, node, cluster.Object{"spec": cluster.Object{"podCIDR": "10.0.0.0/24", "podCIDRs": []string{"10.0.0.0/24"}}}, "nothing else of its Node"},
		{"a taint of others", token, http.MethodPatch, node, cluster.Object{"spec": cluster.Object{"taints": []cluster.Object{{"key": taint, "effect": "NoSchedule"}}}}, "no other taint"},
		{"a taint more", token, http.MethodPatch, node, cluster.Object{"spec": cluster.Object{"taints": []cluster.Object{{"key": taint, "effect": "NoExecute"}, {"key": "example.com/a", "effect": "NoSchedule"}}}}, "no other taint"},
		{"the status", token, http.MethodPatch, node + "/status", cluster.Object{"status": cluster.Object{"phase": "a"}}, "cannot patch resource \\\"nodes/status\\\""},
		{"delete", token, http.MethodDelete, node, nil, "cannot delete resource"},
		{"all Nodes", token, http.MethodGet, "/api/v1/nodes", nil, "cannot list resource"},
		{"an event about another", token, http.MethodPost, events, event("other"), "may tell of its own Node alone"},
		{"an event of others", token, http.MethodPatch, events + "/others", cluster.Object{"involvedObject": cluster.Object{"name": "own"}}, "may tell of its own Node alone"},
		{"the turn of another", token, http.MethodPost, leases, lease("other/uid"), "may take the turn of its own node alone"},
		{"a pod", token, http.MethodPost, "/api/v1/namespaces/" + namespace + "/pods", cluster.Object{"metadata": cluster.Object{"name": "a"}}, "cannot create resource"},
		{"delete a pod", token, http.MethodDelete, "/api/v1/namespaces/" + namespace + "/pods/installer", nil, "cannot delete resource"},
		{"Secrets", token, http.MethodGet, "/api/v1/namespaces/" + namespace + "/secrets", nil, "cannot list resource"},
		{"pods of others", token, http.MethodGet, "/api/v1/namespaces/default/pods", nil, "cannot list resource"},

		{"its state", token, http.MethodPatch, node, cluster.Object{"metadata": cluster.Object{"labels": cluster.Object{key: "ready"}, "annotations": cluster.Object{key: "{}"}}}, ""},
		{"its taint", token, http.MethodPatch, node, cluster.Object{"spec": cluster.Object{"taints": []cluster.Object{{"key": "example.com/a", "effect": "NoSchedule"}}}}, ""},
		{"its turn", token, http.MethodPost, leases, lease("own/uid"), ""},
		{"an event", token, http.MethodPost, events, event("own"), ""},
		{"its pods", token, http.MethodGet, "/api/v1/namespaces/" + namespace + "/pods", nil, ""},
		{"that another has its turn, once it is", token, http.MethodPut, leases + "/pullpass-node-install", lease("other/uid"), "may take the turn of its own node alone"},
		{"another Lease", token, http.MethodPost, leases, cluster.Object{"metadata": cluster.Object{"name": "other"}}, "no other Lease than that of turns"},
		{"the end of its turn", token, http.MethodPut, leases + "/pullpass-node-install", lease(""), ""},
		{"no state any more", token, http.MethodPatch, node, cluster.Object{"metadata": cluster.Object{"labels": cluster.Object{key: nil}, "annotations": cluster.Object{key: nil}}}, ""},
	} {
		if c.method == http.MethodPut {
			c.body["metadata"].(cluster.Object)["resourceVersion"] = f.Get(t, c.path).Text("metadata", "resourceVersion")
		}
		code, answer := f.As(t, c.token, c.method, c.path, c.body)
		if c.refused == "" && code >= 300 || c.refused != "" && (code < 400 || !strings.Contains(answer, c.refused)) {
			t.Errorf("%s: %d %s, want it refused by %q", c.name, code, answer, c.refused)
		}
	}
}

// startRights runs a cluster with the Nodes own and other.
func startRights(t *testing.T) *fleet {
	t.Helper()
	f := startFleet(t, valuesFor("registry.example.com", "install"))
	for _, name := range []string{"own", "other", "third", "waiting"} {
		f.Create(t, "/api/v1/nodes", cluster.Object{"metadata": cluster.Object{"name": name, "labels": cluster.Object{"a": "b"}, "annotations": cluster.Object{"a": "b"}}})
		f.Patch(t, "/api/v1/nodes/"+name, cluster.Object{"spec": cluster.Object{"taints": []cluster.Object{{"key": taint, "effect": "NoSchedule"}, {"key": "example.com/a", "effect": "NoSchedule"}}}})
	}
	// A policy takes a moment until it counts.
	token := f.installerOn(t, "waiting")
	var code int
	var answer string
	if !testenv.Poll(2*time.Minute, func() bool {
		code, answer = f.As(t, token, http.MethodPatch, "/api/v1/nodes/other?dryRun=All", cluster.Object{"metadata": cluster.Object{"labels": cluster.Object{key: "x"}}})
		return code == http.StatusUnprocessableEntity // 403 is that of a role that does not count yet
	}) {
		t.Fatalf("the policy does not count: %d %s", code, answer)
	}
	return f
}

// installerOn makes a pod of the installer, as the DaemonSet controller and the scheduler do, and returns its token.
func (f *fleet) installerOn(t testing.TB, node string) string {
	t.Helper()
	var p pod
	f.Create(t, "/api/v1/namespaces/"+namespace+"/pods", cluster.Object{
		"metadata": cluster.Object{"name": "installer-" + node},
		"spec": cluster.Object{"nodeName": node, "serviceAccountName": "pullpass-node-install", "automountServiceAccountToken": false,
			"containers": []cluster.Object{{"name": "c", "image": "a"}}},
	}).Decode(t, &p)
	return f.token(t, p)
}

// No other node can take or end a held turn, whatever is written into the Lease; when it was not renewed for five
// minutes, by the clock of the API server, any node can take it.
func TestTurnsOfOthers(t *testing.T) {
	t.Parallel()
	f := startRights(t)
	own, other, third := f.installerOn(t, "own"), f.installerOn(t, "other"), f.installerOn(t, "third")
	const lease = "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases/pullpass-node-install"
	type edit = func(o cluster.Object)
	spec := func(o cluster.Object) map[string]any { return o["spec"].(map[string]any) }
	metadata := func(o cluster.Object) map[string]any { return o["metadata"].(map[string]any) }
	now := func() string { return time.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00") }
	renew := func(o cluster.Object) { spec(o)["renewTime"] = now() }
	take := func(node string) edit {
		return func(o cluster.Object) { renew(o); spec(o)["holderIdentity"] = node + "/uid" }
	}
	clear := func(o cluster.Object) { spec(o)["holderIdentity"] = "" }
	stop := func(node string) edit {
		return func(o cluster.Object) {
			annotations, _ := metadata(o)["annotations"].(map[string]any)
			if annotations == nil {
				annotations = map[string]any{}
			}
			annotations["pullpass.dev/stopped"] = `{"node":"` + node + `","uid":"u","revision":"r","reason":"` + now() + `"}`
			metadata(o)["annotations"] = annotations
		}
	}
	unstop := func(o cluster.Object) {
		annotations, _ := metadata(o)["annotations"].(map[string]any)
		delete(annotations, "pullpass.dev/stopped")
	}
	both := func(edits ...edit) edit {
		return func(o cluster.Object) {
			for _, e := range edits {
				e(o)
			}
		}
	}
	entry := func(n int, at string) map[string]any {
		return map[string]any{"manager": fmt.Sprint("m", n), "operation": "Update", "apiVersion": "coordination.k8s.io/v1", "time": at, "fieldsType": "FieldsV1",
			"fieldsV1": map[string]any{"f:spec": map[string]any{"f:holderIdentity": map[string]any{}, "f:renewTime": map[string]any{}},
				"f:metadata": map[string]any{"f:annotations": map[string]any{"f:pullpass.dev/stopped": map[string]any{}}}}}
	}
	// forged lets the fields look as if they had been changed at another time.
	forged := func(n int, at string) edit {
		return func(o cluster.Object) {
			var all []any
			for i := range n {
				all = append(all, entry(i, at))
			}
			metadata(o)["managedFields"] = all
		}
	}
	dated := func(at string) edit { // what is there
		return func(o cluster.Object) {
			for _, m := range metadata(o)["managedFields"].([]any) {
				m.(map[string]any)["time"] = at
			}
		}
	}
	reset := func(o cluster.Object) { metadata(o)["managedFields"] = []any{map[string]any{}} }
	const past, future = "2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z"
	const held, dishonest, noStop = "the turn of another node has not ended", "are not as the API server writes them", "may stop the roll-out because of its own node"
	const noText = "no other label or annotation of the Lease, and no long text"
	expect := func(name, token, manager string, change edit, refused string) {
		t.Helper()
		o := f.Get(t, lease)
		change(o)
		code, answer := f.As(t, token, http.MethodPut, lease+"?fieldManager="+manager, o)
		if refused == "" && code != http.StatusOK || refused != "" && (code != http.StatusUnprocessableEntity || !strings.Contains(answer, refused)) {
			t.Errorf("%s: %d %s, want it refused by %q", name, code, answer, refused)
		}
	}
	// aged is what an administrator could write: the last renewal is older.
	aged := func(by time.Duration) {
		t.Helper()
		o := f.Get(t, lease)
		dated(time.Now().Add(-by).UTC().Format(time.RFC3339))(o)
		metadata(o)["labels"] = map[string]any{"aged": strings.ReplaceAll(now(), ":", "-")}
		if _, err := f.Try(t.Context(), http.MethodPut, lease+"?fieldManager=admin", o); err != nil {
			t.Fatal(err)
		}
	}
	const refusedByEither = "denied request"  // dishonest, or held
	const installer = "pullpass-node-install" // the manager of all of them

	leases := strings.TrimSuffix(lease, "/pullpass-node-install")
	created := cluster.Object{"metadata": map[string]any{"name": "pullpass-node-install"}, "spec": map[string]any{"holderIdentity": "own/uid", "renewTime": now(), "leaseDurationSeconds": 300}}
	forged(3, future)(created)
	if code, answer := f.As(t, own, http.MethodPost, leases, created); code < 400 || !strings.Contains(answer, dishonest) {
		t.Errorf("made with times of its own: %d %s", code, answer)
	}
	delete(metadata(created), "managedFields")
	if code, answer := f.As(t, own, http.MethodPost, leases+"?fieldManager="+installer, created); code != http.StatusCreated {
		t.Fatalf("%d %s", code, answer)
	}
	expect("a renewal", own, installer, renew, "")
	for _, manager := range []string{installer, "x"} {
		expect("ended by another", other, manager, clear, held)
		expect("taken away", other, manager, func(o cluster.Object) { delete(spec(o), "holderIdentity") }, held)
		expect("taken", other, manager, take("other"), held)
		expect("taken, with a wrong clock", other, manager, both(take("other"), func(o cluster.Object) { spec(o)["renewTime"] = future[:19] + ".000000Z" }), held)
		expect("renewed by another", other, manager, renew, held)
		expect("for a second", other, manager, func(o cluster.Object) { spec(o)["leaseDurationSeconds"] = 1 }, refusedByEither)
		for _, n := range []int{1, 10, 11, 12} { // more than ten managers are merged
			expect("taken from the future", other, manager, both(take("other"), forged(n, future)), refusedByEither)
		}
	}
	expect("taken without managers", other, installer, both(take("other"), reset), dishonest)
	expect("to be deleted", other, installer, func(o cluster.Object) {
		metadata(o)["ownerReferences"] = []any{map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "b"}}
	}, "not have it deleted")
	expect("stopped because of a third", other, installer, stop("third"), noStop)
	expect("stopped because of the holder", other, installer, stop("own"), noStop)
	expect("stopped because of itself", other, installer, stop("other"), "")
	expect("stopped with a long text", other, installer, both(stop("other"), func(o cluster.Object) {
		metadata(o)["annotations"].(map[string]any)["pullpass.dev/stopped"] = `{"node":"other","uid":"` + strings.Repeat("u", 4096) + `"}`
	}), noText)
	expect("stopped, and another annotation", other, installer, both(stop("other"), func(o cluster.Object) { metadata(o)["annotations"].(map[string]any)["a"] = "b" }), noText)
	expect("stopped, and a label", other, installer, both(stop("other"), func(o cluster.Object) { metadata(o)["labels"] = map[string]any{"a": "b"} }), noText)
	expect("a holder with a long UID", own, installer, both(renew, func(o cluster.Object) { spec(o)["holderIdentity"] = "own/" + strings.Repeat("u", 300) }), noText)
	expect("started by a third", third, installer, unstop, noStop)
	expect("started by the holder in the course of its turn", own, installer, both(renew, unstop), "")
	for _, at := range []string{past, future} {
		expect("stopped, and the renewal dated otherwise", other, "x", both(stop("other"), dated(at)), dishonest)
		expect("stopped, and twelve renewals dated otherwise", other, "x", both(stop("other"), forged(12, at)), refusedByEither)
		expect("the holder dates its renewal", own, "x", both(func(o cluster.Object) { metadata(o)["labels"] = map[string]any{"a": at[:4]} }, dated(at)), dishonest)
	}
	expect("still held", other, installer, take("other"), held)

	expect("the end", own, installer, clear, "")
	expect("not held, without managers", other, installer, both(renew, reset), dishonest)
	expect("not held, with managers from the future", other, installer, both(renew, forged(12, future)), dishonest)
	expect("not held, with an invalid renewal", other, installer, both(func(o cluster.Object) { delete(spec(o), "renewTime") }, forged(12, future)), dishonest)
	// fields are in an entry without being in the Lease.
	fields := func(entries, each int, operation, manager, part string) edit {
		return func(o cluster.Object) {
			list := metadata(o)["managedFields"].([]any)
			at := list[0].(map[string]any)["time"]
			for n := range entries {
				names := map[string]any{}
				for i := range each {
					names[fmt.Sprint("f:", i)] = map[string]any{}
				}
				list = append(list, map[string]any{"manager": manager + fmt.Sprint(n), "operation": operation, "apiVersion": "coordination.k8s.io/v1", "time": at, "fieldsType": "FieldsV1",
					"fieldsV1": map[string]any{"f:metadata": map[string]any{part: names}}})
			}
			metadata(o)["managedFields"] = list
		}
	}
	set := func(field string, value any) edit {
		return func(o cluster.Object) { renew(o); spec(o)[field] = value }
	}
	const notThere = "have fields that the installer does not write"
	const unusable = "no value into the Lease that others cannot read or follow"
	expect("not held, with one entry more", other, "x", both(renew, fields(1, 1, "Apply", "m", "f:annotations")), dishonest)
	expect("not held, with very many entries", other, "x", both(renew, fields(1500, 1, "Apply", "m", "f:annotations")), dishonest)
	expect("not held, with fields that are not there", other, "x0", both(renew, fields(1, 1000, "Update", "x", "f:annotations")), notThere)
	expect("not held, with parts that are not there", other, "x0", both(renew, fields(1, 0, "Update", "x", "f:parts")), notThere)
	expect("not held, with the last number", other, "x", set("leaseTransitions", math.MaxInt32), unusable)
	for field, at := range map[string]string{"acquireTime": "9999-12-31T23:59:59.000000-23:59", "renewTime": "0000-01-01T00:00:00.000000+23:00"} {
		expect("not held, with a time that cannot be read", other, "x", both(renew, func(o cluster.Object) { spec(o)[field] = at }), unusable)
	}
	// Fields that an administrator writes stay writable: fields of two kinds in one entry, of which the next turn takes one.
	o := f.Get(t, lease)
	set("leaseTransitions", 7)(o)
	metadata(o)["labels"] = map[string]any{"by": "administrator"}
	if _, err := f.Try(t.Context(), http.MethodPut, lease+"?fieldManager=kubectl-edit", o); err != nil {
		t.Fatal(err)
	}
	expect("not held, after an administrator", other, installer, set("leaseTransitions", 8), "")
	for n := range 14 {
		expect("not held, with many managers", other, fmt.Sprint("many", n), renew, "")
	}
	expect("the next turn", own, installer, take("own"), "")
	expect("which is held, too", other, "x", take("other"), held)
	aged(4*time.Minute + 30*time.Second)
	expect("not over yet", other, installer, take("other"), held)
	aged(5*time.Minute + time.Second)
	expect("over, and stopped because of a third", third, installer, both(clear, stop("other")), noStop)
	expect("over, and stopped because of whose it was", third, installer, both(clear, stop("own")), "")
	expect("the next one", other, installer, both(take("other"), unstop), "")
	aged(5*time.Minute + time.Second)
	expect("over, and taken", own, installer, take("own"), "")
}
