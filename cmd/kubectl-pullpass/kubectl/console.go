package kubectl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pullpass/pullpass/internal/base/term"
)

const (
	// selector is the label of the pods of Pullpass that the chart and the documents give.
	selector = "app.kubernetes.io/name=pullpass"
	// releaseLabel is the label with the release of the chart. Two releases decide differently.
	releaseLabel  = "app.kubernetes.io/instance"
	adminPort     = "admin" // its name in the pod
	adminPortElse = 9090
	// askTimeout is longer than a question may take in Pullpass.
	askTimeout     = 30 * time.Second
	maxAnswerBytes = 32 << 20
)

// Answer is what Pullpass says.
type Answer struct {
	Answer  json.RawMessage `json:"answer"` // as pullpass prints it with -o json
	Text    string          `json:"text"`   // as pullpass prints it
	Problem string          `json:"problem"`
}

// errNotRemembered means that the replica remembers no decision about the pod.
var errNotRemembered = errors.New("Pullpass remembers no decision about this pod; its audit log has all") //nolint:staticcheck // a name

// errNotPullpass is about another program in the place of Pullpass.
var errNotPullpass = errors.New("the answer is not one of Pullpass")

// Ask asks a question of the console (explain, pod, who, reach).
func (c *Cluster) Ask(ctx context.Context, question string, query url.Values) (*Answer, error) {
	pods, err := c.pullpass(ctx)
	if err != nil {
		return nil, err
	}
	// Without Redis, each replica remembers only its own decisions.
	for i := range pods {
		answer, err := c.ask(ctx, &pods[i], question, query)
		if !errors.Is(err, errNotRemembered) {
			return answer, err
		}
	}
	return nil, errNotRemembered
}

func (c *Cluster) ask(ctx context.Context, pod *corev1.Pod, question string, query url.Values) (*Answer, error) {
	status, header, body, err := c.fetch(ctx, pod, "/console/"+question+".json?"+query.Encode())
	if err != nil {
		return nil, err
	}
	if header.Get("Content-Type") != "application/json" {
		if status == http.StatusNotFound {
			return nil, errors.New("the console of Pullpass is off, or too old for this program; an administrator can set admin.console: true")
		}
		return nil, fmt.Errorf("the console of Pullpass: %d %s", status, Plain(term.Abbreviate(string(body), maxFaultBytes)))
	}
	var answer Answer
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("the console of Pullpass: %w", err)
	}
	switch {
	case status == http.StatusNotFound:
		return nil, errNotRemembered
	case status != http.StatusOK:
		return nil, errors.New(Plain(term.Abbreviate(answer.Problem, maxFaultBytes)))
	case len(answer.Answer) == 0 || answer.Text == "":
		return nil, fmt.Errorf("the console of Pullpass: %w", errNotPullpass)
	}
	answer.Text = Plain(answer.Text)
	return &answer, nil
}

// pullpass returns the pods of Pullpass, the ready ones first.
func (c *Cluster) pullpass(ctx context.Context) ([]corev1.Pod, error) {
	selector, remedy := selector, "name the namespace of Pullpass with --pullpass-namespace"
	if c.options.Release != "" {
		selector, remedy = selector+","+releaseLabel+"="+c.options.Release, remedy+", or correct --release"
	}
	var list corev1.PodList
	if err := c.list(ctx, c.options.Pullpass, "pods", map[string]string{"labelSelector": selector}, &list); err != nil {
		return nil, err
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("namespace %s has no pod with the label %s; %s", c.options.Pullpass, selector, remedy)
	}
	releases := map[string]bool{}
	for i := range list.Items {
		releases[list.Items[i].Labels[releaseLabel]] = true
	}
	if len(releases) > 1 {
		return nil, fmt.Errorf("namespace %s has Pullpass of several releases: %q; choose one with --release", c.options.Pullpass, slices.Sorted(maps.Keys(releases)))
	}
	slices.SortStableFunc(list.Items, func(a, b corev1.Pod) int {
		switch {
		case isReady(&a) == isReady(&b):
			return strings.Compare(a.Name, b.Name)
		case isReady(&a):
			return -1
		}
		return 1
	})
	return list.Items, nil
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// fetch sends a GET to the admin listener of a pod.
func (c *Cluster) fetch(ctx context.Context, pod *corev1.Pod, target string) (status int, header http.Header, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+target, http.NoBody)
	if err != nil {
		return 0, nil, nil, err
	}
	client := &http.Client{
		Transport: &http.Transport{
			DialContext:       func(context.Context, string, string) (net.Conn, error) { return c.dial(ctx, pod, portOf(pod)) },
			DisableKeepAlives: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	if err != nil {
		var right *MissingRight
		if errors.As(err, &right) {
			return 0, nil, nil, right
		}
		err = errors.Unwrap(err)
		if fault, ok := errors.AsType[forwardError](err); ok {
			err = fault // net/http may add at which step it read it
		}
		return 0, nil, nil, fmt.Errorf("pod %s of namespace %s: %w", pod.Name, pod.Namespace, err)
	}
	defer response.Body.Close()
	body, err = io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes))
	return response.StatusCode, response.Header, body, err
}

// portOf returns the port of the admin listener.
func portOf(pod *corev1.Pod) int32 {
	for i := range pod.Spec.Containers {
		for _, port := range pod.Spec.Containers[i].Ports {
			if port.Name == adminPort {
				return port.ContainerPort
			}
		}
	}
	return adminPortElse
}

// Plain removes characters that a terminal could act on. Another program could answer in the place
// of Pullpass, and a kubelet could be in the hands of others.
func Plain(s string) string { return strings.Map(shown, strings.TrimRight(s, "\n")) }

func shown(r rune) rune {
	if r == '\n' || ' ' <= r && r <= '~' {
		return r
	}
	return '?'
}

// plainWriter writes what Plain leaves.
type plainWriter struct{ to io.Writer }

func (w plainWriter) Write(b []byte) (int, error) {
	if _, err := io.WriteString(w.to, strings.Map(shown, string(b))); err != nil {
		return 0, err
	}
	return len(b), nil
}
