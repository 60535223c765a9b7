// Package sbom lists what programs and images are made of, as CycloneDX.
package sbom

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
)

const MediaType = "application/vnd.cyclonedx+json"

// File is a part that is not a Go module.
type File struct {
	Name    string
	Content []byte
}

// Product is the subject of an SBOM.
type Product struct {
	Version string
	Created time.Time
	// Binary is the only program; nil: the files have them.
	Binary []byte
	// Programs say what they were linked from. They are of one module.
	Programs []*debug.BuildInfo
	Files    []File
}

// JSON lists the modules that the programs themselves say they were linked from,
// Go's standard library, and the files.
// It has no serial number, which would differ in each build.
func (p Product) JSON() ([]byte, error) {
	main := module(p.Programs[0].Main.Path, p.Version)
	main.Type = cyclonedx.ComponentTypeApplication
	if p.Binary != nil {
		main.Hashes = hashes(p.Binary)
	}
	components := []cyclonedx.Component{module("stdlib", strings.TrimPrefix(p.Programs[0].GoVersion, "go"))}
	for _, info := range p.Programs {
		for _, dep := range info.Deps {
			dep = cmp.Or(dep.Replace, dep)
			component := module(dep.Path, dep.Version)
			if !slices.ContainsFunc(components, func(c cyclonedx.Component) bool { return c.BOMRef == component.BOMRef }) {
				components = append(components, component)
			}
		}
	}
	for _, f := range p.Files {
		components = append(components, cyclonedx.Component{
			BOMRef: f.Name, Type: cyclonedx.ComponentTypeFile, Name: f.Name, Hashes: hashes(f.Content),
		})
	}
	var needs []string
	for _, c := range components {
		needs = append(needs, c.BOMRef)
	}
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Timestamp: p.Created.Format(time.RFC3339), Component: &main}
	bom.Components = &components
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: main.BOMRef, Dependencies: &needs}}
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
