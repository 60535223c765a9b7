package rollout

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/cluster/controller"
)

// pageSize is the number of nodes in a page of the list.
const pageSize = 500

// Row is a node, for people.
type Row struct {
	Node    string `json:"node"`
	Kubelet string `json:"kubelet"` // version
	Tainted bool   `json:"tainted"`
	Record
}

// Overview is the progress of the nodes of a cluster.
type Overview struct {
	Nodes   []Row  `json:"nodes"`
	Turn    string `json:"turn,omitempty"`    // the node that has the turn
	Stopped *Stop  `json:"stopped,omitempty"` // no further node is changed to this revision
}

// List returns all nodes, sorted by name. namespace is that of the Agents.
func List(ctx context.Context, config *rest.Config, namespace string) (Overview, error) {
	o := Overview{Nodes: []Row{}}
	core, leases, _, err := newClients(config)
	if err != nil {
		return o, err
	}
	for next := ""; ; {
		page := &corev1.NodeList{}
		err := core.Get().Resource("nodes").Param("limit", strconv.Itoa(pageSize)).Param("continue", next).Do(ctx).Into(page)
		if err != nil {
			return o, fmt.Errorf("the Nodes: %w", err)
		}
		for i := range page.Items {
			node := &page.Items[i]
			o.Nodes = append(o.Nodes, Row{node.Name, node.Status.NodeInfo.KubeletVersion, hasTaint(node), recordOf(node)})
		}
		if next = page.Continue; next == "" {
			break
		}
	}
	slices.SortFunc(o.Nodes, func(a, b Row) int { return strings.Compare(a.Node, b.Node) })
	lease := controller.Lease{Client: leases, Namespace: namespace, Name: LeaseName, Now: time.Now}
	found, err := lease.Read(ctx)
	if err != nil {
		return o, err
	}
	o.Turn, _, _ = strings.Cut(controller.Holder(found), "/")
	o.Stopped = stopOf(found)
	return o, nil
}
