package kubectl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/refusal"
)

// component is the source of Pullpass's events.
const component = "pullpass"

// Reasons is what is known about the pulls of a pod.
type Reasons struct {
	Namespace      string            `json:"namespace"`
	Pod            string            `json:"pod"`
	Node           string            `json:"node,omitempty"`
	ServiceAccount string            `json:"serviceAccount"`
	Waiting        []Waiting         `json:"waiting"`               // containers without their image
	Refusals       []Refusal         `json:"refusals"`              // the newest first
	Annotations    map[string]string `json:"annotations,omitempty"` // of the ServiceAccount
	Requests       []Access          `json:"requests,omitempty"`    // RepositoryAccess objects for the ServiceAccount
	Explanation    json.RawMessage   `json:"explanation,omitempty"` // as pullpass explain prints it
	NotKnown       []NotKnown        `json:"notKnown,omitempty"`

	text string // the explanation
}

// Waiting is a container that waits for its image.
type Waiting struct {
	Container string `json:"container"`
	Image     string `json:"image"`
	Reason    string `json:"reason"`
	Message   string `json:"message,omitempty"`
}

// Refusal is an event of Pullpass on the pod or, for pull secrets, on its ServiceAccount.
type Refusal struct {
	Last    time.Time `json:"last"`
	Count   int32     `json:"count"`
	Message string    `json:"message"`
}

// NotKnown is a part of the answer that is missing.
type NotKnown struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// Why collects the reasons for which a pod does not get its images. Only the pod must be readable.
func (c *Cluster) Why(ctx context.Context, name string) (*Reasons, error) {
	var pod corev1.Pod
	if err := c.get(ctx, "pods", name, &pod); apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("namespace %s has no pod %s", c.Namespace, term.QuoteName(name))
	} else if err != nil {
		return nil, err
	}
	r := &Reasons{
		Namespace: c.Namespace, Pod: pod.Name, Node: pod.Spec.NodeName, ServiceAccount: pod.Spec.ServiceAccountName,
		Waiting: waiting(&pod), Refusals: []Refusal{},
	}
	note := func(what string, err error) {
		if err != nil {
			r.NotKnown = append(r.NotKnown, NotKnown{what, err.Error()})
		}
	}
	note("events", r.events(ctx, c, &pod))
	var account corev1.ServiceAccount
	err := c.get(ctx, "serviceaccounts", r.ServiceAccount, &account)
	note("annotations", err)
	if err == nil {
		r.Annotations = account.Annotations
		delete(r.Annotations, corev1.LastAppliedConfigAnnotation)
	}
	all, err := c.accesses(ctx)
	note("RepositoryAccess", err)
	for _, a := range all {
		if slices.Contains(a.Spec.ServiceAccounts, r.ServiceAccount) {
			r.Requests = append(r.Requests, a)
		}
	}
	answer, err := c.Ask(ctx, "pod", url.Values{"uid": {string(pod.UID)}})
	note("explanation", err)
	if err == nil {
		r.Explanation, r.text = answer.Answer, answer.Text
	}
	return r, nil
}

// waiting returns the containers whose image is missing, and the last message of the kubelet.
func waiting(pod *corev1.Pod) []Waiting {
	list := []Waiting{}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil && strings.Contains(w.Reason, "Image") {
			list = append(list, Waiting{s.Name, s.Image, w.Reason, w.Message})
		}
	}
	return list
}

// events finds the events of Pullpass.
func (r *Reasons) events(ctx context.Context, c *Cluster, pod *corev1.Pod) error {
	for _, about := range []string{
		"involvedObject.uid=" + string(pod.UID),
		"involvedObject.kind=ServiceAccount,involvedObject.name=" + r.ServiceAccount,
	} {
		var list corev1.EventList
		if err := c.list(ctx, c.Namespace, "events", map[string]string{"fieldSelector": "reason=" + refusal.EventReason + "," + about}, &list); err != nil {
			return err
		}
		for i := range list.Items {
			if e := &list.Items[i]; e.Source.Component == component {
				r.Refusals = append(r.Refusals, Refusal{e.LastTimestamp.UTC(), max(1, e.Count), e.Message})
			}
		}
	}
	slices.SortStableFunc(r.Refusals, func(a, b Refusal) int { return b.Last.Compare(a.Last) })
	return nil
}

// Refused reports whether the pod is refused: now, as Pullpass explains it, or else by its events.
func (r *Reasons) Refused() bool {
	if granted, err := Granted(r.Explanation); err == nil {
		return !granted
	}
	return len(r.Refusals) > 0
}

// Answered reports whether it is known that the pod is, or is not, refused.
func (r *Reasons) Answered() bool {
	_, err := Granted(r.Explanation)
	return err == nil || !r.lacks("events")
}

// ErrNoDecision is for a request that Pullpass cannot decide now, because a dependency is down.
var ErrNoDecision = errors.New("Pullpass cannot decide now") //nolint:staticcheck // a name

// Granted reports whether an explanation grants all that is requested, and the gateway lets it
// pass.
func Granted(explanation json.RawMessage) (bool, error) {
	var e struct {
		Now struct {
			Result  string `json:"result"`
			Message string `json:"message"`
		} `json:"now"`
		Closed []json.RawMessage `json:"closed"`
	}
	if err := json.Unmarshal(explanation, &e); err != nil {
		return false, fmt.Errorf("the explanation: %w", err)
	}
	switch e.Now.Result {
	case "granted":
		return len(e.Closed) == 0, nil
	case "partial", "none", "refused":
		return false, nil
	}
	return false, fmt.Errorf("%w: %s", ErrNoDecision, term.Line(e.Now.Message))
}

// Write writes the reasons for people. now is the time to which ages refer.
func (r *Reasons) Write(w io.Writer, now time.Time) error {
	var out strings.Builder
	line := func(label, text string) { fmt.Fprintf(&out, "%-12s %s\n", label, text) }
	node := ""
	if r.Node != "" {
		node = ", on node " + term.Words(r.Node)
	}
	line("pod", term.Words(r.Namespace+"/"+r.Pod)+node)
	line("account", term.Words(r.ServiceAccount))
	for _, x := range r.Waiting {
		line("waiting", fmt.Sprintf("%s for %s: %s", term.Words(x.Container), term.Words(x.Image), strings.TrimSuffix(term.Words(x.Reason)+": "+term.Line(x.Message), ": ")))
	}
	for _, x := range r.Refusals {
		times := ""
		if x.Count > 1 {
			times = fmt.Sprintf(" (%d times)", x.Count)
		}
		line("refused", fmt.Sprintf("%s ago%s: %s", now.Sub(x.Last).Round(time.Second), times, term.Line(x.Message)))
	}
	if len(r.Refusals) == 0 && !r.lacks("events") {
		line("refused", "no event of Pullpass; the API server deletes events after an hour, and Pullpass may write none")
	}
	for _, key := range slices.Sorted(maps.Keys(r.Annotations)) {
		line("annotation", fmt.Sprintf("%s: %+q", term.Words(key), r.Annotations[key]))
	}
	for i := range r.Requests {
		r.Requests[i].write(line)
	}
	if len(r.Requests) == 0 && !r.lacks("RepositoryAccess") {
		line("request", "no RepositoryAccess names the ServiceAccount")
	}
	if r.text != "" {
		fmt.Fprintf(&out, "\n%s\n", r.text)
	}
	if len(r.NotKnown) > 0 {
		out.WriteString("\n")
	}
	for _, x := range r.NotKnown {
		line("not known", x.What+": "+term.Line(x.Why))
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func (r *Reasons) lacks(what string) bool {
	return slices.ContainsFunc(r.NotKnown, func(n NotKnown) bool { return n.What == what })
}

// write writes the object and the result for each repository.
func (a *Access) write(line func(label, text string)) {
	head := "RepositoryAccess " + term.Words(a.Metadata.Name)
	if a.Status == nil {
		line("request", head+": no status; Pullpass writes one with objects.status: true")
		return
	}
	for _, c := range a.Status.Conditions {
		head += fmt.Sprintf("; %s %s (%s): %s", term.Words(c.Type), term.Words(c.Status), term.Words(c.Reason), term.Line(c.Message))
	}
	line("request", head)
	for _, s := range a.Status.Repositories {
		text := fmt.Sprintf("%s: %s", term.Words(s.Repository), term.Words(string(s.Granted)))
		if s.Reason != "" {
			text += ": " + term.Line(s.Reason)
		}
		line("", text)
		if s.Remedy != "" {
			line("", "remedy: "+term.Line(s.Remedy))
		}
	}
}
