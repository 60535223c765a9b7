package tokensecrets

import (
	"bytes"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"cel.dev/cel-go/cel"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const controllerUser = "system:serviceaccount:pullpass:pullpass-pull-secrets"

// manifest returns the objects of the file by KIND/NAME, each decoded strictly.
func manifest(t *testing.T) map[string]any {
	t.Helper()
	text := testkit.Value(os.ReadFile("../../../deploy/kubernetes/pull-secrets-controller.yaml"))(t)
	kinds := map[string]func() any{
		"ServiceAccount": func() any { return &corev1.ServiceAccount{} }, "ClusterRole": func() any { return &rbacv1.ClusterRole{} },
		"ClusterRoleBinding": func() any { return &rbacv1.ClusterRoleBinding{} }, "Role": func() any { return &rbacv1.Role{} },
		"RoleBinding": func() any { return &rbacv1.RoleBinding{} }, "Deployment": func() any { return &appsv1.Deployment{} }, "ConfigMap": func() any { return &corev1.ConfigMap{} },
		"ValidatingAdmissionPolicy":        func() any { return &admissionv1.ValidatingAdmissionPolicy{} },
		"ValidatingAdmissionPolicyBinding": func() any { return &admissionv1.ValidatingAdmissionPolicyBinding{} },
		"MutatingAdmissionPolicy":          func() any { return &admissionv1.MutatingAdmissionPolicy{} },
		"MutatingAdmissionPolicyBinding":   func() any { return &admissionv1.MutatingAdmissionPolicyBinding{} },
	}
	all := map[string]any{}
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		var head struct {
			Kind     string
			Metadata struct{ Name string }
		}
		testkit.Must(t, yaml.Unmarshal(document, &head))
		o := kinds[head.Kind]()
		if err := yaml.UnmarshalStrict(document, o); err != nil {
			t.Errorf("%s %s: %v", head.Kind, head.Metadata.Name, err)
		}
		all[head.Kind+"/"+head.Metadata.Name] = o
	}
	return all
}

func TestControllerCannotReadSecrets(t *testing.T) {
	t.Parallel()
	role := manifest(t)["ClusterRole/pullpass-pull-secrets"].(*rbacv1.ClusterRole)
	for _, rule := range role.Rules {
		if slices.Contains(rule.Resources, "*") || slices.Contains(rule.Verbs, "*") || slices.Contains(rule.APIGroups, "*") {
			t.Errorf("%+v is for everything", rule)
		}
		if slices.Contains(rule.Resources, "secrets") && !slices.Equal(rule.Verbs, []string{"create", "update"}) {
			t.Errorf("verbs %q on Secrets", rule.Verbs)
		}
		if slices.Contains(rule.Resources, "serviceaccounts") && !slices.Equal(rule.Verbs, []string{"get", "list", "watch"}) {
			t.Errorf("verbs %q on ServiceAccounts", rule.Verbs)
		}
	}
}

// admits evaluates a policy like an API server, except for the types of its variables.
func admits(t *testing.T, p *admissionv1.ValidatingAdmissionPolicy, vars kubetest.Object) (refusals []string) {
	t.Helper()
	env := testkit.Value(cel.NewEnv(cel.OptionalTypes(), cel.Variable("object", cel.DynType), cel.Variable("oldObject", cel.DynType), cel.Variable("request", cel.DynType),
		cel.Variable("params", cel.DynType), cel.Variable("namespaceObject", cel.DynType), cel.Variable("variables", cel.DynType)))(t)
	evaluate := func(expression string, vars kubetest.Object) any {
		compiled, issues := env.Compile(expression)
		if issues.Err() != nil {
			t.Fatalf("%s: %v", expression, issues.Err())
		}
		program, err := env.Program(compiled)
		testkit.Must(t, err)
		value, _, err := program.Eval(vars)
		if err != nil {
			return err // with failurePolicy Fail it refuses
		}
		return value.Value()
	}
	vars = maps.Clone(vars)
	for _, c := range p.Spec.MatchConditions {
		if evaluate(c.Expression, vars) == false {
			return nil
		}
	}
	variables := kubetest.Object{}
	vars["variables"] = variables
	for _, v := range p.Spec.Variables {
		variables[v.Name] = evaluate(v.Expression, vars)
	}
	for _, v := range p.Spec.Validations {
		if got := evaluate(v.Expression, vars); got != true {
			refusals = append(refusals, v.Message)
		}
	}
	return refusals
}

// change returns a request of the controller with changed fields, which are given by their paths.
func change(base kubetest.Object, fields kubetest.Object) kubetest.Object {
	var clone func(any) any
	clone = func(v any) any {
		switch v := v.(type) {
		case kubetest.Object:
			c := kubetest.Object{}
			for key, value := range v {
				c[key] = clone(value)
			}
			return c
		case []any:
			c := slices.Clone(v)
			for i := range c {
				c[i] = clone(c[i])
			}
			return c
		}
		return v
	}
	changed := clone(base).(kubetest.Object)
	for _, path := range slices.Sorted(maps.Keys(fields)) { // parents come before their children
		value := clone(fields[path])
		parts := strings.Split(path, "/")
		o := changed
		for _, part := range parts[:len(parts)-1] {
			if list, ok := o[part].([]any); ok {
				o = list[0].(kubetest.Object)
				continue
			}
			o = o[part].(kubetest.Object)
		}
		if last := parts[len(parts)-1]; value == nil {
			delete(o, last)
		} else {
			o[last] = value
		}
	}
	return changed
}

// The policy allows the work of the controller. The responsible check refuses every other request.
func TestPolicyBoundsTheController(t *testing.T) {
	t.Parallel()
	policy := manifest(t)["ValidatingAdmissionPolicy/pullpass-pull-secrets"].(*admissionv1.ValidatingAdmissionPolicy)
	if *policy.Spec.FailurePolicy != admissionv1.Fail {
		t.Error("what cannot be judged is let pass")
	}
	namespace := kubetest.Object{"metadata": kubetest.Object{"name": "team-a", "labels": kubetest.Object{Label: Enabled}}}
	request := kubetest.Object{"operation": "CREATE", "dryRun": false, "userInfo": kubetest.Object{"username": controllerUser}, "resource": kubetest.Object{"resource": "serviceaccounts"}, "name": "web"}
	token := kubetest.Object{"request": request, "namespaceObject": namespace, "oldObject": nil, "params": nil, "object": kubetest.Object{"spec": kubetest.Object{
		"audiences": []any{audience}, "expirationSeconds": int64(3600),
		"boundObjectRef": kubetest.Object{"kind": "Secret", "apiVersion": "v1", "name": NamePrefix + "web", "uid": "u"},
	}}}
	secret := kubetest.Object{"type": "kubernetes.io/dockerconfigjson", "metadata": kubetest.Object{
		"name": NamePrefix + "web", "labels": kubetest.Object{managerLabel: manager},
		"ownerReferences": []any{kubetest.Object{"apiVersion": "v1", "kind": "ServiceAccount", "name": "web", "uid": "uid-web"}},
	}}
	create := change(token, kubetest.Object{"object": secret, "request/resource/resource": "secrets", "request/name": NamePrefix + "web"})
	update := change(create, kubetest.Object{"oldObject": secret, "request/operation": "UPDATE"})
	foreign := kubetest.Object{"type": "Opaque", "metadata": kubetest.Object{"name": NamePrefix + "web"}}
	const (
		optIn, otherAudience, tooLong, notBound = "the namespace has not opted in", "the token is for another audience than that of pull secrets", "the token lives longer than an hour", "the token is not bound to the Secret of its ServiceAccount"
		notOurs, others, outlives               = "the Secret is not one of a ServiceAccount", foreignWords, "the Secret would have another owner, or outlive it"
	)
	for name, test := range map[string]struct {
		request kubetest.Object
		want    []string
	}{
		"a token":                  {token, nil},
		"a Secret":                 {create, nil},
		"a Secret with a token":    {update, nil},
		"by another user":          {change(token, kubetest.Object{"request/userInfo/username": "admin", "object/spec/audiences": []any{"api"}}), nil},
		"a namespace without":      {change(token, kubetest.Object{"namespaceObject/metadata/labels": nil}), []string{optIn}},
		"a namespace with another": {change(create, kubetest.Object{"namespaceObject/metadata/labels": kubetest.Object{Label: "disabled"}}), []string{optIn}},
		"no namespace":             {change(token, kubetest.Object{"namespaceObject": kubetest.Object{}}), []string{optIn}},
		"the API's audience":       {change(token, kubetest.Object{"object/spec/audiences": []any{"https://kubernetes.default.svc"}}), []string{otherAudience}},
		"two audiences":            {change(token, kubetest.Object{"object/spec/audiences": []any{audience, "api"}}), []string{otherAudience}},
		"no audience":              {change(token, kubetest.Object{"object/spec/audiences": []any{}}), []string{otherAudience}},
		"a day":                    {change(token, kubetest.Object{"object/spec/expirationSeconds": int64(86400)}), []string{tooLong}},
		"the default lifetime":     {change(token, kubetest.Object{"object/spec/expirationSeconds": nil}), []string{tooLong}},
		"bound to nothing":         {change(token, kubetest.Object{"object/spec/boundObjectRef": nil}), []string{notBound}},
		"bound to a pod":           {change(token, kubetest.Object{"object/spec/boundObjectRef/kind": "Pod"}), []string{notBound}},
		"bound to another Secret":  {change(token, kubetest.Object{"object/spec/boundObjectRef/name": NamePrefix + "other"}), []string{notBound}},
		"bound by name alone":      {change(token, kubetest.Object{"object/spec/boundObjectRef/uid": nil}), []string{notBound}},
		"another type":             {change(create, kubetest.Object{"object/type": "kubernetes.io/service-account-token"}), []string{notOurs}},
		"no label":                 {change(create, kubetest.Object{"object/metadata/labels": nil}), []string{notOurs}},
		"no owner":                 {change(create, kubetest.Object{"object/metadata/ownerReferences": nil}), []string{notOurs}},
		"an owner of another name": {change(create, kubetest.Object{"object/metadata/ownerReferences/name": "x"}), []string{notOurs}},
		"another kind of owner":    {change(create, kubetest.Object{"object/metadata/ownerReferences/kind": "Pod"}), []string{notOurs}},
		"another name":             {change(create, kubetest.Object{"object/metadata/name": "x"}), []string{notOurs}},
		"a finalizer":              {change(create, kubetest.Object{"object/metadata/finalizers": []any{"example.com/x"}}), []string{outlives}},
		"a finalizer, later":       {change(update, kubetest.Object{"object/metadata/finalizers": []any{"example.com/x"}}), []string{outlives}},
		"a finalizer of others":    {change(update, kubetest.Object{"object/metadata/finalizers": []any{"a/b"}, "oldObject/metadata/finalizers": []any{"a/b"}}), []string{outlives}},
		"without it any more":      {change(update, kubetest.Object{"oldObject/metadata/finalizers": []any{"a/b"}}), nil},
		"a Secret of others":       {change(update, kubetest.Object{"oldObject": foreign}), []string{others, outlives}},
		"of another type":          {change(update, kubetest.Object{"oldObject/type": "Opaque"}), []string{others}},
		"without our label":        {change(update, kubetest.Object{"oldObject/metadata/labels": nil}), []string{others}},
		"of another owner":         {change(update, kubetest.Object{"oldObject/metadata/ownerReferences/name": "x"}), []string{others}},
		"another owner than now":   {change(update, kubetest.Object{"oldObject/metadata/ownerReferences/uid": "x"}), []string{outlives}},
		"a changed reference to the owner": {change(update, kubetest.Object{"oldObject/metadata/ownerReferences/controller": true, "oldObject/metadata/ownerReferences/blockOwnerDeletion": true,
			"oldObject/metadata/ownerReferences/apiVersion": "example.com/v1"}), nil},
		"to look at ours":                 {change(update, kubetest.Object{"request/dryRun": true}), nil},
		"a dry run on a Secret of others": {change(update, kubetest.Object{"object": foreign, "oldObject": foreign, "request/dryRun": true}), []string{others, notOurs, outlives}},
		"to look by taking over":          {change(update, kubetest.Object{"oldObject": foreign, "request/dryRun": true}), []string{others, outlives}},
		"to look by creating":             {change(create, kubetest.Object{"object": foreign, "request/dryRun": true}), []string{notOurs}},
	} {
		if got := admits(t, policy, test.request); !slices.Equal(got, test.want) {
			t.Errorf("%s: refused by %q, want %q", name, got, test.want)
		}
	}

	// Every object that has not opted in is a parameter.
	optedOut := manifest(t)["ValidatingAdmissionPolicy/pullpass-pull-secrets-opt-in"].(*admissionv1.ValidatingAdmissionPolicy)
	params := func(request kubetest.Object, name string) kubetest.Object {
		return change(request, kubetest.Object{"params": kubetest.Object{"metadata": kubetest.Object{"name": name}}})
	}
	for _, request := range []kubetest.Object{token, create, update} {
		if got := admits(t, optedOut, params(request, "other")); got != nil {
			t.Errorf("refused by %q", got)
		}
		if got := admits(t, optedOut, params(request, "web")); !slices.Equal(got, []string{"the ServiceAccount has not opted in"}) {
			t.Errorf("refused by %q", got)
		}
	}
}

// The manifest and the code use the same names.
func TestManifestIsOfThisController(t *testing.T) {
	t.Parallel()
	all := manifest(t)
	selected := all["MutatingAdmissionPolicyBinding/pullpass-pull-secrets"].(*admissionv1.MutatingAdmissionPolicyBinding).Spec.ParamRef.Selector.MatchLabels
	mutating := all["MutatingAdmissionPolicy/pullpass-pull-secrets"].(*admissionv1.MutatingAdmissionPolicy).Spec
	if want := map[string]string{Label: Enabled}; !maps.Equal(selected, want) || !maps.Equal(mutating.MatchConstraints.NamespaceSelector.MatchLabels, want) {
		t.Errorf("selected are %v", selected)
	}
	if expression := mutating.Mutations[0].JSONPatch.Expression; strings.Count(expression, "'"+NamePrefix+"' + params.metadata.name") != 2 {
		t.Errorf("pods get another name: %s", expression)
	}
	role := all["Role/pullpass-pull-secrets"].(*rbacv1.Role)
	if !slices.Equal(role.Rules[1].ResourceNames, []string{leaseName}) {
		t.Errorf("Leases %q", role.Rules[1].ResourceNames)
	}
	if all["ConfigMap/"+memoryName] == nil || !slices.Equal(role.Rules[2].ResourceNames, []string{memoryName}) || slices.Contains(role.Rules[2].Verbs, "patch") {
		t.Errorf("the memory: %+v", role.Rules[2])
	}
	var words []string
	for _, name := range []string{"", "-opt-in"} {
		for _, v := range all["ValidatingAdmissionPolicy/pullpass-pull-secrets"+name].(*admissionv1.ValidatingAdmissionPolicy).Spec.Validations {
			words = append(words, v.Message)
		}
	}
	for _, w := range []string{foreignWords, staleWords, otherWords, optInWords} {
		if !slices.Contains(words, w) {
			t.Errorf("no policy says %q", w)
		}
	}
	optedOut := all["ValidatingAdmissionPolicyBinding/pullpass-pull-secrets-opt-in"].(*admissionv1.ValidatingAdmissionPolicyBinding).Spec.ParamRef
	if e := optedOut.Selector.MatchExpressions[0]; e.Key != Label || e.Operator != "NotIn" || !slices.Equal(e.Values, []string{Enabled}) {
		t.Errorf("parameters are %+v", e)
	}
}
