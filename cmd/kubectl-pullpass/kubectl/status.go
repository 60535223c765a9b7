package kubectl

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"

	corev1 "k8s.io/api/core/v1"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/node/progress"
)

// Replica is a pod of Pullpass.
type Replica struct {
	Pod      string             `json:"pod"`
	Ready    bool               `json:"ready"`
	Image    string             `json:"image"`
	Checks   map[string][]Check `json:"checks,omitempty"` // by kind, as /readyz has them
	NotKnown string             `json:"notKnown,omitempty"`
}

// Check is the state of a dependency.
type Check struct {
	Name      string `json:"name"`
	Healthy   bool   `json:"healthy"`
	Tolerated bool   `json:"tolerated,omitempty"`
	Message   string `json:"message,omitempty"`
}

// Status returns the replicas of Pullpass. The checks of a replica need a port-forward.
func (c *Cluster) Status(ctx context.Context) ([]Replica, error) {
	pods, err := c.pullpass(ctx)
	if err != nil {
		return nil, err
	}
	var all []Replica
	for i := range pods {
		replica := Replica{Pod: pods[i].Name, Ready: isReady(&pods[i]), Image: imageOf(&pods[i])}
		if replica.Checks, err = c.checks(ctx, &pods[i]); err != nil {
			replica.NotKnown = err.Error()
		}
		all = append(all, replica)
	}
	return all, nil
}

func imageOf(pod *corev1.Pod) string {
	if len(pod.Spec.Containers) == 0 {
		return ""
	}
	return pod.Spec.Containers[0].Image
}

func (c *Cluster) checks(ctx context.Context, pod *corev1.Pod) (map[string][]Check, error) {
	status, _, body, err := c.fetch(ctx, pod, "/readyz")
	if err != nil {
		return nil, err
	}
	var report struct{ Checks map[string][]Check }
	err = json.Unmarshal(body, &report)
	if err == nil && (len(report.Checks) == 0 || status != http.StatusOK && status != http.StatusServiceUnavailable) {
		err = errNotPullpass
	}
	if err != nil {
		return nil, fmt.Errorf("/readyz: %d: %w", status, err)
	}
	return report.Checks, nil
}

// WriteStatus writes the replicas for people, and the checks that fail.
func WriteStatus(w io.Writer, all []Replica) error {
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "POD\tREADY\tIMAGE\tFAILING")
	for _, r := range all {
		ready := "no"
		if r.Ready {
			ready = "yes"
		}
		var failing []string
		for _, kind := range slices.Sorted(maps.Keys(r.Checks)) {
			for _, check := range r.Checks[kind] {
				if !check.Healthy {
					failing = append(failing, term.Words(kind, check.Name)+": "+term.Line(check.Message))
				}
			}
		}
		text := strings.Join(failing, "; ")
		switch {
		case r.NotKnown != "":
			text = "not known: " + term.Line(r.NotKnown)
		case text == "":
			text = "none"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", term.Words(r.Pod), ready, term.Words(r.Image), text)
	}
	return table.Flush()
}

// Nodes returns the progress of the installation on nodes. If only the turn is not known, notKnown
// is the reason.
func (c *Cluster) Nodes(ctx context.Context, installer string) (overview progress.Overview, notKnown, err error) {
	overview, err = progress.List(ctx, c.config, installer)
	if err != nil && len(overview.Nodes) > 0 {
		return overview, c.right(err, "get", "leases", "", installer), nil
	}
	return overview, nil, c.right(err, "list", "nodes", "", "")
}
