package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/pullpass/pullpass/e2e/testenv"
)

// Compact lets etcd forget every state but the latest, as it does every five minutes in a real cluster: a watch that asks for
// what came after an older one is told that it has expired. It returns the revision.
func (c *Cluster) Compact(t testing.TB) string {
	t.Helper()
	var answer struct {
		Header struct {
			Revision string `json:"revision"` // int64 is text in etcd's JSON
		} `json:"header"`
	}
	c.askEtcd(t, "/v3/kv/range", Object{"key": "AA=="}, &answer)
	c.askEtcd(t, "/v3/kv/compaction", Object{"revision": answer.Header.Revision, "physical": true}, nil)
	return answer.Header.Revision
}

// Snapshot keeps what etcd has. The function that it returns restores that, with the revision. Both restart the control plane.
func (c *Cluster) Snapshot(t testing.TB) (restore func()) {
	t.Helper()
	kept := filepath.Join(c.dir, "snapshot")
	c.whileDown(t, func() { testenv.Must(t, os.CopyFS(kept, os.DirFS(c.data()))) })
	return func() {
		t.Helper()
		c.whileDown(t, func() {
			testenv.Must(t, os.RemoveAll(c.data()))
			testenv.Must(t, os.Rename(kept, c.data()))
		})
	}
}

func (c *Cluster) data() string { return filepath.Join(c.dir, "etcd") }

func (c *Cluster) whileDown(t testing.TB, change func()) {
	t.Helper()
	c.Crash(t)
	if err := c.store.Stop(); err != nil {
		t.Fatalf("stop etcd: %v", err)
	}
	change()
	c.startEtcd(t)
	c.Recover(t)
}

// askEtcd uses etcd's JSON gateway: Debian packages etcdctl separately.
func (c *Cluster) askEtcd(t testing.TB, path string, question Object, answer any) {
	t.Helper()
	payload, err := json.Marshal(question)
	testenv.Must(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.etcd+path, bytes.NewReader(payload))
	testenv.Must(t, err)
	resp, err := http.DefaultClient.Do(req)
	testenv.Must(t, err)
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, content)
	}
	if err == nil && answer != nil {
		err = json.Unmarshal(content, answer)
	}
	if err != nil {
		t.Fatalf("etcd %s: %v", path, err)
	}
}
