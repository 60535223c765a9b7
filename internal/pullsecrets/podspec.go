package pullsecrets

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func keyOf(o metav1.Object) Key { return Key{o.GetNamespace(), o.GetName()} }

func references(list []corev1.LocalObjectReference) (names []string) {
	for _, reference := range list {
		names = append(names, reference.Name)
	}
	return names
}

// accountOf returns the ServiceAccount that the API server sets for the template, which is "default"
// if it names none. Stored objects have both fields; manifests may have the deprecated one alone.
func accountOf(spec *corev1.PodSpec) string {
	return cmp.Or(spec.ServiceAccountName, spec.DeprecatedServiceAccount, "default")
}

// images returns the images of the registries, including those of image volumes: sorted, each once.
func images(spec *corev1.PodSpec, registries []string) (images []Image) {
	note := func(name string) {
		host, repository, ok := strings.Cut(name, "/")
		if !ok {
			return // of docker.io
		}
		for _, registry := range registries {
			if strings.EqualFold(host, registry) {
				images = append(images, Image{registry, withoutTag(repository)})
			}
		}
	}
	for _, c := range spec.InitContainers {
		note(c.Image)
	}
	for _, c := range spec.Containers {
		note(c.Image)
	}
	for _, c := range spec.EphemeralContainers {
		note(c.Image)
	}
	for _, v := range spec.Volumes {
		if v.Image != nil {
			note(v.Image.Reference)
		}
	}
	return uniqueImages(images)
}

func withoutTag(repository string) string {
	repository, _, _ = strings.Cut(repository, "@")
	if colon := strings.LastIndexByte(repository, ':'); colon > strings.LastIndexByte(repository, '/') {
		repository = repository[:colon]
	}
	return repository
}

// mounted returns the Secrets that containers get as files or variables, or that their volumes need.
func mounted(spec *corev1.PodSpec) (names []string) {
	reference := func(r *corev1.LocalObjectReference) {
		if r != nil {
			names = append(names, r.Name)
		}
	}
	for _, v := range spec.Volumes {
		switch {
		case v.CSI != nil:
			reference(v.CSI.NodePublishSecretRef)
		case v.AzureFile != nil:
			names = append(names, v.AzureFile.SecretName)
		case v.CephFS != nil:
			reference(v.CephFS.SecretRef)
		case v.RBD != nil:
			reference(v.RBD.SecretRef)
		case v.FlexVolume != nil:
			reference(v.FlexVolume.SecretRef)
		case v.ISCSI != nil:
			reference(v.ISCSI.SecretRef)
		case v.ScaleIO != nil:
			reference(v.ScaleIO.SecretRef)
		case v.StorageOS != nil:
			reference(v.StorageOS.SecretRef)
		}
		if v.Secret != nil {
			names = append(names, v.Secret.SecretName)
		}
		if v.Projected != nil {
			for _, source := range v.Projected.Sources {
				if source.Secret != nil {
					names = append(names, source.Secret.Name)
				}
			}
		}
	}
	variables := func(env []corev1.EnvVar, from []corev1.EnvFromSource) {
		for _, e := range env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
				names = append(names, e.ValueFrom.SecretKeyRef.Name)
			}
		}
		for _, e := range from {
			if e.SecretRef != nil {
				names = append(names, e.SecretRef.Name)
			}
		}
	}
	for _, c := range spec.InitContainers {
		variables(c.Env, c.EnvFrom)
	}
	for _, c := range spec.Containers {
		variables(c.Env, c.EnvFrom)
	}
	for _, c := range spec.EphemeralContainers {
		variables(c.Env, c.EnvFrom)
	}
	return unique(names)
}

// unique also sorts.
func unique(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

func uniqueImages(images []Image) []Image {
	slices.SortFunc(images, func(a, b Image) int {
		return cmp.Or(strings.Compare(a.Registry, b.Registry), strings.Compare(a.Repository, b.Repository))
	})
	return slices.Compact(images)
}

func compareWorkloads(a, b Workload) int {
	return cmp.Or(a.compare(b.Key), strings.Compare(a.Kind, b.Kind), strings.Compare(a.Account, b.Account))
}
