package progress

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pullpass/pullpass/internal/base/term"
)

const (
	// Key is the annotation of a Node with its Record, and the label with the Record's state. In
	// the state Verifying, the chart's DaemonSet runs a pod that pulls an image there.
	Key = "pullpass.dev/node-install"
	// Taint is the key of the taint with which nodes may be created. It keeps pods away until the
	// node can pull.
	Taint = "pullpass.dev/not-ready"
	// LeaseName is the name of the Lease whose holder may restart its kubelet.
	LeaseName = "pullpass-node-install"
	// StopKey is the annotation of the Lease with a Stop.
	StopKey = "pullpass.dev/stopped"
)

// State is the progress of a node.
type State string

const (
	Waiting    State = "waiting"    // for its turn
	Installing State = "installing" // the kubelet is being restarted
	Verifying  State = "verifying"  // until the node is Ready and has pulled an image
	Ready      State = "ready"
	Failed     State = "failed"   // Reason has the cause; it is retried
	Rejected   State = "rejected" // the kubelet did not become healthy, and its files are restored; it is not retried
	Removing   State = "removing"
)

// States returns all states.
func States() []State {
	return []State{Waiting, Installing, Verifying, Ready, Failed, Rejected, Removing}
}

// Record is the published state of a node.
type Record struct {
	State    State     `json:"state"`
	Profile  string    `json:"profile,omitempty"`
	Version  string    `json:"version,omitempty"`  // of Pullpass
	Revision string    `json:"revision,omitempty"` // of the desired state, the same for all nodes
	Digest   string    `json:"digest,omitempty"`   // of the files that the kubelet reads there
	Reason   string    `json:"reason,omitempty"`
	Since    time.Time `json:"since"` // start of the state
}

// Status is the state of an installer.
type Status struct {
	Record
	Restarts uint64 // of the kubelet, since the start
	Repairs  uint64 // of files that others changed, at once, since the start
}

// MaxReason limits the text in an annotation, an event and a terminal, in bytes.
const MaxReason = 500

// RecordOf returns the Record of a Node. It is empty if the Node has none or if it is invalid.
func RecordOf(node *corev1.Node) Record {
	var r Record
	if json.Unmarshal([]byte(node.Annotations[Key]), &r) != nil {
		return Record{}
	}
	return r
}

// Following returns the record in the form to be written after before. It sets the start of the
// state, and cuts the reason.
func (r Record) Following(before Record, now time.Time) Record {
	r.Since = now.UTC().Truncate(time.Second)
	if before.State == r.State {
		r.Since = before.Since
	}
	r.Reason = term.Shorten(r.Reason, MaxReason)
	return r
}

// Stop means that no further node is changed to a revision.
type Stop struct {
	Node     string `json:"node"` // the node on which it failed
	UID      string `json:"uid"`
	Revision string `json:"revision"`
	Reason   string `json:"reason"`
}

func (s Stop) String() string {
	return fmt.Sprintf("the roll-out of %s is stopped, because of the node %s: %s", s.Revision, s.Node, s.Reason)
}

// StopOf returns the Stop of a Lease, or nil. Of repeated members, package json takes the last. But
// the admission policy judges the node at the beginning of the text, so a text that then names a
// different node is no Stop.
func StopOf(found *coordinationv1.Lease) *Stop {
	var s Stop
	text := found.Annotations[StopKey]
	if json.Unmarshal([]byte(text), &s) != nil {
		return nil
	}
	node, _ := json.Marshal(s.Node) // text is always encoded
	if !strings.HasPrefix(text, `{"node":`+string(node)+",") {
		return nil
	}
	return &s
}

// IsTaint reports whether a taint is Pullpass's.
func IsTaint(t corev1.Taint) bool { return t.Key == Taint }

// HasTaint reports whether the Node has the taint.
func HasTaint(node *corev1.Node) bool { return slices.ContainsFunc(node.Spec.Taints, IsTaint) }
