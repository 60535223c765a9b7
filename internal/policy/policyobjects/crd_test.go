package policyobjects

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/test/schematest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

var update = flag.Bool("update-crds", false, "write the CustomResourceDefinitions of the chart")

const crdFile = "../../../deploy/helm/pullpass/files/crds.yaml"

type object = map[string]any

// The CustomResourceDefinitions must match the types. Otherwise the API server would reject objects
// that Pullpass reads, or drop fields that it needs.
func TestCustomResourceDefinitions(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	b.WriteString("# Made from the types of internal/policy/policyobjects and internal/policy: make docs.\n")
	for i, definition := range []object{
		define(t, "AccessPolicy", "accesspolicies", "apol", "Cluster", &AccessPolicy{}, &AccessPolicyStatus{},
			column("Rules", ".spec.rules[*].name"), column("Denials", ".spec.deny[*].name"), condition(Accepted, "status"), wide(condition(Accepted, "message")), age),
		define(t, "RepositoryAccess", "repositoryaccesses", "ra", "Namespaced", &RepositoryAccess{}, &RepositoryAccessStatus{},
			column("ServiceAccounts", ".spec.serviceAccounts"), column("Repositories", ".spec.repositories"), column("Actions", ".spec.actions"),
			condition(Granted, "status"), condition(Granted, "reason"), wide(condition(Granted, "message")), age),
	} {
		text := testkit.Value(yaml.Marshal(definition))(t)
		if i > 0 {
			b.WriteString("---\n")
		}
		b.Write(text)
	}
	if *update {
		testkit.Must(t, os.WriteFile(crdFile, b.Bytes(), 0o644))
	}
	if got, err := os.ReadFile(crdFile); err != nil || !bytes.Equal(got, b.Bytes()) {
		t.Errorf("%s is stale: run make docs (%v)", crdFile, err)
	}
}

var age = object{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}

func column(name, path string) object {
	return object{"name": name, "type": "string", "jsonPath": path}
}

// condition is a column with a field of a condition. The column of the field status has the
// condition's name.
func condition(name, field string) object {
	title := name
	if field != "status" {
		title = strings.ToUpper(field[:1]) + field[1:]
	}
	return column(title, `.status.conditions[?(@.type=="`+name+`")].`+field)
}

// wide restricts a column to kubectl get -o wide.
func wide(column object) object {
	column["priority"] = 1
	return column
}

func define(t *testing.T, kind, plural, short, scope string, spec, status any, columns ...any) object {
	t.Helper()
	group, current, _ := strings.Cut(policy.APIVersion, "/")
	specSchema := structural(t, kind+".spec", schematest.Describe(t, spec))
	statusSchema := structural(t, kind+".status", schematest.Describe(t, status))
	var versions []object
	for _, v := range strictyaml.CurrentVersion.Values() {
		_, name, _ := strings.Cut(string(v), "/")
		version := object{
			"name": name, "served": true, "storage": name == current, "additionalPrinterColumns": columns,
			"schema": object{"openAPIV3Schema": object{
				"type": "object", "required": []string{"spec"}, "properties": object{
					"apiVersion": object{"type": "string"}, "kind": object{"type": "string"}, "metadata": object{"type": "object"},
					"spec": specSchema, "status": statusSchema,
				},
			}},
			// A user who may edit an object must not be able to write its status.
			"subresources": object{"status": object{}},
		}
		if v == strictyaml.DeprecatedVersion {
			version["deprecated"], version["deprecationWarning"] = true, fmt.Sprintf("%s %s is deprecated; use %s", v, kind, policy.APIVersion)
		}
		versions = append(versions, version)
	}
	return object{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		// Objects of a cluster's teams must not be deleted with the release.
		"metadata": object{"name": plural + "." + group, "annotations": object{"helm.sh/resource-policy": "keep"}},
		"spec": object{
			"group": group, "scope": scope,
			"names": object{"kind": kind, "listKind": kind + "List", "plural": plural, "singular": strings.ToLower(kind), "shortNames": []string{short}, "categories": []string{"pullpass"}},
			// The versions differ in nothing but their names.
			"conversion": object{"strategy": "None"}, "versions": versions,
		},
	}
}

const (
	defaultMaxLength = 512
	defaultMaxItems  = 64
)

// limits are the maxima of lists, maps and texts where the default does not apply. They determine
// the estimated cost of a rule in the API server.
var limits = map[string]int{
	"AccessPolicy.spec.rules": 256, "AccessPolicy.spec.deny": 256,
	"AccessPolicy.spec.rules[].subjects": 32, "AccessPolicy.spec.deny[].subjects": 32,
	"AccessPolicy.spec.rules[].allow": 32,
	"AccessPolicy.spec.rules[].name":  63, "AccessPolicy.spec.deny[].name": 63,
	"AccessPolicy.spec.rules[].subjects[].condition": 2048, "AccessPolicy.spec.deny[].subjects[].condition": 2048,
	"AccessPolicy.spec.rules[].allow[].actions": 4, "AccessPolicy.spec.rules[].allow[].registry": 1,
	"RepositoryAccess.spec.serviceAccounts": 64, "RepositoryAccess.spec.serviceAccounts[]": 253,
	"RepositoryAccess.spec.repositories": 128, "RepositoryAccess.spec.actions": 4,
	"RepositoryAccess.status.repositories": 128, "AccessPolicy.status.conditions[].message": 2048, "RepositoryAccess.status.conditions[].message": 2048,
	"RepositoryAccess.status.repositories[].reason": 1024,
	"AccessPolicy.status.conditions":                8, "RepositoryAccess.status.conditions": 8,
}

// required are the fields that are required only in objects. The policy's parser reports them in
// files with a different message.
var required = map[string][]string{
	"AccessPolicy.spec.rules[]":         {"name", "subjects", "allow"},
	"AccessPolicy.spec.rules[].allow[]": {"repositories", "actions"},
}

// preserved lists where an unknown field must not be dropped. A mistyped limit of a rule, or a
// mistyped deny beside it, would silently grant more than is written. Pullpass rejects the object.
// A mistyped limit of a denial refuses more than is written: the status of the object must say so.
var preserved = []string{
	"AccessPolicy.spec.deny[]", "AccessPolicy.spec.deny[].subjects[]", "AccessPolicy.spec.deny[].subjects[].namespaceSelector", "AccessPolicy.spec.deny[].subjects[].namespaceSelector.matchExpressions[]",
	"AccessPolicy.spec", "AccessPolicy.spec.rules[]", "AccessPolicy.spec.rules[].subjects[]", "AccessPolicy.spec.rules[].subjects[].namespaceSelector", "AccessPolicy.spec.rules[].subjects[].namespaceSelector.matchExpressions[]", "AccessPolicy.spec.rules[].allow[]",
}

const inFiles = ": write it in a policy file"

// rules are what must hold between fields, in CEL.
var rules = map[string][][2]string{
	"AccessPolicy.spec": {{"!has(self.rules) || !has(self.deny) || self.rules.all(r, !self.deny.exists(d, d.name == r.name))", "rules and denials share one set of names"}},
	"AccessPolicy.spec.rules[]": {
		{"!has(self.anonymous) || !self.anonymous", "who is anonymous is of no cluster" + inFiles},
		{"!has(self.annotation)", "objects read no annotations: write requests: true for what RepositoryAccess objects ask for, or the rule in a policy file"},
	},
	"AccessPolicy.spec.rules[].subjects[]": {{"!has(self.identities) && !has(self.claims)", "an object speaks for the ServiceAccounts of its own cluster" + inFiles}},
	"AccessPolicy.spec.deny[].subjects[]":  {{"!has(self.identities) && !has(self.claims)", "an object speaks for the ServiceAccounts of its own cluster" + inFiles}},
	"AccessPolicy.spec.rules[].allow[]":    {{"!has(self.registry)", "objects allow repositories alone" + inFiles}},
	"RepositoryAccess.spec": {
		{"self.repositories.all(r, !r.contains('{'))", "placeholders work in the policy only: write the name itself"},
		{"self.repositories.all(r, r.indexOf('**') == r.lastIndexOf('**'))", "a pattern has at most one **: write an item for each repository"},
	},
}

// listTypes let the API server reject duplicates, and let server-side apply change one element.
var listTypes = map[string]string{
	"AccessPolicy.spec.rules": "name", "AccessPolicy.spec.deny": "name",
	"RepositoryAccess.spec.serviceAccounts": "", "RepositoryAccess.spec.repositories": "", "RepositoryAccess.spec.actions": "",
	"AccessPolicy.status.conditions": "type", "RepositoryAccess.status.conditions": "type",
}

var formats = map[string]string{
	"AccessPolicy.status.conditions[].lastTransitionTime": "date-time", "RepositoryAccess.status.conditions[].lastTransitionTime": "date-time",
	"RepositoryAccess.status.repositories[].lastUsed": "date",
}

const repositoryPattern = `^[a-zA-Z0-9._:*{}/-]+$`

var patterns = map[string]string{
	"AccessPolicy.spec.rules[].allow[].repositories[]": repositoryPattern,
	"RepositoryAccess.spec.repositories[]":             repositoryPattern,
	"RepositoryAccess.spec.serviceAccounts[]":          `^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`,
}

// structural makes a structural schema, with an end to everything, of one of JSON Schema:
// https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema
func structural(t *testing.T, path string, from object) object {
	t.Helper()
	s := object{}
	for _, key := range []string{"description", "type", "enum", "pattern", "minLength", "minItems", "minProperties"} {
		if value, ok := from[key]; ok {
			s[key] = value
		}
	}
	if types, ok := s["type"].([]any); ok { // a selector as text has its own form
		s["type"] = types[len(types)-1]
		delete(s, "minLength")
	}
	limit := func(otherwise int) int {
		if n, ok := limits[path]; ok {
			return n
		}
		return otherwise
	}
	switch s["type"] {
	case "string":
		if pattern, ok := patterns[path]; ok {
			s["pattern"] = pattern
		}
		if format, ok := formats[path]; ok {
			s["format"] = format
		} else if s["enum"] == nil {
			s["maxLength"] = limit(defaultMaxLength)
		}
	case "array":
		s["items"], s["maxItems"] = structural(t, path+"[]", from["items"].(object)), limit(defaultMaxItems)
		if key, ok := listTypes[path]; ok {
			s["x-kubernetes-list-type"] = map[bool]string{true: "set", false: "map"}[key == ""]
			if key != "" {
				s["x-kubernetes-list-map-keys"] = []string{key}
			}
		}
	case "object":
		fields, _ := from["properties"].(object)
		properties := object{}
		for name, field := range fields {
			properties[name] = structural(t, path+"."+name, field.(object))
		}
		if of, ok := from["additionalProperties"].(object); ok {
			value := structural(t, path+"{}", of)
			if strings.HasSuffix(path, ".matchLabels") {
				value["nullable"] = true // as the fields below
			}
			s["additionalProperties"], s["maxProperties"] = value, limit(defaultMaxItems)
		} else {
			s["properties"] = properties
		}
		if names := required[path]; names != nil {
			s["required"] = names
		} else if names := from["required"]; names != nil {
			s["required"] = names
		}
		if strings.HasSuffix(path, ".subjects[]") || path == "AccessPolicy.spec" {
			s["minProperties"] = 1
		}
		if slices.Contains(preserved, path) {
			s["x-kubernetes-preserve-unknown-fields"] = true
		}
		if slices.Contains(preserved, path) {
			// The API server drops a field without a value, unless it is nullable: "serviceAccounts:" would grant
			// to all of a namespace. Pullpass rejects the object.
			// Lists of rules and denials mean nothing if they have no value.
			for name, field := range properties {
				if isList := name == "rules" || name == "deny"; !isList && !strings.Contains(fmt.Sprint(s["required"]), name) {
					field.(object)["nullable"] = true
				}
			}
		}
		for _, rule := range rules[path] {
			validations, _ := s["x-kubernetes-validations"].([]object)
			s["x-kubernetes-validations"] = append(validations, object{"rule": rule[0], "message": rule[1]})
		}
	case "boolean", "integer":
	default:
		t.Errorf("%s: type %v", path, s["type"])
	}
	return s
}

// Paths of the generator must exist.
func TestEveryExtraIsOfAField(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	var walk func(path string, s object)
	walk = func(path string, s object) {
		seen[path] = true
		if items, ok := s["items"].(object); ok {
			walk(path+"[]", items)
		}
		fields, _ := s["properties"].(object)
		for name, field := range fields {
			walk(path+"."+name, field.(object))
		}
	}
	for path, of := range map[string]any{
		"AccessPolicy.spec": &AccessPolicy{}, "RepositoryAccess.spec": &RepositoryAccess{},
		"AccessPolicy.status": &AccessPolicyStatus{}, "RepositoryAccess.status": &RepositoryAccessStatus{},
	} {
		walk(path, schematest.Describe(t, of))
	}
	for _, path := range slices.Concat(slices.Collect(maps.Keys(limits)), slices.Collect(maps.Keys(required)), preserved, slices.Collect(maps.Keys(rules)), slices.Collect(maps.Keys(listTypes)), slices.Collect(maps.Keys(formats)), slices.Collect(maps.Keys(patterns))) {
		if !seen[path] {
			t.Errorf("%s is not a field", path)
		}
	}
}
