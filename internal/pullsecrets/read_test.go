package pullsecrets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const registry = "registry.example.com"

// cluster is an API server with the objects of one namespace, and the configuration that reads it.
type cluster struct {
	*kubetest.ListServer
	Config
}

// newCluster returns a cluster with two pull Secrets, "ours" and "other", a Secret "token" with a token, and no workload.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{ListServer: kubetest.NewListServer(t)}
	c.Config = Config{REST: &rest.Config{Host: c.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, Issuer: c.ListServer.Issuer, Registries: []string{registry}}
	clear(c.Objects)
	for name, host := range map[string]string{"ours": registry, "other": "other.example.com"} {
		c.put(t, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{"` + host + `":{}}}`)},
		})
	}
	c.put(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "token"}, Type: corev1.SecretTypeServiceAccountToken})
	return c
}

// put adds objects to the namespace "team".
func (c *cluster) put(t *testing.T, objects ...metav1.Object) {
	t.Helper()
	for _, o := range objects {
		o.SetNamespace("team")
		if o.GetUID() == "" {
			o.SetUID(types.UID("uid-" + o.GetName()))
		}
		text := testkit.Value(json.Marshal(o))(t)
		var object kubetest.Object
		testkit.Must(t, json.Unmarshal(text, &object))
		resource := strings.ToLower(reflect.TypeOf(o).Elem().Name()) + "s"
		c.Objects[resource] = append(c.Objects[resource], object)
	}
}

func (c *cluster) read(t *testing.T) *Inventory {
	t.Helper()
	inventory := testkit.Value(Read(t.Context(), c.Config))(t)
	return inventory
}

// workloads returns the only workload.
func (c *cluster) workload(t *testing.T) Workload {
	t.Helper()
	got := c.read(t).Workloads
	if len(got) != 1 {
		t.Fatalf("workloads %+v, want one", got)
	}
	return got[0]
}

// named makes the metadata of an object, which another object controls if made names it.
func named(name string, made ...string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: name}
	if len(made) > 0 {
		yes := true
		m.OwnerReferences = []metav1.OwnerReference{{Kind: made[0], Name: made[1], UID: types.UID("uid-" + made[1]), Controller: &yes}}
	}
	return m
}

// runs is a pod of one image, with these imagePullSecrets.
func runs(image string, secrets ...string) corev1.PodSpec {
	spec := corev1.PodSpec{Containers: []corev1.Container{{Image: image}}}
	for _, name := range secrets {
		spec.ImagePullSecrets = append(spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	return spec
}

func template(spec corev1.PodSpec) corev1.PodTemplateSpec { return corev1.PodTemplateSpec{Spec: spec} }

func TestWorkloadOfEachKind(t *testing.T) {
	t.Parallel()
	spec := template(runs(registry+"/app", "ours"))
	for kind, o := range map[string]metav1.Object{
		"ReplicationController": &corev1.ReplicationController{ObjectMeta: named("app"), Spec: corev1.ReplicationControllerSpec{Template: &spec}},
		"Deployment":            &appsv1.Deployment{ObjectMeta: named("app"), Spec: appsv1.DeploymentSpec{Template: spec}},
		"StatefulSet":           &appsv1.StatefulSet{ObjectMeta: named("app"), Spec: appsv1.StatefulSetSpec{Template: spec}},
		"DaemonSet":             &appsv1.DaemonSet{ObjectMeta: named("app"), Spec: appsv1.DaemonSetSpec{Template: spec}},
		"ReplicaSet":            &appsv1.ReplicaSet{ObjectMeta: named("app"), Spec: appsv1.ReplicaSetSpec{Template: spec}},
		"Job":                   &batchv1.Job{ObjectMeta: named("app"), Spec: batchv1.JobSpec{Template: spec}},
		"CronJob":               &batchv1.CronJob{ObjectMeta: named("app"), Spec: batchv1.CronJobSpec{JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: spec}}}},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.put(t, o)
			want := Workload{Key: Key{"team", "app"}, Kind: kind, Account: "default", Template: true, Own: []string{"ours"}, Images: []Image{{registry, "app"}}}
			if got := c.workload(t); !reflect.DeepEqual(got, want) {
				t.Errorf("%+v, want %+v", got, want)
			}
		})
	}
}

// A ReplicationController needs no template.
func TestReplicationControllerWithoutTemplate(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.put(t, &corev1.ReplicationController{ObjectMeta: named("app")})
	if got := c.read(t).Workloads; got != nil {
		t.Errorf("workloads %+v", got)
	}
}

// Pods of objects in between count for the object that people write.
func TestPodCountsForTheObjectThatPeopleWrite(t *testing.T) {
	t.Parallel()
	spec := runs(registry + "/app")
	between := template(spec)
	for name, o := range map[string]metav1.Object{
		"ReplicationController": &corev1.ReplicationController{ObjectMeta: named("between", "DeploymentConfig", "app"), Spec: corev1.ReplicationControllerSpec{Template: &between}},
		"ReplicaSet":            &appsv1.ReplicaSet{ObjectMeta: named("between", "DeploymentConfig", "app"), Spec: appsv1.ReplicaSetSpec{Template: between}},
		"Job":                   &batchv1.Job{ObjectMeta: named("between", "DeploymentConfig", "app"), Spec: batchv1.JobSpec{Template: between}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.put(t, o, &corev1.Pod{ObjectMeta: named("pod", name, "between"), Spec: spec})
			want := Workload{Key: Key{"team", "app"}, Kind: "DeploymentConfig", Account: "default", Pods: 1, Images: []Image{{registry, "app"}}}
			if got := c.workload(t); !reflect.DeepEqual(got, want) {
				t.Errorf("%+v, want %+v", got, want)
			}
		})
	}
}

// A pod can have imagePullSecrets that its template does not have. The template is known all the same.
func TestPodHasWhatItsTemplateHasNot(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.put(t, &appsv1.StatefulSet{ObjectMeta: named("app"), Spec: appsv1.StatefulSetSpec{Template: template(runs("other.example.com/app"))}},
		&corev1.Pod{ObjectMeta: named("app-0", "StatefulSet", "app"), Spec: runs("other.example.com/app", "ours")})
	if got := c.workload(t); !got.Template || !slices.Equal(got.Carried, []string{"ours"}) || got.Pods != 1 {
		t.Errorf("%+v", got)
	}
}

// Objects that pull nothing from the registries and name no Secret for them are left out.
func TestWorkloadsThatDoNotMatter(t *testing.T) {
	t.Parallel()
	ended := func(kind batchv1.JobConditionType, status corev1.ConditionStatus) *batchv1.Job {
		return &batchv1.Job{ObjectMeta: named("app"), Spec: batchv1.JobSpec{Template: template(runs(registry + "/app"))},
			Status: batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: kind, Status: status}}}}
	}
	pod := func(phase corev1.PodPhase, spec corev1.PodSpec) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: named("app"), Spec: spec, Status: corev1.PodStatus{Phase: phase}}
	}
	of := func(spec corev1.PodSpec) *appsv1.Deployment {
		return &appsv1.Deployment{ObjectMeta: named("app"), Spec: appsv1.DeploymentSpec{Template: template(spec)}}
	}
	for name, test := range map[string]struct {
		object  metav1.Object
		matters bool
	}{
		"a job that goes on":             {ended(batchv1.JobSuspended, corev1.ConditionTrue), true},
		"a job that is complete":         {ended(batchv1.JobComplete, corev1.ConditionTrue), false},
		"a job that has failed":          {ended(batchv1.JobFailed, corev1.ConditionTrue), false},
		"a job that has not failed":      {ended(batchv1.JobFailed, corev1.ConditionFalse), true},
		"a pod that runs":                {pod(corev1.PodRunning, runs(registry+"/app")), true},
		"a pod that succeeded":           {pod(corev1.PodSucceeded, runs(registry+"/app")), false},
		"a pod that failed":              {pod(corev1.PodFailed, runs(registry+"/app")), false},
		"an image of another registry":   {of(runs("other.example.com/app")), false},
		"an image without a registry":    {of(runs(registry)), false},
		"a Secret for another registry":  {of(runs("other.example.com/app", "other")), false},
		"a Secret for the registry":      {of(runs("other.example.com/app", "other", "ours")), true},
		"a pod with a Secret for others": {pod(corev1.PodRunning, runs("other.example.com/app", "other")), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.put(t, test.object)
			if got := c.read(t).Workloads; len(got) > 0 != test.matters {
				t.Errorf("workloads %+v", got)
			}
		})
	}
}

// Images and Secrets have many places in a pod. Mounted Secrets that are neither for the registries nor tokens are left out.
func TestImagesAndSecretsOfAPod(t *testing.T) {
	t.Parallel()
	reference := corev1.LocalObjectReference{Name: "token"}
	variable := []corev1.EnvVar{
		{Name: "text"}, {Name: "field", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{}}},
		{Name: "secret", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: reference}}},
	}
	all := []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{}}, {SecretRef: &corev1.SecretEnvSource{LocalObjectReference: reference}}}
	projected := corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ConfigMap: &corev1.ConfigMapProjection{}}, {Secret: &corev1.SecretProjection{LocalObjectReference: reference}}}}}
	image := []Image{{registry, "app"}}
	volume := func(source corev1.VolumeSource) corev1.PodSpec {
		return corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: source}}}
	}
	for name, test := range map[string]struct {
		spec    corev1.PodSpec
		images  []Image
		mounted []string
	}{
		"init container":      {corev1.PodSpec{InitContainers: []corev1.Container{{Image: "REGISTRY.example.com/app:v1", Env: variable}}}, image, []string{"token"}},
		"container":           {corev1.PodSpec{Containers: []corev1.Container{{Image: registry + "/app", EnvFrom: all}}}, image, []string{"token"}},
		"ephemeral container": {corev1.PodSpec{EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Image: registry + "/app", Env: variable}}}}, image, []string{"token"}},
		"image volume":        {corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: registry + "/app"}}}}}, image, nil},
		"secret volumes": {corev1.PodSpec{Volumes: []corev1.Volume{
			{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "ours"}}}, {VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "any"}}},
		}}, nil, []string{"ours"}},
		"projected volume": {corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: projected}}}, nil, []string{"token"}},
		"CSI":              {volume(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{NodePublishSecretRef: &reference}}), nil, []string{"token"}},
		"CSI without":      {corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{}}}, {VolumeSource: projected}}}, nil, []string{"token"}},
		"AzureFile":        {volume(corev1.VolumeSource{AzureFile: &corev1.AzureFileVolumeSource{SecretName: "token"}}), nil, []string{"token"}},
		"CephFS":           {volume(corev1.VolumeSource{CephFS: &corev1.CephFSVolumeSource{SecretRef: &reference}}), nil, []string{"token"}},
		"RBD":              {volume(corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{SecretRef: &reference}}), nil, []string{"token"}},
		"FlexVolume":       {volume(corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{SecretRef: &reference}}), nil, []string{"token"}},
		"iSCSI":            {volume(corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{SecretRef: &reference}}), nil, []string{"token"}},
		"ScaleIO":          {volume(corev1.VolumeSource{ScaleIO: &corev1.ScaleIOVolumeSource{SecretRef: &reference}}), nil, []string{"token"}},
		"StorageOS":        {volume(corev1.VolumeSource{StorageOS: &corev1.StorageOSVolumeSource{SecretRef: &reference}}), nil, []string{"token"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.put(t, &corev1.Pod{ObjectMeta: named("app"), Spec: test.spec})
			if got := c.workload(t); !slices.Equal(got.Images, test.images) || !slices.Equal(got.Mounted, test.mounted) {
				t.Errorf("%+v, want %v, %v", got, test.images, test.mounted)
			}
		})
	}
}

func TestStaticPods(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for i, image := range []string{registry + "/app", "other.example.com/app"} {
		pod := &corev1.Pod{ObjectMeta: named(fmt.Sprint("static-", i)), Spec: runs(image)}
		pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		c.put(t, pod)
	}
	if got := c.read(t); got.StaticPods != 1 || got.Workloads != nil {
		t.Errorf("%d static pods, workloads %+v", got.StaticPods, got.Workloads)
	}
}

// Of annotations, only those asked for are kept; a missing one differs from an empty one. Labels of namespaces are read if they are asked for.
func TestAnnotationsAndLabels(t *testing.T) {
	t.Parallel()
	for _, labels := range []bool{false, true} {
		c := newCluster(t)
		account := &corev1.ServiceAccount{ObjectMeta: named("app")}
		account.Annotations = map[string]string{"a": "1", "b": "", "c": "3"}
		c.put(t, account, &corev1.ServiceAccount{ObjectMeta: named("bare")})
		c.Objects["namespaces"] = []kubetest.Object{{"metadata": kubetest.Object{"name": "team", "uid": "u", "labels": kubetest.Object{"tier": "gold"}}}}
		c.AnnotationKeys, c.Labels = []string{"a", "b", "missing"}, labels
		got := c.read(t)
		if a := got.Accounts[Key{"team", "app"}].Annotations; !reflect.DeepEqual(a, map[string]string{"a": "1", "b": ""}) {
			t.Errorf("annotations %v", a)
		}
		if a := got.Accounts[Key{"team", "bare"}].Annotations; a != nil {
			t.Errorf("annotations %v", a)
		}
		if got.NamespaceLabels["team"]["tier"] == "gold" != labels || len(got.NamespaceLabels) > 0 != labels {
			t.Errorf("labels: %t; %v", labels, got.NamespaceLabels)
		}
	}
}

// Only resources whose objects can name Secrets make the inventory incomplete.
func TestComplete(t *testing.T) {
	t.Parallel()
	for resource, complete := range map[string]bool{"configmaps": true, "jobs": false} {
		c := newCluster(t)
		c.Forbid[resource] = true
		if got := c.read(t); got.Complete() != complete || len(got.Unread) != 1 {
			t.Errorf("%s: complete: %t; %v", resource, got.Complete(), got.Unread)
		}
	}
}

// Secrets are listed three times. If one of the lists fails, there is no inventory.
func TestOneListOfSecretsFails(t *testing.T) {
	t.Parallel()
	for _, kind := range []corev1.SecretType{corev1.SecretTypeDockerConfigJson, corev1.SecretTypeDockercfg, corev1.SecretTypeServiceAccountToken} {
		c := newCluster(t)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("fieldSelector") == "type="+string(kind) {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			c.ServeHTTP(w, r)
		}))
		t.Cleanup(server.Close)
		c.REST = &rest.Config{Host: server.URL}
		if _, err := Read(t.Context(), c.Config); err == nil || err.Error() != `cannot list secrets: the API server answers 500 "InternalError"` {
			t.Errorf("%s: error %v", kind, err)
		}
	}
}

func TestIssuerThatCannotBeRead(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "sekret") }))
	defer server.Close()
	_, err := Read(t.Context(), Config{REST: &rest.Config{Host: server.URL}, Issuer: "https://issuer.example.com"})
	if err == nil || err.Error() != "cannot get /.well-known/openid-configuration: the answer cannot be read" {
		t.Errorf("error %v", err)
	}
}

func TestConnectionsThatCannotBeMade(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]*rest.Config{
		"unable to load root certificates": {Host: "https://api.example.com", TLSClientConfig: rest.TLSClientConfig{CAData: []byte("x")}},
		"invalid URL escape":               {Host: "http://%zz"},
	} {
		if _, err := Read(t.Context(), Config{REST: c}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

// Each failure has its own text, and none quotes a response.
func TestFaults(t *testing.T) {
	t.Parallel()
	pods := schema.GroupResource{Resource: "pods"}
	gone := &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonGone}}
	for _, test := range []struct {
		err       error
		want      string
		forbidden bool
	}{
		{&url.Error{Err: context.DeadlineExceeded}, "the API server takes too long; --namespace asks for less", false},
		{&url.Error{Err: context.Canceled}, "interrupted", false},
		{apierrors.NewForbidden(pods, "x", errors.New("sekret")), `not allowed; the kubeconfig's user needs the verb "list" on "pods"`, true},
		{apierrors.NewUnauthorized("sekret"), "the API server does not know the kubeconfig's user; renew its credentials", false},
		{apierrors.NewResourceExpired("sekret"), "the list took longer than the API server keeps its history; run it again, or with --namespace", false},
		{gone, "the list took longer than the API server keeps its history; run it again, or with --namespace", false},
		{apierrors.NewInternalError(errors.New("sekret")), `the API server answers 500 "InternalError"`, false},
		{&url.Error{Op: "Get", URL: "https://sekret", Err: errors.New("no route to host")}, "no route to host", false},
		{errors.New("sekret"), "the answer cannot be read", false},
	} {
		got, ok := errors.AsType[*fault](newFault("list", "pods", fmt.Errorf("wrapped: %w", test.err)))
		if !ok || got.Error() != "cannot list pods: "+test.want || got.forbidden != test.forbidden {
			t.Errorf("%v: %+v, want %q", test.err, got, test.want)
		}
	}
}
