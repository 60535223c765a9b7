package rollout

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"github.com/pullpass/pullpass/internal/node/nodeinstall"
	"github.com/pullpass/pullpass/internal/node/progress"
)

// The published state is in package progress, for programs that only read it.
type (
	Record = progress.Record
	Status = progress.Status
	State  = progress.State
	Stop   = progress.Stop
)

const (
	Waiting    = progress.Waiting
	Installing = progress.Installing
	Verifying  = progress.Verifying
	Ready      = progress.Ready
	Failed     = progress.Failed
	Rejected   = progress.Rejected
	Removing   = progress.Removing
)

// revisionOf identifies the desired state without the plugin, which differs between architectures.
func revisionOf(d nodeinstall.Desired) string {
	sum := sha256.New()
	fmt.Fprintf(sum, "%q %q", d.Provider, d.CA)
	for _, registry := range slices.Sorted(maps.Keys(d.Hosts)) {
		fmt.Fprintf(sum, " %q %q", registry, d.Hosts[registry])
	}
	return hex.EncodeToString(sum.Sum(nil))[:12]
}
