package migration

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/pullsecrets"
)

// People run these commands in a shell, and parts of them are untrusted. An API server checks the
// names of objects, but not the names in imagePullSecrets and ownerReferences. A command contains
// only valid Kubernetes object names. For other names, the plan has no command.

// kubectl names the kubeconfig, so that the command cannot change a different cluster.
func (m *Plan) kubectl(namespace, rest string) string {
	return "kubectl --kubeconfig " + term.ShellWord(m.options.Kubeconfig) + " -n " + namespace + " " + rest
}

// templatePath returns the path of imagePullSecrets in a workload's pod template. It cannot be
// changed for Jobs and pods.
func templatePath(kind string) string {
	switch kind {
	case "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController":
		return "/spec/template/spec/imagePullSecrets"
	case "CronJob":
		return "/spec/jobTemplate/spec/template/spec/imagePullSecrets"
	}
	return ""
}

func (m *Plan) removeFromTemplate(w pullsecrets.Workload, unwanted []string) (do, command string) {
	path := templatePath(w.Kind)
	switch {
	case w.Owner != (pullsecrets.Owner{}):
		return "remove them from what makes it, or they come back: " + kindAndName(w.Owner.Kind, w.Owner.Name), ""
	case w.Kind == "Pod":
		return "make the pod again, without imagePullSecrets: those of a pod cannot be changed", ""
	case w.Kind == "Job":
		return "nothing, if it ends by itself: make the next one without imagePullSecrets", ""
	case !w.Template || path == "":
		return "remove them from the pod template of " + kindAndName(w.Kind, w.Name), ""
	}
	return m.removeReferences(strings.ToLower(w.Kind), w.Key, path, w.Own, unwanted)
}

// removeReferences removes list items by position and tests the name there. The command fails if
// the list was changed meanwhile. A strategic merge would replace the whole list of a
// ServiceAccount.
func (m *Plan) removeReferences(resource string, key pullsecrets.Key, path string, list, unwanted []string) (do, command string) {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value string `json:"value,omitempty"`
	}
	const what = "remove it from its imagePullSecrets"
	var patch []operation
	for i, name := range slices.Backward(list) { // backward, so that earlier positions stay valid
		if !slices.Contains(unwanted, name) {
			continue
		}
		if !names.IsSubdomain(name) {
			return what + " by hand: no Secret can have such a name", ""
		}
		at := fmt.Sprintf("%s/%d", path, i)
		patch = append(patch, operation{"test", at + "/name", name}, operation{Op: "remove", Path: at})
	}
	data, err := json.Marshal(patch)
	if err != nil || !names.IsLabel(key.Namespace) || !names.IsSubdomain(key.Name) {
		return what + " by hand", ""
	}
	return what, m.kubectl(key.Namespace, "patch "+resource+" "+key.Name+" --type=json -p "+term.ShellWord(string(data)))
}

// renewPods says how to replace pods by ones without their imagePullSecrets.
func (m *Plan) renewPods(w pullsecrets.Workload) (do, command string) {
	switch w.Kind {
	case "Deployment", "StatefulSet", "DaemonSet":
		if w.Template && w.Pods > 0 && names.IsLabel(w.Namespace) && names.IsSubdomain(w.Name) {
			return "restart it", m.kubectl(w.Namespace, "rollout restart "+strings.ToLower(w.Kind)+" "+w.Name)
		}
	case "CronJob", "Job":
		return "nothing: its next pods have none", ""
	case "Pod":
		return "make the pod again", ""
	}
	if w.Pods == 0 {
		return "nothing: it has no pods, and its next ones have none", ""
	}
	return "delete its pods one by one; it makes new ones", ""
}

func (m *Plan) deleteSecret(key pullsecrets.Key) (do, command string) {
	if !names.IsLabel(key.Namespace) || !names.IsSubdomain(key.Name) {
		return "delete it by hand", ""
	}
	return "delete it", m.kubectl(key.Namespace, "delete secret "+key.Name)
}

// markInvalid does to an unused token what the API server does itself.
func (m *Plan) markInvalid(key pullsecrets.Key) string {
	if !names.IsLabel(key.Namespace) || !names.IsSubdomain(key.Name) {
		return ""
	}
	return m.kubectl(key.Namespace, "label secret "+key.Name+" kubernetes.io/legacy-token-invalid-since="+m.now.UTC().Format(time.DateOnly))
}
