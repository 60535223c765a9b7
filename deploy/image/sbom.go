package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"runtime/debug"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
)

const sbomMediaType = "application/vnd.cyclonedx+json"

// sbom lists what is in the image, as CycloneDX: the modules that the binary
// itself says it was linked from, Go's standard library, the CA certificates, and
// the plugin, which is of the same module and needs no other.
// It has no serial number, which would differ in each build.
func sbom(info *debug.BuildInfo, files []file, o options) ([]byte, error) {
	product := module(info.Main.Path, o.version)
	product.Type = cyclonedx.ComponentTypeApplication
	components := []cyclonedx.Component{module("stdlib", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, dep := range info.Deps {
		dep = cmp.Or(dep.Replace, dep)
		components = append(components, module(dep.Path, dep.Version))
	}
	for _, f := range files {
		switch {
		case strings.HasSuffix(f.name, "/"):
			continue
		case f.name == o.program():
			product.Hashes = hashes(f.content)
			continue
		}
		components = append(components, cyclonedx.Component{
			BOMRef: f.name, Type: cyclonedx.ComponentTypeFile, Name: f.name, Hashes: hashes(f.content),
		})
	}
	var needs []string
	for _, c := range components {
		needs = append(needs, c.BOMRef)
	}
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Timestamp: o.created.Format(time.RFC3339), Component: &product}
	bom.Components = &components
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: product.BOMRef, Dependencies: &needs}}
	var out bytes.Buffer
	// Readers know version 1.6 for longer than what the library writes by itself.
	err := cyclonedx.NewBOMEncoder(&out, cyclonedx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cyclonedx.SpecVersion1_6)
	return out.Bytes(), err
}

// module is a Go module, or the standard library. A package URL has it in lower
// case, and its version escaped.
func module(path, version string) cyclonedx.Component {
	purl := "pkg:golang/" + strings.ToLower(path) + "@" + url.QueryEscape(version)
	return cyclonedx.Component{BOMRef: purl, Type: cyclonedx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: purl}
}

func hashes(content []byte) *[]cyclonedx.Hash {
	sum := sha256.Sum256(content)
	return &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}
}
