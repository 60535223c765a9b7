package nodetest

import (
	"testing"

	"github.com/pullpass/pullpass/e2e/node"
)

// work is a scenario on a node. Its namespaces and repositories begin with the prefix.
type work struct {
	*site
	node   *node.Node
	prefix string
}

func testGranted(t *testing.T, w *work) string {
	w.namespace(t, w.prefix, nil)
	image := w.push(t, w.prefix+"/web")
	return "runs after " + w.awaitRunning(t, w.run(t, pod{namespace: w.prefix, name: "web", account: "puller", node: w.node.Name(), images: []string{image}}))
}

type mistake struct{ name string }

func (m mistake) host() string { return m.name + ".example.com" }

func mistakes() []mistake { return nil }
