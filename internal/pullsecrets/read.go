package pullsecrets

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/pullsecrets/tokensecrets"
)

// The API server sets these labels on the Secret of every legacy token (KEP-2799).
const (
	lastUsedLabel     = "kubernetes.io/legacy-token-last-used"
	invalidSinceLabel = "kubernetes.io/legacy-token-invalid-since"
)

// Config selects the cluster and the objects that Read looks for.
type Config struct {
	REST           *rest.Config
	Issuer         string   // of the cluster's ServiceAccount tokens; the API server must have the same issuer
	Registries     []string // host[:port] as in the names of images
	Namespace      string   // empty: all
	AnnotationKeys []string // of ServiceAccounts; no other annotation is kept
	Labels         bool     // read the labels of namespaces
}

// templateResources can use Secrets that no pod uses at the moment.
var templateResources = []string{"replicationcontrollers", "deployments", "statefulsets", "daemonsets", "replicasets", "jobs", "cronjobs"}

// Read reads the objects of the inventory. Resources that it may not read are in Unread.
// ServiceAccounts and pods are required: without them, Read returns an error. It also returns every
// other failure as an error.
func Read(ctx context.Context, config Config) (*Inventory, error) {
	c, err := newClient(config.REST, config.Namespace)
	if err != nil {
		return nil, err
	}
	r := &reading{
		Config: config, client: c,
		Inventory: &Inventory{Accounts: map[Key]Account{}, NamespaceLabels: map[string]map[string]string{}, states: map[Key]State{}},
		passwords: map[Key][]string{}, workloads: map[workloadKey]*Workload{}, owners: map[string]Owner{}, interesting: map[Key]bool{},
	}
	steps := []struct {
		resource string
		read     func(context.Context) error
		required bool
	}{
		{"issuer", r.issuer, false},
		{"secrets", r.secrets, false},
		{"serviceaccounts", r.accounts, true},
		{"namespaces", r.namespaces, false},
		{"replicationcontrollers", r.replicationControllers, false},
		{"deployments", r.deployments, false},
		{"statefulsets", r.statefulSets, false},
		{"daemonsets", r.daemonSets, false},
		{"replicasets", r.replicaSets, false},
		{"cronjobs", r.cronJobs, false},
		{"jobs", r.jobs, false},
		{"pods", r.pods, true},
		{"configmaps", r.tracking, false},
	}
	for _, step := range steps {
		err := step.read(ctx)
		if f, ok := errors.AsType[*fault](err); ok && f.forbidden && !step.required {
			r.Unread = append(r.Unread, Unread{step.resource, f.why})
			continue
		}
		if err != nil {
			return nil, err
		}
	}
	r.finish()
	return r.Inventory, nil
}

// reading is an unfinished Inventory.
type reading struct {
	Config
	*client
	*Inventory
	passwords map[Key][]string // pull Secrets by the token Secret that they claim to hold
	workloads map[workloadKey]*Workload
	owners    map[string]Owner // controllers of ReplicaSets, ReplicationControllers and Jobs, by the UID of these

	interesting map[Key]bool // Secrets for the registries, or with a token
}

type workloadKey struct {
	Key
	kind, account string
}

// issuer verifies that the API server belongs to the configured cluster. Otherwise the plan would
// compare the workloads of one cluster with the grants of another.
func (r *reading) issuer(ctx context.Context) error {
	issuer, err := r.discoverIssuer(ctx)
	if err == nil && issuer != r.Issuer {
		return fmt.Errorf("the API server issues tokens as %q, and the cluster of the configuration as %q: name the cluster that the kubeconfig is for", issuer, r.Issuer)
	}
	return err
}

func (r *reading) secrets(ctx context.Context) error {
	for _, kind := range []corev1.SecretType{corev1.SecretTypeDockerConfigJson, corev1.SecretTypeDockercfg} {
		err := r.list(ctx, wanted{corev1.SchemeGroupVersion, "secrets", kind, func() runtime.Object { return &corev1.SecretList{} }}, func(o runtime.Object) {
			r.pullSecret(o.(*corev1.Secret))
		})
		if err != nil {
			return err
		}
	}
	return r.listMetadata(ctx, "secrets", "type="+string(corev1.SecretTypeServiceAccountToken), func(o runtime.Object) {
		m := o.(*metav1.PartialObjectMetadata)
		r.interesting[keyOf(m)] = true
		r.Tokens = append(r.Tokens, Token{
			Key:          keyOf(m),
			Account:      m.Annotations[corev1.ServiceAccountNameKey],
			LastUsed:     date(m.Labels[lastUsedLabel]),
			InvalidSince: date(m.Labels[invalidSinceLabel]),
		})
	})
}

func (r *reading) pullSecret(secret *corev1.Secret) {
	key := keyOf(secret)
	found := parseCredentials(secret, r.Registries)
	for _, token := range found.tokens {
		r.passwords[token] = append(r.passwords[token], key.Namespace+"/"+key.Name)
	}
	switch {
	case found.broken:
		r.states[key] = Broken
	case len(found.hosts) == 0, tokensecrets.IsOfController(secret):
		r.states[key] = Other
	default:
		r.states[key], r.interesting[key] = Ours, true
		s := Secret{Key: key, Registries: found.hosts, Others: found.others, Legacy: found.legacy}
		if made := metav1.GetControllerOf(secret); made != nil {
			s.Owner = Owner{made.Kind, made.Name}
		}
		r.Secrets = append(r.Secrets, s)
	}
}

func (r *reading) accounts(ctx context.Context) error {
	return r.list(ctx, wanted{group: corev1.SchemeGroupVersion, resource: "serviceaccounts", page: func() runtime.Object { return &corev1.ServiceAccountList{} }}, func(o runtime.Object) {
		from := o.(*corev1.ServiceAccount)
		a := Account{Key: keyOf(from), UID: string(from.UID), PullSecrets: references(from.ImagePullSecrets)}
		for _, key := range r.AnnotationKeys {
			if value, ok := from.Annotations[key]; ok {
				if a.Annotations == nil {
					a.Annotations = map[string]string{}
				}
				a.Annotations[key] = value
			}
		}
		for _, s := range from.Secrets {
			a.Secrets = append(a.Secrets, s.Name)
		}
		r.Accounts[a.Key] = a
	})
}

func (r *reading) namespaces(ctx context.Context) error {
	if !r.Labels {
		return nil
	}
	return r.listMetadata(ctx, "namespaces", "", func(o runtime.Object) {
		m := o.(*metav1.PartialObjectMetadata)
		labels := map[string]string{} // "no labels" differs from "labels unknown"
		maps.Copy(labels, m.Labels)
		r.NamespaceLabels[m.Name] = labels
	})
}

func (r *reading) tracking(ctx context.Context) (err error) {
	if len(r.Tokens) > 0 {
		r.TokensTracked, err = r.trackedSince(ctx)
	}
	return err
}

func (r *reading) replicationControllers(ctx context.Context) error {
	return r.list(ctx, wanted{group: corev1.SchemeGroupVersion, resource: "replicationcontrollers", page: func() runtime.Object { return &corev1.ReplicationControllerList{} }}, func(o runtime.Object) {
		if from := o.(*corev1.ReplicationController); from.Spec.Template != nil {
			r.template("ReplicationController", from, &from.Spec.Template.Spec)
		}
	})
}

func (r *reading) deployments(ctx context.Context) error {
	return r.list(ctx, wanted{group: appsv1.SchemeGroupVersion, resource: "deployments", page: func() runtime.Object { return &appsv1.DeploymentList{} }}, func(o runtime.Object) {
		from := o.(*appsv1.Deployment)
		r.template("Deployment", from, &from.Spec.Template.Spec)
	})
}

func (r *reading) statefulSets(ctx context.Context) error {
	return r.list(ctx, wanted{group: appsv1.SchemeGroupVersion, resource: "statefulsets", page: func() runtime.Object { return &appsv1.StatefulSetList{} }}, func(o runtime.Object) {
		from := o.(*appsv1.StatefulSet)
		r.template("StatefulSet", from, &from.Spec.Template.Spec)
	})
}

func (r *reading) daemonSets(ctx context.Context) error {
	return r.list(ctx, wanted{group: appsv1.SchemeGroupVersion, resource: "daemonsets", page: func() runtime.Object { return &appsv1.DaemonSetList{} }}, func(o runtime.Object) {
		from := o.(*appsv1.DaemonSet)
		r.template("DaemonSet", from, &from.Spec.Template.Spec)
	})
}

func (r *reading) replicaSets(ctx context.Context) error {
	return r.list(ctx, wanted{group: appsv1.SchemeGroupVersion, resource: "replicasets", page: func() runtime.Object { return &appsv1.ReplicaSetList{} }}, func(o runtime.Object) {
		from := o.(*appsv1.ReplicaSet)
		r.template("ReplicaSet", from, &from.Spec.Template.Spec)
	})
}

func (r *reading) cronJobs(ctx context.Context) error {
	return r.list(ctx, wanted{group: batchv1.SchemeGroupVersion, resource: "cronjobs", page: func() runtime.Object { return &batchv1.CronJobList{} }}, func(o runtime.Object) {
		from := o.(*batchv1.CronJob)
		r.template("CronJob", from, &from.Spec.JobTemplate.Spec.Template.Spec)
	})
}

func (r *reading) jobs(ctx context.Context) error {
	return r.list(ctx, wanted{group: batchv1.SchemeGroupVersion, resource: "jobs", page: func() runtime.Object { return &batchv1.JobList{} }}, func(o runtime.Object) {
		from := o.(*batchv1.Job)
		ended := slices.ContainsFunc(from.Status.Conditions, func(c batchv1.JobCondition) bool {
			return c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed)
		})
		if !ended { // a finished Job creates no more pods
			r.template("Job", from, &from.Spec.Template.Spec)
		}
	})
}

// template notes an object that creates pods. A ReplicaSet, ReplicationController or Job that has a
// controller only connects a pod to its workload.
func (r *reading) template(kind string, from metav1.Object, spec *corev1.PodSpec) {
	w := &Workload{Key: keyOf(from), Kind: kind, Account: accountOf(spec), Template: true, Own: references(spec.ImagePullSecrets)}
	if made := metav1.GetControllerOf(from); made != nil {
		if kind == "ReplicaSet" || kind == "ReplicationController" || kind == "Job" {
			r.owners[string(from.GetUID())] = Owner{made.Kind, made.Name}
			return
		}
		w.Owner = Owner{made.Kind, made.Name}
	}
	r.add(w, spec)
}

func (r *reading) pods(ctx context.Context) error {
	return r.list(ctx, wanted{group: corev1.SchemeGroupVersion, resource: "pods", page: func() runtime.Object { return &corev1.PodList{} }}, func(o runtime.Object) {
		pod := o.(*corev1.Pod)
		switch {
		case pod.Status.Phase == corev1.PodSucceeded, pod.Status.Phase == corev1.PodFailed:
			return // it never pulls again
		case pod.Annotations[corev1.MirrorPodAnnotationKey] != "":
			if len(images(&pod.Spec, r.Registries)) > 0 {
				r.StaticPods++
			}
			return
		}
		w := &Workload{Key: keyOf(pod), Kind: "Pod", Account: accountOf(&pod.Spec), Pods: 1, Carried: unique(references(pod.Spec.ImagePullSecrets))}
		if made := metav1.GetControllerOf(pod); made != nil {
			w.Kind, w.Name = made.Kind, made.Name
			if above, ok := r.owners[string(made.UID)]; ok {
				w.Kind, w.Name = above.Kind, above.Name
			}
		}
		r.add(w, &pod.Spec)
	})
}

// add merges the data of a pod or template into its workload.
func (r *reading) add(w *Workload, spec *corev1.PodSpec) {
	w.Images, w.Mounted = images(spec, r.Registries), slices.DeleteFunc(mounted(spec), func(name string) bool { return !r.interesting[Key{w.Namespace, name}] })
	key := workloadKey{w.Key, w.Kind, w.Account}
	known := r.workloads[key]
	if known == nil {
		// A template is kept because pods may follow.
		if w.Template || r.matters(w) {
			r.workloads[key] = w
		}
		return
	}
	known.Pods += w.Pods
	known.Carried = unique(append(known.Carried, w.Carried...))
	known.Mounted = unique(append(known.Mounted, w.Mounted...))
	known.Images = uniqueImages(append(known.Images, w.Images...))
}

func (r *reading) matters(w *Workload) bool {
	other := func(name string) bool { return r.State(w.Namespace, name) == Other }
	w.Carried = slices.DeleteFunc(w.Carried, other)
	return len(w.Images)+len(w.Carried)+len(w.Mounted) > 0 || slices.ContainsFunc(w.Own, func(name string) bool { return !other(name) })
}

// finish joins the parts. It accepts the claim of a password to be from a token's Secret only if
// that Secret exists. So no text of a Secret leaves this package.
func (r *reading) finish() {
	for i := range r.Tokens {
		t := &r.Tokens[i]
		t.AutoGenerated = slices.Contains(r.Accounts[Key{t.Namespace, t.Account}].Secrets, t.Name)
		t.PasswordOf = unique(r.passwords[t.Key])
	}
	for _, w := range r.workloads {
		if r.matters(w) {
			r.Workloads = append(r.Workloads, *w)
		}
	}
	slices.SortFunc(r.Workloads, compareWorkloads)
	slices.SortFunc(r.Secrets, func(a, b Secret) int { return a.compare(b.Key) })
	slices.SortFunc(r.Tokens, func(a, b Token) int { return a.compare(b.Key) })
}
