package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
)

const provenanceFile = "pullpass.provenance.json"

// statement is an in-toto statement (https://in-toto.io/Statement/v1).
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     provenance `json:"predicate"`
}

// resource is an in-toto resource descriptor.
type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest"`
}

// provenance is the predicate of https://slsa.dev/spec/v1.0/provenance. It has no
// times and no name of a run: two builds give the same.
type provenance struct {
	BuildDefinition struct {
		BuildType            string            `json:"buildType"`
		ExternalParameters   map[string]string `json:"externalParameters"`
		InternalParameters   map[string]string `json:"internalParameters"`
		ResolvedDependencies []resource        `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	RunDetails struct {
		Builder struct {
			ID string `json:"id"`
		} `json:"builder"`
	} `json:"runDetails"`
}

// writeProvenance says how all files, images and the chart came to be.
func (r release) writeProvenance(artifacts []artifact) error {
	s := statement{Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1"}
	files, err := r.files()
	if err != nil {
		return err
	}
	for _, f := range files {
		s.Subject = append(s.Subject, resource{Name: f.name, Digest: map[string]string{"sha256": f.sum}})
	}
	for _, a := range artifacts {
		s.Subject = append(s.Subject, resource{Name: a.repository, Digest: map[string]string{"sha256": a.digest.Hex}})
	}
	definition := &s.Predicate.BuildDefinition
	definition.BuildType = source + "/blob/" + r.tag() + "/docs/internals/releasing.md"
	definition.ExternalParameters = map[string]string{"version": r.version, "registry": r.registry}
	definition.InternalParameters = map[string]string{"go": runtime.Version()}
	definition.ResolvedDependencies = []resource{{URI: "git+" + source + "@refs/tags/" + r.tag(), Digest: map[string]string{"gitCommit": r.commit}}}
	s.Predicate.RunDetails.Builder.ID = r.builder
	content, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return r.write(provenanceFile, append(content, '\n'))
}

// sum is the SHA-256 of a file, in hexadecimal.
type sum struct{ name, sum string }

// files are those that were written until now.
func (r release) files() ([]sum, error) {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return nil, err
	}
	var all []sum
	for _, entry := range entries {
		content, err := os.ReadFile(r.file(entry.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, sum{entry.Name(), fmt.Sprintf("%x", sha256.Sum256(content))})
	}
	slices.SortFunc(all, func(a, b sum) int { return cmp.Compare(a.name, b.name) })
	return all, nil
}

const sumsFile = "SHA256SUMS"

// writeSums writes what sha256sum -c reads.
func (r release) writeSums() error {
	files, err := r.files()
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, f := range files {
		fmt.Fprintf(&text, "%s  %s\n", f.sum, f.name)
	}
	return r.write(sumsFile, []byte(text.String()))
}
