package podtest

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	elsewhere = "elsewhere.example.com" // an audience

	secretsDriver   = "images.csi.example.com" // that of docs/how-to/csi.md
	contextDriver   = "context.csi.example.com"
	elsewhereDriver = "elsewhere.csi.example.com"

	// Drivers that get their tokens in the volume context: one of several, and one for another audience alone.
	moreDrivers = `apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: ` + contextDriver + `}
spec:
  volumeLifecycleModes: [Ephemeral]
  tokenRequests:
  - {audience: ` + elsewhere + `}
  - {audience: ` + registryName + `, expirationSeconds: 600}
  requiresRepublish: true
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: ` + elsewhereDriver + `}
spec:
  volumeLifecycleModes: [Ephemeral]
  tokenRequests:
  - {audience: ` + elsewhere + `}
`
)

// volume is a pod that has a volume of a driver.
type volume struct {
	what, driver string
	process      *process.Process // the driver
	pod          cluster.Object
	audiences    []string
	forged       bool          // what the pod's author wrote reaches the driver
	lifetime     time.Duration // of the token
}

// published is what a driver wrote about a NodePublishVolume.
type published struct {
	Target    string    `json:"target"`
	Audiences []string  `json:"audiences"`
	Forged    bool      `json:"forged"`
	Expiry    time.Time `json:"expiry"`
	Later     string    `json:"later"`
	Error     string    `json:"error"`
}

// startDrivers runs each driver on the node, and waits until the kubelet has taken it.
func (s *site) startDrivers(t testing.TB) map[string]*process.Process {
	t.Helper()
	s.Kubectl(t, document(t, "how-to/csi.md")+"---\n"+moreDrivers, "create", "-f", "-")
	drivers := map[string]*process.Process{}
	for _, name := range []string{secretsDriver, contextDriver, elsewhereDriver} {
		cmd := s.node.Command(programs.CSIDriver(t), "-name="+name, "-registry="+registryName, fmt.Sprintf("-secrets=%t", name == secretsDriver))
		cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+s.ca.File)
		drivers[name] = process.Start(t, cmd)
	}
	testenv.Await(t, podLimit, "the kubelet knows the drivers", func() bool {
		node := testenv.Value(s.Try(t.Context(), "GET", "/apis/storage.k8s.io/v1/csinodes/"+s.node.Name(), nil))(t)
		spec, _ := node["spec"].(map[string]any)
		registered, _ := spec["drivers"].([]any)
		return len(registered) == len(drivers)
	})
	s.saw("the drivers", "are registered with the kubelet")
	return drivers
}

func (s *site) startVolumes(t testing.TB, drivers map[string]*process.Process, image string) []volume {
	t.Helper()
	volumes := []volume{
		{what: "tokens in secrets", driver: secretsDriver, audiences: []string{registryName}, forged: true, lifetime: time.Hour},
		{what: "tokens in the volume context", driver: contextDriver, audiences: []string{elsewhere, registryName}, lifetime: 10 * time.Minute},
	}
	for i, v := range volumes {
		volumes[i].process = drivers[v.driver]
		volumes[i].pod = s.mount(t, strings.TrimSuffix(v.driver, ".csi.example.com"), v.driver, image)
	}
	return volumes
}

// mount creates a pod with an image from a driver. Its author adds tokens, too, as if they were the kubelet's.
func (s *site) mount(t testing.TB, name, driver, image string) cluster.Object {
	t.Helper()
	return s.Create(t, "/api/v1/namespaces/"+team+"/pods", cluster.Object{
		"metadata": cluster.Object{"name": name},
		"spec": cluster.Object{
			"nodeName": s.node.Name(), "serviceAccountName": "builder", "hostNetwork": true, "terminationGracePeriodSeconds": 0,
			"containers": []cluster.Object{{
				"name": "c", "image": registryName + "/" + team + "/web:rc",
				"volumeMounts": []cluster.Object{{"name": "image", "mountPath": "/image"}},
			}},
			"volumes": []cluster.Object{{"name": "image", "csi": cluster.Object{
				"driver": driver,
				"volumeAttributes": cluster.Object{
					"image": image, "csi.storage.k8s.io/serviceAccount.tokens": `{"forged.example.com":{}}`,
				},
			}}},
		},
	})
}

// published are the lines that a driver wrote about a pod.
func (v volume) published(t testing.TB) (lines []published) {
	t.Helper()
	for line := range strings.Lines(v.process.Output()) {
		var p published
		if strings.HasSuffix(line, "\n") {
			testenv.Must(t, json.Unmarshal([]byte(line), &p))
		}
		if strings.Contains(p.Target, "/"+v.pod.UID()+"/") {
			lines = append(lines, p)
		}
	}
	return lines
}

// A driver pulls as the pod, with the token of the right audience, and again while the pod runs.
func (s *site) testVolume(t *testing.T, v volume) {
	t.Helper()
	s.awaitRunning(t, v.pod.Name())
	var lines []published
	testenv.Await(t, podLimit, "published again", func() bool { lines = v.published(t); return len(lines) > 2 })
	for _, p := range lines {
		if p.Error != "" || !slices.Equal(p.Audiences, v.audiences) || p.Forged != v.forged {
			t.Errorf("%s: published %+v", v.what, p)
		}
		if left := time.Until(p.Expiry); left > v.lifetime || left < v.lifetime-time.Minute || !strings.Contains(p.Later, "expired at") {
			t.Errorf("%s: %s left; at the expiry: %s", v.what, left, p.Later)
		}
	}
	s.manifest(t, v)
	s.saw("a driver with "+v.what, "got those for %q, valid until %s; %d times NodePublishVolume", lines[0].Audiences, lines[0].Expiry, len(lines))
	if v.forged {
		s.saw("… and what the pod's author wrote instead", "is in the other map, the volume context")
	}
	id := s.lastID(t, v.pod)
	for _, e := range events(t, s.proxy, v.pod, driverAgent) {
		if e.Result != "granted" || e.CredentialID != id {
			t.Errorf("%s: audit %+v", v.what, e)
		}
	}
}

// manifest fails the test if the manifest is not in the volume.
func (s *site) manifest(t testing.TB, v volume) {
	t.Helper()
	content := testenv.Value(s.node.Command("cat", v.published(t)[0].Target+"/manifest.json").Output())(t)
	if !strings.Contains(string(content), `"schemaVersion":2`) {
		t.Errorf("%s: in the volume is %q", v.what, content)
	}
}

// lastID is the id of the token that a driver used last for a pod.
func (s *site) lastID(t testing.TB, pod cluster.Object) string {
	t.Helper()
	s.proxy.AwaitAudit(t, 0, "of the driver, for pod "+pod.Name(), func(e pullpass.Event) bool { return about(e, pod, driverAgent) })
	asked := events(t, s.proxy, pod, driverAgent)
	return asked[len(asked)-1].CredentialID
}

// The pod of a refused driver has an event with the refusal, and does not start.
func (s *site) testRefusedVolumes(t *testing.T, drivers map[string]*process.Process, own, other string) {
	t.Helper()
	refused := volume{process: drivers[secretsDriver], pod: s.mount(t, "refused", secretsDriver, other)}
	missing := volume{process: drivers[elsewhereDriver], pod: s.mount(t, "missing", elsewhereDriver, own)}
	s.saw("a driver pulls another team's image", "%s", s.awaitMessage(t, refused.pod, "FailedMount: ", otherTeam+"/web"))
	s.saw("… and the pod's event of Pullpass says", "%s", s.awaitMessage(t, refused.pod, "ImagePullDenied: ", "repository:"+otherTeam+"/web:pull", "Remedy: "))
	s.proxy.AwaitAudit(t, 0, "scope_not_granted", func(e pullpass.Event) bool {
		return about(e, refused.pod, driverAgent) && e.Reason == "scope_not_granted"
	})
	message := s.awaitMessage(t, missing.pod, "FailedMount: ", registryName, "spec.tokenRequests of the CSIDriver object")
	s.saw("a driver without a token for the registry", "%s", message)
	if asked := events(t, s.proxy, missing.pod, driverAgent); len(asked) > 0 {
		t.Errorf("without a token for the registry, the driver asked: %+v", asked)
	}
	for _, v := range []volume{refused, missing} {
		if state := container(s.Get(t, cluster.PodPath(v.pod))).Text("state", "waiting", "reason"); state != "ContainerCreating" {
			t.Errorf("pod %s: %s", v.pod.Name(), state)
		}
	}
}
