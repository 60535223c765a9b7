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

	"github.com/pullpass/pullpass/internal/nodeinstall"
	"github.com/pullpass/pullpass/internal/term"
)

const (
	// Key is the annotation of a Node with its Record, and the label with the Record's
	// state. While that is Verifying, the chart's DaemonSet has a pod pull an image there.
	Key = "pullpass.dev/node-install"
	// Taint is the key of the taint with which nodes may be made, so that no pod comes
	// before it can pull.
	Taint = "pullpass.dev/not-ready"
)

// State is how far a node is.
type State string

const (
	Waiting    State = "waiting"    // for its turn
	Installing State = "installing" // the kubelet is restarted
	Verifying  State = "verifying"  // until the node is Ready, and has pulled an image
	Ready      State = "ready"
	Failed     State = "failed"   // Reason says why; it is tried again
	Rejected   State = "rejected" // the kubelet did not come back with it, and has what it had; it is not tried again
	Removing   State = "removing"
)

// States are all there are.
func States() []State {
	return []State{Waiting, Installing, Verifying, Ready, Failed, Rejected, Removing}
}

// Record is what is known of a node.
type Record struct {
	State    State     `json:"state"`
	Profile  string    `json:"profile,omitempty"`
	Version  string    `json:"version,omitempty"`  // of Pullpass
	Revision string    `json:"revision,omitempty"` // of what is wanted, the same for all nodes
	Digest   string    `json:"digest,omitempty"`   // of what the kubelet reads there
	Reason   string    `json:"reason,omitempty"`
	Since    time.Time `json:"since"` // when the state began
}

// maxReason keeps what goes into an annotation, an event and a terminal short, in bytes.
const maxReason = 500

// recordOf returns the Record of a Node, an empty one if there is none that can be read.
func recordOf(node *corev1.Node) Record {
	var r Record
	if json.Unmarshal([]byte(node.Annotations[Key]), &r) != nil {
		return Record{}
	}
	return r
}

// following returns the record as it is to be written after another one: since when its
// state is, and no more of a reason than fits.
func (r Record) following(before Record, now time.Time) Record {
	r.Since = now.UTC().Truncate(time.Second)
	if before.State == r.State {
		r.Since = before.Since
	}
	r.Reason = term.Shorten(r.Reason, maxReason)
	return r
}

// revisionOf names what is wanted, but for the plugin: one for each architecture.
func revisionOf(d nodeinstall.Desired) string {
	sum := sha256.New()
	fmt.Fprintf(sum, "%q %q", d.Provider, d.CA)
	for _, registry := range slices.Sorted(maps.Keys(d.Hosts)) {
		fmt.Fprintf(sum, " %q %q", registry, d.Hosts[registry])
	}
	return hex.EncodeToString(sum.Sum(nil))[:12]
}
