package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

const (
	// signature follows the name of a signed file.
	signature       = ".sigstore.json"
	bundleMediaType = "application/vnd.dev.sigstore.bundle.v0.3+json"
)

// cosign runs the version of .ci/cosign.mod. The program that verifies signatures makes them:
// keys, hardware, clouds' keys, and certificates for CI jobs are its trade.
func (r release) cosign(ctx context.Context, args ...string) error {
	if r.sign == keyless {
		args = append(args, "--yes")
	} else {
		// Nothing is asked or told of the public services: a key is enough to verify it.
		args = append(args, "--key", r.sign, "--use-signing-config=false", "--tlog-upload=false", "--yes")
	}
	cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"tool", "-modfile=.ci/cosign.mod", "cosign"}, args)...) //nolint:gosec // constants and the user's key
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = r.root, os.Stdin, r.stdout, r.stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("cosign %s: %w", args[0], err)
	}
	return nil
}

// signFiles signs the list of all files, and the provenance.
func (r release) signFiles(ctx context.Context) error {
	if err := r.cosign(ctx, "sign-blob", r.file(sumsFile), "--bundle", r.file(sumsFile+signature)); err != nil {
		return err
	}
	return r.cosign(ctx, "attest-blob", "--statement", r.file(provenanceFile), "--bundle", r.file(provenanceFile+signature))
}

// signArtifact signs what was pushed, and attaches the provenance. "cosign attest"
// would sign a statement of its own for each, in the form before Statement/v1.
func (r release) signArtifact(ctx context.Context, a artifact, options []remote.Option) error {
	if err := r.cosign(ctx, "sign", a.reference()); err != nil {
		return err
	}
	content, err := os.ReadFile(r.file(provenanceFile + signature))
	if err != nil {
		return err
	}
	reference, err := name.NewDigest(a.reference())
	if err != nil {
		return err
	}
	subject, err := remote.Head(reference, options...)
	if err != nil {
		return err
	}
	manifest := v1.Manifest{
		ArtifactType: bundleMediaType,
		Subject:      &v1.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size},
		Annotations: map[string]string{
			"dev.sigstore.bundle.content":       "dsse-envelope",
			"dev.sigstore.bundle.predicateType": "https://slsa.dev/provenance/v1",
		},
	}
	image, err := newOCI(manifest, []byte("{}"), "application/vnd.oci.empty.v1+json", content, bundleMediaType)
	if err != nil {
		return err
	}
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	return remote.Write(reference.Context().Digest(digest.String()), image, options...)
}
