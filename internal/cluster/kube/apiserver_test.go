package kube

import (
	"cmp"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// apiServer is an API server in memory, with things as its objects.
type apiServer struct{ *kubetest.Server }

// thing has the fields of an object that tests vary.
type thing struct {
	resource, namespace, name, uid string
	labels, annotations            map[string]string
	nodeName                       string      // of a pod
	addresses                      [][2]string // of a Node: type and address
}

func newAPIServer(things ...thing) *apiServer {
	s := &apiServer{kubetest.NewServer()}
	s.put(things...)
	return s
}

func (s *apiServer) put(things ...thing) {
	for _, t := range things {
		s.Put(t.resource, t.object())
	}
}

// object has all fields of a real object, so that a test can find fields that are not dropped.
func (t thing) object() kubetest.Object {
	o := kubetest.Object{"metadata": kubetest.Object{
		"name": t.name, "namespace": t.namespace, "uid": t.uid,
		"labels": t.labels, "annotations": t.annotations, "generateName": t.name + "-", "creationTimestamp": "2026-03-04T05:06:07Z",
		"ownerReferences": []any{map[string]any{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "owner", "uid": "uid-owner"}},
		"managedFields": []any{map[string]any{"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
			"fieldsV1": map[string]any{"f:status": map[string]any{}}}},
	}}
	switch t.resource {
	case "pods":
		o["spec"] = map[string]any{"nodeName": t.nodeName, "containers": []any{map[string]any{"name": "c", "image": "i"}}}
	case "nodes":
		addresses := []any{}
		for _, a := range t.addresses {
			addresses = append(addresses, map[string]any{"type": a[0], "address": a[1]})
		}
		o["status"] = map[string]any{"addresses": addresses, "images": []any{map[string]any{"names": []string{"image"}, "sizeBytes": 1}}}
	}
	return o
}

// newTestCluster has a connection in memory.
func newTestCluster(t testing.TB, s *apiServer, config ClusterConfig) *Cluster {
	t.Helper()
	config.Name = cmp.Or(config.Name, "one")
	config.REST = &rest.Config{Host: "http://api.example.com", Transport: s}
	c := testkit.Value(NewCluster(config))(t)
	return c
}
