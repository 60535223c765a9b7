// Command image packs the static pullpass binaries of several architectures
// into one container image, without a container engine. Of binaries that are named
// docker-credential-pullpass it makes the small image for clients. The archive is an OCI
// image layout that also is what docker load reads, so that skopeo, podman, ctr
// and docker all take it. An SBOM is with each architecture's image, and beside
// the archive. The same inputs give the same bytes.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/distribution/reference"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// options are what all architectures have in common.
type options struct {
	name              reference.NamedTagged
	version, revision string
	created           time.Time
	roots             []byte // CA certificates, PEM
	client            bool   // the binaries are the credential helper
}

// program is the name of the binary in the image.
func (o options) program() string {
	if o.client {
		return clientName
	}
	return "pullpass"
}

func run(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: image [flags] BINARY…\nEach BINARY is pullpass or "+clientName+". Beside it is "+pluginName+" for the same architecture.")
		flags.PrintDefaults()
	}
	nameText := flags.String("name", "pullpass:dev", "name of the image")
	version := flags.String("version", "", "version of Pullpass (required)")
	revision := flags.String("revision", "", "commit that the binaries are built from (required)")
	created := flags.Int64("created", 0, "time of the image and of all that is in it, in seconds since 1970")
	rootsFile := flags.String("roots", "", "CA certificates for issuers without discovery.caFile (required for pullpass)")
	out := flags.String("out", "bin/pullpass-image.tar", "archive to write; the SBOMs get its name and .ARCH.cdx.json")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *version == "" || *revision == "" || flags.NArg() == 0 {
		return errors.New("-version, -revision and at least one binary are required")
	}
	clients := 0
	for _, binary := range flags.Args() {
		if filepath.Base(binary) == clientName {
			clients++
		}
	}
	if clients != 0 && clients != flags.NArg() {
		return fmt.Errorf("%d of %d binaries are %s; an image has one program", clients, flags.NArg(), clientName)
	}
	if (clients == 0) != (*rootsFile != "") {
		return fmt.Errorf("-roots is required for pullpass, and not used for %s", clientName)
	}
	named, err := reference.ParseNormalizedNamed(*nameText)
	if err != nil {
		return fmt.Errorf("-name %q: %w", *nameText, err)
	}
	tagged, ok := reference.TagNameOnly(named).(reference.NamedTagged)
	if !ok {
		return fmt.Errorf("-name %q: has a digest; it needs a tag", *nameText)
	}
	o := options{name: tagged, version: *version, revision: *revision, created: time.Unix(*created, 0).UTC(), client: clients != 0}
	if !o.client {
		if o.roots, err = os.ReadFile(*rootsFile); err != nil {
			return err
		}
	}
	images := make([]platformImage, flags.NArg())
	for i, file := range flags.Args() {
		if images[i], err = newPlatformImage(file, o); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	digest, err := writeArchive(*out, images, o)
	if err != nil {
		return err
	}
	for _, image := range images {
		name := fmt.Sprintf("%s.%s.cdx.json", strings.TrimSuffix(*out, filepath.Ext(*out)), image.platform.Architecture)
		if err := os.WriteFile(name, image.sbom, 0o644); err != nil { //nolint:gosec // public
			return err
		}
		fmt.Fprintf(stdout, "%s: SBOM\n", name)
	}
	fmt.Fprintf(stdout, "%s: %s %s, %s\n", *out, reference.FamiliarString(o.name), digest, sizes(images))
	return nil
}

func sizes(images []platformImage) string {
	texts := make([]string, len(images))
	for i, image := range images {
		texts[i] = fmt.Sprintf("%s %.1f MB", image.platform, float64(image.size)/1e6)
	}
	return strings.Join(texts, ", ")
}
