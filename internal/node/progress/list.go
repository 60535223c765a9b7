package progress

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/cluster/clients"
	"github.com/pullpass/pullpass/internal/cluster/controller"
)

const (
	pageSize       = 500              // nodes in a page of the list
	requestTimeout = 10 * time.Second // of one request
)

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

// List returns all nodes, sorted by name. namespace is that of the agents.
func List(ctx context.Context, config *rest.Config, namespace string) (Overview, error) {
	o := Overview{Nodes: []Row{}}
	all, err := clients.New(clients.Config{REST: config, UserAgent: "pullpass", Timeout: requestTimeout})
	if err != nil {
		return o, err
	}
	// Not JSON: a node can give its Node a time after the year 9999 (managedFields), which the API
	// server accepts, and sends in a form that is not one of a time. All Nodes are read.
	core, coreErr := all.Typed(corev1.SchemeGroupVersion, runtime.ContentTypeProtobuf, &corev1.Node{}, &corev1.NodeList{})
	leases, leaseErr := controller.NewLeaseClient(all)
	if err := errors.Join(coreErr, leaseErr); err != nil {
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
			o.Nodes = append(o.Nodes, Row{node.Name, node.Status.NodeInfo.KubeletVersion, HasTaint(node), RecordOf(node)})
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
	o.Stopped = StopOf(found)
	return o, nil
}
