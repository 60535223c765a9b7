package progress

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// closed is a terminal that went away.
type closed struct{}

var errClosed = errors.New("closed")

func (closed) Write([]byte) (int, error) { return 0, errClosed }

func TestWriteText(t *testing.T) {
	t.Parallel()
	overview := Overview{Nodes: []Row{{Node: "a", Tainted: true}, {Node: "b"}}}
	var out strings.Builder
	if err := WriteText(&out, overview); err != nil || strings.Count(out.String(), "- (tainted)") != 1 {
		t.Errorf("%v\n%s", err, out.String())
	}
	if err := WriteText(closed{}, overview); !errors.Is(err, errClosed) {
		t.Errorf("without a terminal: %v", err)
	}
}

func TestListNeedsAConnection(t *testing.T) {
	t.Parallel()
	if _, err := List(t.Context(), &rest.Config{Host: "https://example.com", TLSClientConfig: rest.TLSClientConfig{CAFile: "missing"}}, "pullpass"); err == nil || !strings.Contains(err.Error(), "open missing") {
		t.Error(err)
	}
}
