package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
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
