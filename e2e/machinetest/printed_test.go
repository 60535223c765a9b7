package machinetest

import (
	"bytes"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/mail"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// printed lets the API server judge what is printed for those who make nodes, by the definitions that they publish, and strictly: a
// field that they do not know is an error.
func printed(t *testing.T, s *site) {
	start := time.Now()
	for _, file := range programs.NodeTemplates(t) {
		var definition cluster.Object
		testenv.Must(t, yaml.Unmarshal([]byte(testenv.ReadFile(t, file)), &definition))
		s.Create(t, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
	}
	for _, test := range []struct {
		platform, collection string
		certificate          bool
		others               map[string]any // what belongs beside what is printed
	}{
		{"cluster-api", "/apis/bootstrap.cluster.x-k8s.io/v1beta2/namespaces/default/kubeadmconfigtemplates", true, nil},
		{"karpenter", "/apis/karpenter.k8s.aws/v1/ec2nodeclasses", false, map[string]any{
			"role":                       "nodes",
			"amiSelectorTerms":           []any{map[string]any{"alias": "al2023@latest"}},
			"subnetSelectorTerms":        []any{map[string]any{"tags": map[string]any{"a": "b"}}},
			"securityGroupSelectorTerms": []any{map[string]any{"tags": map[string]any{"a": "b"}}},
		}},
	} {
		output, err := exec.CommandContext(t.Context(), programs.Pullpass(t), "node-install", "print", "--config="+s.config(t, registryName, test.certificate),
			"--registry="+registryName, "--profile="+test.platform).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, output)
		}
		var object map[string]any
		testenv.Must(t, yaml.Unmarshal(output, &object))
		object["metadata"] = cluster.Object{"name": "nodes"}
		maps.Copy(object["spec"].(map[string]any), test.others)
		testenv.Await(t, podLimit, "the definition for "+test.platform+" is served", func() bool {
			_, err := s.Try(t.Context(), "GET", test.collection, nil)
			return err == nil
		})
		if _, err := s.Try(t.Context(), "POST", test.collection+"?fieldValidation=Strict", object); err != nil {
			t.Errorf("%v\n%s", err, output)
		}
		if test.platform == "karpenter" {
			runsAtBoot(t, object["spec"].(map[string]any)["userData"].(string))
		}
		object["metadata"] = cluster.Object{"name": "wrong"}
		object["spec"].(map[string]any)["notAField"] = "x"
		if _, err := s.Try(t.Context(), "POST", test.collection+"?fieldValidation=Strict", object); err == nil || !strings.Contains(err.Error(), "notAField") {
			t.Errorf("an unknown field: %v", err)
		}
	}
	s.table.add("all", "printed for Cluster API and Karpenter", time.Since(start), "the API server takes it, by their definitions")
}

// runsAtBoot reads user data as cloud-init and nodeadm do: a script, and a NodeConfig.
func runsAtBoot(t *testing.T, userData string) {
	t.Helper()
	message, err := mail.ReadMessage(strings.NewReader(userData))
	testenv.Must(t, err)
	_, parameters, err := mime.ParseMediaType(message.Header.Get("Content-Type"))
	testenv.Must(t, err)
	parts := multipart.NewReader(message.Body, parameters["boundary"])
	var script, config []byte
	for _, content := range []*[]byte{&script, &config} {
		part := testenv.Value(parts.NextPart())(t)
		*content = testenv.Value(io.ReadAll(part))(t)
	}
	// A text that does not end where it is to is a warning.
	if output, err := exec.CommandContext(t.Context(), "bash", "-n", "-c", string(script)).CombinedOutput(); err != nil || len(output) > 0 {
		t.Errorf("bash: %v: %s\n%s", err, output, script)
	}
	var node struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string `yaml:"kind"`
		Spec       struct {
			Kubelet struct {
				Flags []string `yaml:"flags"`
			} `yaml:"kubelet"`
		} `yaml:"spec"`
	}
	decoder := yaml.NewDecoder(bytes.NewReader(config))
	decoder.KnownFields(true)
	if err := decoder.Decode(&node); err != nil || node.APIVersion != "node.eks.aws/v1alpha1" || node.Kind != "NodeConfig" || len(node.Spec.Kubelet.Flags) != 1 {
		t.Errorf("%v: %s", err, config)
	}
}
