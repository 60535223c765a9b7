// Command client is a registry client that runs in a pod for as long as the pod does. It finds its credentials as crane and
// others do that use go-containerregistry, and does what it is told over HTTP:
//
//	/pull?from=IMAGE
//	/copy?from=IMAGE&to=IMAGE
package main

import (
	"context"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func main() {
	// Process 1 ends with no signal that it does not handle.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	http.HandleFunc("/pull", handler(func(r *http.Request) error { return pull(r.Context(), r.FormValue("from")) }))
	http.HandleFunc("/copy", handler(func(r *http.Request) error { return transfer(r.Context(), r.FormValue("from"), r.FormValue("to")) }))
	server := &http.Server{Addr: os.Args[1]}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		log.Fatal(err)
	}
}

func handler(do func(*http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := do(r); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
	}
}

func options(ctx context.Context) []remote.Option {
	return []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithUserAgent("client-in-pod")}
}

func pull(ctx context.Context, from string) error {
	reference, err := name.ParseReference(from)
	if err != nil {
		return err
	}
	image, err := remote.Image(reference, options(ctx)...)
	if err != nil {
		return err
	}
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	for _, layer := range layers {
		content, err := layer.Compressed()
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, content) // compares the digest
		_ = content.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func transfer(ctx context.Context, from, to string) error {
	source, err := name.ParseReference(from)
	if err != nil {
		return err
	}
	target, err := name.ParseReference(to)
	if err != nil {
		return err
	}
	image, err := remote.Image(source, options(ctx)...)
	if err != nil {
		return err
	}
	return remote.Write(target, image, options(ctx)...)
}
