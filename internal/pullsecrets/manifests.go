package pullsecrets

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/pullpass/pullpass/internal/base/term"
)

// ReadManifests returns the pods and the objects with a pod template that have images of the
// registries. It reads objects in YAML or JSON, such as the output of helm template. Custom resources
// count if they have the template in spec.template, as those of Argo Rollouts and Knative have.
func ReadManifests(in io.Reader, registries []string) (all []Workload, err error) {
	decoder := yaml.NewYAMLOrJSONDecoder(in, 4<<10)
	for i := 1; ; i++ {
		var document json.RawMessage
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err == nil && len(document) > 0 {
			all, err = appendManifest(all, document, registries)
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", i, err)
		}
	}
}

func appendManifest(all []Workload, data []byte, registries []string) ([]Workload, error) {
	var o struct {
		Kind     string
		Metadata metav1.ObjectMeta
		Items    []json.RawMessage // of a list
	}
	err := json.Unmarshal(data, &o)
	for _, item := range o.Items {
		if err == nil {
			all, err = appendManifest(all, item, registries)
		}
	}
	if err != nil {
		return nil, err
	}
	spec, err := podSpec(o.Kind, data)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", term.Plain(o.Kind), term.Plain(o.Metadata.Name), err)
	}
	if found := images(spec, registries); len(found) > 0 {
		all = append(all, Workload{Key: keyOf(&o.Metadata), Kind: o.Kind, Account: accountOf(spec), Images: found})
	}
	return all, nil
}

// podSpec returns the zero PodSpec for objects without one.
func podSpec(kind string, data []byte) (*corev1.PodSpec, error) {
	type template struct{ Template corev1.PodTemplateSpec }
	switch kind {
	case "Pod":
		var o corev1.Pod
		err := json.Unmarshal(data, &o)
		return &o.Spec, err
	case "PodTemplate":
		var o template
		err := json.Unmarshal(data, &o)
		return &o.Template.Spec, err
	case "CronJob":
		var o struct {
			Spec struct{ JobTemplate struct{ Spec template } }
		}
		err := json.Unmarshal(data, &o)
		return &o.Spec.JobTemplate.Spec.Template.Spec, err
	}
	var o struct{ Spec template }
	err := json.Unmarshal(data, &o)
	if err != nil && !slices.Contains([]string{"DaemonSet", "Deployment", "Job", "ReplicaSet", "ReplicationController", "StatefulSet"}, kind) {
		return &corev1.PodSpec{}, nil // another kind has another template there
	}
	return &o.Spec.Template.Spec, err
}
