// Command k8schain reads an image as controllers do that use k8schain: the resolvers of Knative, Tekton's controllers, Kyverno's and Sigstore's
// admission controllers. It runs in a pod.
//
//	k8schain NAMESPACE SERVICEACCOUNT IMAGE
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/google/go-containerregistry/pkg/authn/k8schain"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func main() {
	log.SetFlags(0)
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, namespace, serviceAccount, image string) error {
	keychain, err := k8schain.NewInCluster(ctx, k8schain.Options{Namespace: namespace, ServiceAccountName: serviceAccount})
	if err != nil {
		return err
	}
	reference, err := name.ParseReference(image)
	if err != nil {
		return err
	}
	descriptor, err := remote.Get(reference, remote.WithContext(ctx), remote.WithAuthFromKeychain(keychain), remote.WithUserAgent("k8schain"))
	if err != nil {
		return err
	}
	_, err = fmt.Println(descriptor.Digest)
	return err
}
