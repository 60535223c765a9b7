package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// krewFile is the manifest with which "kubectl krew install --manifest" installs the plugin.
const krewFile = "kubectl-pullpass.krew.yaml"

// krewPlugin is a Plugin of krew.googlecontainertools.github.com/v1alpha2.
type krewPlugin struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Version          string         `json:"version"`
		Homepage         string         `json:"homepage"`
		ShortDescription string         `json:"shortDescription"`
		Description      string         `json:"description"`
		Platforms        []krewPlatform `json:"platforms"`
	} `json:"spec"`
}

type krewPlatform struct {
	Selector struct {
		MatchLabels map[string]string `json:"matchLabels"`
	} `json:"selector"`
	URI    string `json:"uri"`
	SHA256 string `json:"sha256"`
	Bin    string `json:"bin"`
}

// writeKrew writes an archive of the plugin for each platform, which is all that krew installs, and
// the manifest with their digests.
func (r release) writeKrew() error {
	license, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return err
	}
	var p krewPlugin
	p.APIVersion, p.Kind, p.Metadata.Name = "krew.googlecontainertools.github.com/v1alpha2", "Plugin", "pullpass"
	p.Spec.Version, p.Spec.Homepage = r.tag(), source
	p.Spec.ShortDescription = "Explain why an image pull was refused"
	p.Spec.Description = "Pullpass lets pods pull images with their own ServiceAccount.\nThe plugin explains refused pulls, and which images a ServiceAccount may pull.\nIt has the rights of your kubeconfig and no others.\n"
	i := slices.IndexFunc(programs, func(p program) bool { return p.name == kubectlPlugin })
	for _, platform := range programs[i].platforms {
		system, architecture, _ := strings.Cut(platform, "-")
		suffix := ""
		if system == "windows" {
			suffix = ".exe"
		}
		content, err := os.ReadFile(r.file(kubectlPlugin + "-" + platform + suffix))
		if err != nil {
			return err
		}
		archive := newTarball(r.created)
		if err := archive.add(kubectlPlugin+suffix, 0o755, content); err != nil {
			return err
		}
		if err := archive.add("LICENSE", 0o644, license); err != nil {
			return err
		}
		packed, err := archive.bytes()
		if err != nil {
			return err
		}
		name := kubectlPlugin + "-" + platform + ".tar.gz"
		if err := r.write(name, packed); err != nil {
			return err
		}
		k := krewPlatform{URI: source + "/releases/download/" + r.tag() + "/" + name, SHA256: fmt.Sprintf("%x", sha256.Sum256(packed)), Bin: kubectlPlugin + suffix}
		k.Selector.MatchLabels = map[string]string{"os": system, "arch": architecture}
		p.Spec.Platforms = append(p.Spec.Platforms, k)
	}
	text, err := yaml.Marshal(p)
	if err != nil {
		return err
	}
	return r.write(krewFile, text)
}
