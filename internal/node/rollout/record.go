package rollout

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/node/nodeinstall"
)

const (
	// Key is the annotation of a Node with its Record, and the label with the Record's state. In
	// the state Verifying, the chart's DaemonSet runs a pod that pulls an image there.
	Key = "pullpass.dev/node-install"
	// Taint is the key of the taint with which nodes may be created. It keeps pods away until the
	// node can pull.
	Taint = "pullpass.dev/not-ready"
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

// maxReason limits the text in an annotation, an event and a terminal, in bytes.
const maxReason = 500

// recordOf returns the Record of a Node. It is empty if the Node has none or if it is invalid.
func recordOf(node *corev1.Node) Record {
	var r Record
	if json.Unmarshal([]byte(node.Annotations[Key]), &r) != nil {
		return Record{}
	}
	return r
}

// following returns the record in the form to be written after before. It sets the start of the
// state, and cuts the reason.
func (r Record) following(before Record, now time.Time) Record {
	r.Since = now.UTC().Truncate(time.Second)
	if before.State == r.State {
		r.Since = before.Since
	}
	r.Reason = term.Shorten(r.Reason, maxReason)
	return r
}

// revisionOf identifies the desired state without the plugin, which differs between architectures.
func revisionOf(d nodeinstall.Desired) string {
	sum := sha256.New()
	fmt.Fprintf(sum, "%q %q", d.Provider, d.CA)
	for _, registry := range slices.Sorted(maps.Keys(d.Hosts)) {
		fmt.Fprintf(sum, " %q %q", registry, d.Hosts[registry])
	}
	return hex.EncodeToString(sum.Sum(nil))[:12]
}
