package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The SBOM is beside the archive, and in it as what belongs to the image.
func TestSBOM(t *testing.T) {
	t.Parallel()
	in := newInputs(t)
	archive, _ := in.pack(t)
	layout := openLayout(t, archive)
	list := testkit.Value(layout.ImageIndex())(t)
	artifacts := testkit.Value(list.IndexManifest())(t)
	images := testkit.Value(openIndex(t, archive).IndexManifest())(t)
	schema := cyclonedxSchema(t)
	for i, image := range images.Manifests {
		descriptor := artifacts.Manifests[1+i]
		raw := testkit.Value(layout.Bytes(descriptor.Digest))(t)
		var artifact v1.Manifest
		testkit.Must(t, json.Unmarshal(raw, &artifact))
		if artifact.Subject == nil || artifact.Subject.Digest != image.Digest || artifact.Subject.Size != image.Size {
			t.Errorf("%s: the subject is %v, the image %v", image.Platform, artifact.Subject, image.Digest)
		}
		const mediaType = "application/vnd.cyclonedx+json"
		if descriptor.ArtifactType != mediaType || artifact.ArtifactType != mediaType || artifact.Layers[0].MediaType != mediaType ||
			artifact.Config.MediaType != "application/vnd.oci.empty.v1+json" {
			t.Errorf("%s: artifact %s", image.Platform, raw)
		}
		attached := testkit.Value(layout.Bytes(artifact.Layers[0].Digest))(t)
		beside := testkit.Value(os.ReadFile(strings.TrimSuffix(archive, "tar") + image.Platform.Architecture + ".cdx.json"))(t)
		if !bytes.Equal(attached, beside) {
			t.Errorf("%s: the SBOM beside the archive differs", image.Platform)
		}
		checkSBOM(t, schema, beside, filepath.Join(in.dir, image.Platform.Architecture, "pullpass"))
	}
}

func checkSBOM(t *testing.T, schema *jsonschema.Schema, text []byte, binary string) {
	t.Helper()
	document := testkit.Value(jsonschema.UnmarshalJSON(bytes.NewReader(text)))(t)
	testkit.Must(t, schema.Validate(document))
	var bom cyclonedx.BOM
	testkit.Must(t, cyclonedx.NewBOMDecoder(bytes.NewReader(text), cyclonedx.BOMFileFormatJSON).Decode(&bom))
	product := bom.Metadata.Component
	content := testkit.Value(os.ReadFile(binary))(t)
	if product.Name != "github.com/pullpass/pullpass" || product.Version != "v1.2.3" || (*product.Hashes)[0].Value != fmt.Sprintf("%x", sha256.Sum256(content)) {
		t.Errorf("the SBOM is about %+v", product)
	}
	var names []string
	for _, c := range *bom.Components {
		names = append(names, c.Name)
	}
	if want := []string{"stdlib", "golang.org/x/crypto/x509roots/fallback", "etc/ssl/certs/ca-certificates.crt", "pullpass-credential-provider"}; !slices.Equal(names, want) {
		t.Errorf("the SBOM lists %q, want %q", names, want)
	}
	if purl := (*bom.Components)[1].PackageURL; !strings.HasPrefix(purl, "pkg:golang/golang.org/x/crypto/x509roots/fallback@v0.0.0-") {
		t.Errorf("package URL %s", purl)
	}
}

// cyclonedxSchema is the schema that CycloneDX publishes, as it comes with the
// library.
func cyclonedxSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	dir := testkit.Value(exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go").Output())(t)
	compiler := jsonschema.NewCompiler()
	for _, name := range []string{"bom-1.6.schema.json", "spdx.schema.json", "jsf-0.82.schemax.json"} {
		file := testkit.Value(os.Open(filepath.Join(strings.TrimSpace(string(dir)), "schema", name)))(t)
		content := testkit.Value(io.ReadAll(file))(t)
		testkit.Must(t, file.Close())
		document := testkit.Value(jsonschema.UnmarshalJSON(bytes.NewReader(content)))(t)
		url := "http://cyclonedx.org/schema/" + strings.Replace(name, "schemax", "schema", 1)
		testkit.Must(t, compiler.AddResource(url, document))
	}
	schema := testkit.Value(compiler.Compile("http://cyclonedx.org/schema/bom-1.6.schema.json"))(t)
	return schema
}
