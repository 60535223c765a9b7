package nodeinstall

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/node/hostfs"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const (
	eksConfig   = "etc/eks/image-credential-provider/config.json"
	eksFlags    = "etc/eks/kubelet/environment"
	eksPlugin   = "etc/eks/image-credential-provider/pullpass-credential-provider"
	ownProvider = "etc/pullpass/credential-providers/pullpass.yaml"
	hostsTOML   = "etc/containerd/certs.d/ghcr.io/hosts.toml"
)

// Changes of others to our files are repaired, and their additions stay.
func TestDrift(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		wanted := h.files()

		// nodeadm rewrites its files when the node starts, here with a different label.
		h.put(eksFlags, "NODEADM_KUBELET_ARGS=--node-labels=e=f --image-credential-provider-bin-dir=/etc/eks/image-credential-provider --image-credential-provider-config=/etc/eks/image-credential-provider/config.json\n")
		h.put(hostsTOML, "server = \"https://elsewhere.example.com\"\n")
		testkit.Remove(t, filepath.Join(h.dir, eksPlugin))
		testkit.Remove(t, filepath.Join(h.dir, "etc/pullpass/credential-providers/platform.json"))
		h.link("etc/pullpass/credential-providers/platform.json", "/etc/passwd")
		flags := h.read(eksFlags)
		plan := h.apply(desired("v1.36.2"))
		want := []string{
			"replace /etc/containerd/certs.d/ghcr.io/hosts.toml: hosts.toml of ghcr.io was changed by another program",
			"create /etc/eks/image-credential-provider/pullpass-credential-provider: the plugin was removed by another program",
			"replace /etc/pullpass/credential-providers/platform.json: the platform's provider configuration was changed by another program",
			"edit /etc/eks/kubelet/environment: the kubelet's flags are to name Pullpass",
		}
		if got := actions(plan); !slices.Equal(got, want) || h.kubelet.restarts != 2 {
			t.Errorf("%d restarts, %q", h.kubelet.restarts, got)
		}
		wanted["/"+eksFlags] = "-rw-r--r--\n" + strings.TrimSuffix(flags, "\n") + " --image-credential-provider-config=/etc/pullpass/credential-providers\n"
		got := h.files()
		for name := range got {
			if strings.HasPrefix(name, stateDir) {
				delete(got, name)
			}
		}
		for name := range wanted {
			if strings.HasPrefix(name, stateDir) {
				delete(wanted, name)
			}
		}
		h.expect("after drift", got, wanted)

		h.uninstall()
		h.before["/"+eksFlags] = "-rw-r--r--\n" + flags
		h.expect("after uninstall", h.files(), h.before)
	})
}

// COS has /etc in memory, so it is reset when the node starts.
func TestAPlatformResetsItsFiles(t *testing.T) {
	onHost(t, "gke", func(t *testing.T, h *host) {
		flags := h.read("etc/default/kubelet")
		h.apply(desired("v1.36.2"))
		for range 2 {
			testkit.Remove(t, filepath.Join(h.dir, "etc/pullpass"))
			testkit.Remove(t, filepath.Join(h.dir, "etc/containerd/hosts.d"))
			h.put("etc/default/kubelet", flags)
			if plan := h.apply(desired("v1.36.2")); !plan.Restart {
				t.Errorf("%q", actions(plan))
			}
			h.expectWanted("gke", "want/")
		}
		s := testkit.Value(readState(h.tree))(t)
		if once := slices.Compact(slices.Sorted(slices.Values(s.Directories))); len(once) != len(s.Directories) {
			t.Errorf("%q", s.Directories)
		}
		h.expectUninstalled()
	})
}

// Flags that others add after ours would win.
func TestFlagsOfOthersAfterOurs(t *testing.T) {
	onHost(t, "kind", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		installed := h.read("etc/default/kubelet")
		h.put("etc/default/kubelet", strings.TrimSuffix(installed, "\n")+" --v=4 --image-credential-provider-bin-dir=/usr/bin\n# a comment")
		h.put("usr/bin/x", "")
		testkit.Must(t, os.Remove(filepath.Join(h.dir, "usr/local/libexec/pullpass/pullpass-credential-provider")))
		h.apply(desired("v1.36.2"))
		want := "KUBELET_EXTRA_ARGS=--runtime-cgroups=/system.slice/containerd.service --image-credential-provider-config=/etc/pullpass/credential-providers --v=4 --image-credential-provider-bin-dir=/usr/bin\n# a comment"
		if got := h.read("etc/default/kubelet"); got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
		if got := h.read("usr/bin/pullpass-credential-provider"); got != testPlugin {
			t.Errorf("the plugin is %q", got)
		}

		// The same between the last apply and the uninstall.
		h.put("etc/default/kubelet", want+" of mine\n")
		h.uninstall()
		want = "KUBELET_EXTRA_ARGS=--runtime-cgroups=/system.slice/containerd.service --v=4 --image-credential-provider-bin-dir=/usr/bin\n# a comment of mine\n"
		if got := h.read("etc/default/kubelet"); got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
	})
}

// An empty assignment of others overrides their earlier one.
func TestAnEmptyAssignmentOfOthersStays(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const flags, others = "etc/default/kubelet", "KUBELET_EXTRA_ARGS=--v=9\nKUBELET_EXTRA_ARGS=\"\"\n"
		h := newHost(t, "kind")
		h.put(flags, others)
		h.apply(desired("v1.33.5"))
		h.apply(desired("v1.34.0")) // with a different flag
		h.put(flags, h.read(flags)+"# of others\n")
		h.apply(desired("v1.34.0"))
		h.uninstall()
		if got := h.read(flags); got != others+"# of others\n" {
			t.Errorf("after uninstall: %s", got)
		}
	})
}

// A file that we created is removed, even if others have changed its mode.
func TestAFileOfOursHasAnotherMode(t *testing.T) {
	onHost(t, "kubeadm", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		testkit.Must(t, os.Chmod(filepath.Join(h.dir, "etc/default/kubelet"), 0o600))
		h.expectUninstalled()

		// An empty file of others stays.
		h.put("etc/default/kubelet", "")
		h.apply(desired("v1.36.2"))
		testkit.Must(t, os.Chmod(filepath.Join(h.dir, "etc/default/kubelet"), 0o600))
		if h.uninstall(); h.read("etc/default/kubelet") != "" {
			t.Error(h.read("etc/default/kubelet"))
		}
	})
}

// A cloud's new provider stays beside ours, in both forms.
func TestProvidersOfOthers(t *testing.T) {
	for version, file := range map[string]string{"v1.36.2": "", "v1.33.5": eksConfig} {
		t.Run(version, func(t *testing.T) {
			onHost(t, "eks", func(t *testing.T, h *host) {
				original := h.read(eksConfig)
				h.apply(desired(version))
				h.put("etc/eks/image-credential-provider/second", "")
				testkit.Must(t, os.Chmod(filepath.Join(h.dir, "etc/eks/image-credential-provider/second"), 0o755))
				changed := strings.Replace(original, `"providers": [`, `"providers": [{"name": "second"},`, 1)
				h.put(eksConfig, changed)
				h.apply(desired(version))
				text := h.read(eksConfig)
				if file == "" && text != changed || file != "" && (!strings.Contains(text, `"second"`) || !strings.Contains(text, `"pullpass-credential-provider"`)) {
					t.Error(text)
				}
				h.uninstall()
				if text := h.read(eksConfig); file == "" && text != changed || strings.Contains(text, "pullpass") || !strings.Contains(text, `"second"`) {
					t.Error(text)
				}
			})
		})
	}
}

// A kubelet 1.33 exits at a field that was added later.
func TestCacheTypeIsNotFor133(t *testing.T) {
	const attributes = "  tokenAttributes:\n    serviceAccountTokenAudience: a # of\n    cacheType: Token # not before 1.34\n    requireServiceAccount: true\n"
	for version, platform := range map[string]string{"v1.33.5": "eks", "v1.33.6": "kubeadm", "v1.34.0": "kubeadm"} {
		t.Run(version+"/"+platform, func(t *testing.T) {
			onHost(t, platform, func(t *testing.T, h *host) {
				d := desired(version)
				d.Provider = []byte(testProvider + attributes)
				h.apply(d)
				file := map[string]string{"v1.33.5": eksConfig, "v1.33.6": "etc/pullpass/credential-provider.yaml", "v1.34.0": ownProvider}[version]
				text := h.read(file)
				if strings.Contains(text, "cacheType") != (version == "v1.34.0") || !strings.Contains(text, "serviceAccountTokenAudience") || !strings.Contains(text, "requireServiceAccount") {
					t.Error(text)
				}
				if plan := h.apply(d); len(plan.Changes) > 0 {
					t.Errorf("%q", actions(plan))
				}
			})
		})
	}
}

// The path of the kubelet's certificate depends on the platform. containerd fails all pulls if the
// path in hosts.toml is wrong.
func TestClientCertificate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const client = "/var/lib/kubelet/pki/kubelet-client-current.pem"
		for platform, want := range map[string]string{
			"kubeadm":  `"/var/lib/kubelet/pki/kubelet-client-current.pem"`,
			"k3s":      `[["/var/lib/rancher/k3s/agent/client-kubelet.crt", "/var/lib/rancher/k3s/agent/client-kubelet.key"]]`,
			"rke2":     `[["/var/lib/rancher/rke2/agent/client-kubelet.crt", "/var/lib/rancher/rke2/agent/client-kubelet.key"]]`,
			"microk8s": `[["/var/snap/microk8s/current/certs/kubelet.crt", "/var/snap/microk8s/current/certs/kubelet.key"]]`,
			"eks":      "",
		} {
			h := newHost(t, platform)
			d := desired("v1.36.2")
			d.Client, d.Hosts = client, map[string][]byte{"ghcr.io": []byte("server = \"x\"\nclient = \"" + client + "\"\n[host]\n")}
			if want == "" {
				h.untouched(ErrProfile, "kubelets of eks have none", func() error { _, err := h.Apply(t.Context(), d); return err })
				continue
			}
			h.untouched(ErrProfile, "no such file", func() error { _, err := h.Apply(t.Context(), d); return err })
			p, err := findProfile(h.tree, "")
			testkit.Must(t, err)
			certs, err := p.certsDir(h.tree)
			testkit.Must(t, err)
			for _, name := range p.client {
				h.put(strings.Replace(name[1:], "microk8s/current", "microk8s/8120", 1), "")
			}
			h.apply(d)
			content, err := readIfThere(h.tree, certs+"/ghcr.io/hosts.toml")
			if text := string(content); text != "server = \"x\"\nclient = "+want+"\n[host]\n" || err != nil {
				t.Errorf("%s: %s, %v", platform, text, err)
			}
		}
	})
}

// With Kubernetes 1.34 the directory replaces the merged file.
func TestUpgradeOfTheKubelet(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		original := h.read(eksConfig)
		h.apply(desired("v1.33.5"))
		plan := h.apply(desired("v1.34.0"))
		if got := h.read(eksConfig); got != original || !plan.Restart || h.kubelet.restarts != 2 {
			t.Errorf("%d restarts, %s", h.kubelet.restarts, got)
		}
		if actions(plan)[0] != "restore /"+eksConfig+": is not wanted any more" { // before its provider is in another file, too
			t.Errorf("%q", actions(plan))
		}
		h.expectWanted("eks", "want/")
		h.expectUninstalled()
	})
}

// k3s uses its own paths without a flag if both exist. Our files there do not count as files of
// others.
func TestBareK3s(t *testing.T) {
	onHost(t, "k3s", func(t *testing.T, h *host) {
		testkit.Remove(t, filepath.Join(h.dir, "var/lib/rancher/credentialprovider"))
		h.before = h.files()
		const config = "var/lib/rancher/credentialprovider/config.yaml"
		h.apply(desired("v1.33.5+k3s1"))
		if h.read(config) != testProvider || h.files()["/etc/rancher/k3s/config.yaml.d/99-pullpass.yaml"] != "" {
			t.Errorf("%s", h.read(config))
		}
		if plan := h.apply(desired("v1.33.5+k3s1")); len(plan.Changes) > 0 {
			t.Errorf("%q", actions(plan))
		}
		h.apply(desired("v1.34.2+k3s1"))
		if got := h.files(); got["/"+config] != "" || got["/etc/pullpass/credential-providers/platform.yaml"] != "" || h.read(ownProvider) != testProvider {
			t.Errorf("%v", got)
		}
		// Flags go before what they name.
		if first := actions(h.apply(desired("v1.33.5+k3s1")))[0]; first != "remove /etc/rancher/k3s/config.yaml.d/99-pullpass.yaml: is not wanted any more" {
			t.Error(first)
		}
		h.expectUninstalled()
	})
}

// The file of the old form goes after the flags have changed.
func TestUpgradeOfAKubeletWithItsOwnFile(t *testing.T) {
	onHost(t, "kubeadm", func(t *testing.T, h *host) {
		h.apply(desired("v1.33.5"))
		all := actions(h.apply(desired("v1.36.2")))
		if last := all[len(all)-1]; last != "remove /etc/pullpass/credential-provider.yaml: is not wanted any more" {
			t.Errorf("%q", all)
		}
		h.expectWanted("kubeadm", "want/")
		h.expectUninstalled()
	})
}

func TestCA(t *testing.T) {
	onHost(t, "gke", func(t *testing.T, h *host) {
		d := desired("v1.36.2")
		d.CA = []byte("CA\n")
		if h.apply(d); h.read("etc/containerd/hosts.d/ghcr.io/ca.crt") != "CA\n" {
			t.Error(h.read("etc/containerd/hosts.d/ghcr.io/ca.crt"))
		}
		if h.apply(desired("v1.36.2")); h.kubelet.restarts != 1 {
			t.Errorf("%d restarts", h.kubelet.restarts)
		}
		h.expectWanted("gke", "want/")
		h.expectUninstalled()
	})
}

// The hosts.toml of a registry is removed after the kubelet has dropped its provider.
func TestAMirrorIsNotWantedAnyMore(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		d := desired("v1.36.2")
		d.Hosts["quay.io"] = []byte(testHosts)
		d.Provider = []byte(strings.Replace(testProvider, `["ghcr.io"]`, `["ghcr.io", "quay.io"]`, 1))
		h.apply(d)
		const quay = "etc/containerd/certs.d/quay.io/hosts.toml"
		h.kubelet.sick = func() error {
			if h.read(quay) != testHosts || strings.Contains(h.read(ownProvider), "quay.io") {
				t.Error("hosts.toml and provider are not changed in this order")
			}
			return nil
		}
		h.apply(desired("v1.36.2"))
		if _, err := os.Stat(filepath.Dir(filepath.Join(h.dir, quay))); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("its directory: %v", err)
		}
		h.expectWanted("eks", "want/")
	})
}

// If the kubelet already has a directory, our file is added to it.
func TestADirectoryOfOthers(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.put(eksFlags, "NODEADM_KUBELET_ARGS=--image-credential-provider-config=/etc/providers --image-credential-provider-bin-dir=/etc/eks/image-credential-provider\n")
		h.put("etc/providers/ecr.json", h.read(eksConfig))
		h.put("etc/providers/README", "no configuration")
		h.put("etc/pullpass/credential-providers/odd.yaml", "the kubelet does not read this directory")
		h.before = h.files()
		h.apply(desired("v1.36.2"))
		if h.read("etc/providers/pullpass.yaml") != testProvider || "/"+eksFlags != "" && h.files()["/"+eksFlags] != h.before["/"+eksFlags] {
			t.Error(h.read(eksFlags))
		}
		if plan := h.apply(desired("v1.36.2")); len(plan.Changes) > 0 {
			t.Errorf("%q", actions(plan))
		}
		h.expectUninstalled()
		h.untouched(ErrProvider, "is a directory, which a kubelet before 1.34 does not take", func() error { _, err := h.Apply(t.Context(), desired("v1.33.5")); return err })
	})
}

// The kubelet reads all files in our directory, including those of others.
func TestFilesOfOthersInOurDirectory(t *testing.T) {
	const head = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: "
	for name, test := range map[string]struct{ file, content, text string }{
		"no configuration":       {"extra.yaml", "kind: Secret\n", "extra.yaml: not usable as the kubelet's provider configuration: it is not a CredentialProviderConfig"},
		"our name":               {"extra.json", head + "pullpass-credential-provider\n", "has a provider pullpass-credential-provider already"},
		"the platform's name":    {"extra.yml", head + "ecr-credential-provider\n", `has a provider "ecr-credential-provider", and `},
		"no such plugin":         {"extra.yaml", head + "other\n", `names the plugin "other", which cannot be run in`},
		"a good one":             {"extra.yaml", head + "good\n", ""},
		"the kubelet ignores it": {"extra.txt", "kind: Secret\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, "eks", func(t *testing.T, h *host) {
				h.put("etc/eks/image-credential-provider/good", "")
				testkit.Must(t, os.Chmod(filepath.Join(h.dir, "etc/eks/image-credential-provider/good"), 0o755))
				h.put(filepath.Join(ownConfigDir, test.file), test.content)
				h.before = h.files()
				if test.text == "" {
					h.apply(desired("v1.36.2"))
					h.expectUninstalled()
					return
				}
				h.untouched(ErrProvider, test.text, func() error { _, err := h.Apply(t.Context(), desired("v1.36.2")); return err })
				h.apply(desired("v1.33.5")) // this kubelet does not read it
			})
		})
	}
}

// A configuration with which the kubelet would not start is rejected before any write.
func TestRefusedBeforeAnyWrite(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n"
	for name, test := range map[string]struct {
		content, text string
		want          error
	}{
		"our name":               {head + "- name: pullpass-credential-provider\n", "has a provider pullpass-credential-provider already", ErrProvider},
		"a name twice":           {head + "- name: ecr-credential-provider\n- name: ecr-credential-provider\n", "providers[1] has the name of another provider", ErrProvider},
		"a field twice":          {head + "- name: ecr-credential-provider\n  name: x\n", "correct it", ErrProvider},
		"no name":                {head + "- {}\n", "providers[0] has no name", ErrProvider},
		"no list":                {head + "  name: x\n", "providers is not a list", ErrProvider},
		"another kind":           {"kind: Secret\n", "not a CredentialProviderConfig", ErrProvider},
		"two documents":          {head + "- name: ecr-credential-provider\n---\nkind: x\n", "more than one YAML document", ErrProvider},
		"no YAML":                {"{", "did not find", ErrProvider},
		"empty":                  {"", "is empty", ErrProvider},
		"an older version":       {strings.Replace(head, "v1", "v1beta1", 1) + "- name: ecr-credential-provider\n", "has no tokenAttributes", ErrProvider},
		"larger than a file is":  {head + "- name: ecr-credential-provider\n" + strings.Repeat("#", maxFileBytes), "more than 1048576 bytes", hostfs.ErrTooLarge},
		"a list that is merged":  {"kind: CredentialProviderConfig\nx: &x {providers: []}\n<<: *x\n", "providers is not a list", ErrProvider},
		"a list that is aliased": {"x: &p []\n" + head[:len(head)-1] + " *p\n", "without anchors", ErrProvider},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "eks")
			h.put(eksConfig, test.content)
			h.untouched(test.want, test.text, func() error { _, err := h.Apply(t.Context(), desired("v1.33.5")); return err })
			if name != "an older version" && name != "a list that is aliased" {
				h.untouched(test.want, test.text, func() error { _, err := h.Apply(t.Context(), desired("v1.36.2")); return err })
			}
		})
	}
	// Those of gke tell the plugin a directory, and those for 1.33 leave out a field.
	for _, test := range [][2]string{{"eks", "v1.36.2"}, {"gke", "v1.36.2"}, {"eks", "v1.33.5"}} {
		h := newHost(t, test[0])
		d := desired(test[1])
		d.Provider = []byte("kind: CredentialProviderConfig\n")
		h.untouched(ErrProvider, "our own provider configuration: "+ErrProvider.Error()+": providers is not a list", func() error { _, err := h.Apply(t.Context(), d); return err })
	}
	h := newHost(t, "eks")
	if _, err := h.Status(desired("x")); err == nil || !strings.Contains(err.Error(), `"x"`) {
		t.Errorf("a version that is none: %v", err)
	}
}

func TestForeignFiles(t *testing.T) {
	t.Parallel()
	for _, name := range []string{eksPlugin, hostsTOML, ownProvider, "etc/pullpass/credential-providers/platform.json"} {
		h := newHost(t, "eks")
		h.put(name, "of another owner")
		h.untouched(ErrForeign, filepath.Join(h.dir, name)+" is there already", func() error { _, err := h.Apply(t.Context(), desired("v1.36.2")); return err })
		testkit.Remove(t, filepath.Join(h.dir, name))
		h.link(name, "/etc/passwd")
		h.untouched(ErrForeign, "is there already", func() error { _, err := h.Apply(t.Context(), desired("v1.36.2")); return err })
		testkit.Remove(t, filepath.Join(h.dir, name))
		testkit.Mkdir(t, filepath.Join(h.dir, name))
		h.untouched(ErrForeign, "is there already", func() error { _, err := h.Apply(t.Context(), desired("v1.36.2")); return err })
	}
}

// containerd reads HOST_PORT_ in place of HOST:PORT, also when it is empty.
func TestForeignDirectories(t *testing.T) {
	t.Parallel()
	h := newHost(t, "eks")
	d := desired("v1.36.2")
	d.Hosts = map[string][]byte{"registry.example.com:5000": []byte(testHosts)}
	dir := filepath.Join(h.dir, filepath.Dir(filepath.Dir(hostsTOML)), "registry.example.com_5000_")
	testkit.Mkdir(t, dir)
	h.untouched(ErrForeign, dir+" is there already", func() error { _, err := h.Apply(t.Context(), d); return err })
	testkit.Remove(t, dir)
	h.apply(d)
}

// Links that a user of the node can create never lead out of the host's root.
func TestHostileLinks(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		outside := filepath.Join(filepath.Dir(h.dir), "etc")
		testkit.Mkdir(t, filepath.Join(outside, "pullpass/credential-providers"))
		testkit.Put(t, filepath.Join(outside, "shadow"), "secret")
		h.link("etc/pullpass", "../../../../../../../../../.."+outside+"/pullpass")
		testkit.Mkdir(t, filepath.Join(h.dir, outside, "pullpass"))
		h.apply(desired("v1.36.2"))
		if got := h.read(outside + "/pullpass/credential-providers/pullpass.yaml"); got != testProvider {
			t.Error(got)
		}
		h.link("etc/loop", "loop")
		testkit.Remove(t, filepath.Join(h.dir, "etc/containerd/certs.d"))
		h.link("etc/containerd/certs.d", "/etc/loop/x")
		h.untouched(hostfs.ErrLoop, "", func() error { _, err := h.Apply(t.Context(), desired("v1.36.2")); return err })
		testkit.Remove(t, filepath.Join(h.dir, "etc/containerd/certs.d"))

		// A directory has replaced our file.
		testkit.Remove(t, filepath.Join(h.dir, eksPlugin))
		testkit.Mkdir(t, filepath.Join(h.dir, eksPlugin))
		h.untouched(ErrForeign, eksPlugin, func() error { _, err := h.Apply(t.Context(), desired("v1.36.2")); return err })

		// A link has replaced our file.
		testkit.Remove(t, filepath.Join(h.dir, eksPlugin))
		h.link(eksPlugin, filepath.Join(outside, "shadow"))
		h.apply(desired("v1.36.2"))
		h.uninstall()
		entries, err := os.ReadDir(filepath.Join(outside, "pullpass/credential-providers"))
		if data, _ := os.ReadFile(filepath.Join(outside, "shadow")); string(data) != "secret" || len(entries) > 0 || err != nil {
			t.Errorf("outside: %q, %v, %v", data, entries, err)
		}
	})
}

// Others change a file between plan and write. Their file stays, and the state does not record it
// as ours.
func TestAFileIsSwappedBetweenCheckAndWrite(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		secret := filepath.Join(filepath.Dir(h.dir), "shadow")
		testkit.Put(t, secret, "secret")
		h.watcher = swapping{h, func() {
			h.link(hostsTOML, secret)
			h.put(eksFlags, "NODEADM_KUBELET_ARGS=--of-somebody-else\n")
		}}
		if _, err := h.Apply(t.Context(), desired("v1.36.2")); !errors.Is(err, hostfs.ErrChanged) || !strings.Contains(err.Error(), "run it again") {
			t.Errorf("error %v", err)
		}
		s, err := readState(h.tree)
		if data, _ := os.ReadFile(secret); err != nil || len(s.Entries) > 0 || s.Pending != nil || string(data) != "secret" {
			t.Errorf("%v, %+v, %v, %q", s.Entries, s.Pending, err, data)
		}
		h.watcher = h
		h.untouched(ErrForeign, hostsTOML, func() error { _, err := h.Apply(t.Context(), desired("v1.36.2")); return err })
	})
}

// The same for a file with our part in it: the part stays ours, and an untested change is not due.
func TestAFileIsSwappedDuringAnUpgrade(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		d := desired("v1.36.2")
		d.Plugin = []byte("NEW\n")
		d.Provider = []byte(strings.Replace(testProvider, "0s", "1s", 1))
		for _, name := range []string{eksPlugin, ownProvider} {
			h.watcher = swapping{h, func() { h.put(name, "swapped") }}
			if _, err := h.Apply(t.Context(), d); !errors.Is(err, hostfs.ErrChanged) || !strings.Contains(err.Error(), name) {
				t.Errorf("error %v", err)
			}
			s, err := readState(h.tree)
			if err != nil || s.Pending != nil || s.Entries["/"+name].Written.Mode == 0 {
				t.Errorf("%s: %v, %+v, %v", name, s.Entries, s.Pending, err)
			}
		}
		h.watcher = h
		if h.apply(d); h.read(eksPlugin) != "NEW\n" || h.read(ownProvider) != string(d.Provider) || h.kubelet.restarts != 2 {
			t.Errorf("%d restarts, %s", h.kubelet.restarts, h.read(ownProvider))
		}
		h.expectUninstalled()
	})
}

// swapping is a watcher that is called after the plan is made, and before it is carried out.
type swapping struct {
	*host
	swap func()
}

func (s swapping) Ready(context.Context) error { s.swap(); return nil }

func TestDamagedState(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for name, damage := range map[string]func(h *host, state string) string{
			"no JSON":             func(_ *host, _ string) string { return "{" },
			"empty":               func(_ *host, _ string) string { return "" },
			"nothing in it":       func(_ *host, _ string) string { return "{}" },
			"null":                func(_ *host, _ string) string { return "null" },
			"no entries":          func(_ *host, _ string) string { return `{"version": 1}` },
			"something behind it": func(_ *host, s string) string { return s + "x" },
			"another version":     func(_ *host, s string) string { return strings.Replace(s, `"version": 1`, `"version": 2`, 1) },
			"an unknown field":    func(_ *host, s string) string { return strings.Replace(s, `"version": 1`, `"version": 1, "x": 1`, 1) },
			"a path that leads nowhere": func(_ *host, s string) string {
				return strings.Replace(s, `"/etc/containerd/certs.d/ghcr.io/hosts.toml"`, `"etc/../.."`, 1)
			},
			"a roll-back that leads nowhere": func(_ *host, s string) string {
				return strings.Replace(s, `"version": 1`, `"version": 1, "pending": {"digest": "", "before": {"etc/../..": null}}`, 1)
			},
			"a directory that is nowhere": func(_ *host, s string) string {
				return strings.Replace(s, `"directories": [`, `"directories": ["/", `, 1)
			},
			"a digest that is a path": func(h *host, s string) string {
				return strings.Replace(s, digestOf([]byte(h.before["flags"])), "../../../../../etc/passwd", 1)
			},
			"a backup that is not there": func(h *host, s string) string { testkit.Remove(t, filepath.Join(h.dir, backupDir)); return s },
			"a backup that was changed": func(h *host, s string) string {
				h.put(backupDir+"/"+digestOf([]byte(h.before["flags"])), "x")
				return s
			},
		} {
			h := newHost(t, "eks")
			flags := h.read(eksFlags)
			h.apply(desired("v1.36.2"))
			h.before["flags"] = flags
			if damaged := damage(h, h.read(stateFile)); true {
				h.put(stateFile, damaged)
			}
			for _, do := range []func() error{
				func() error { _, err := h.Apply(t.Context(), desired("v1.36.2")); return err },
				func() error { _, err := h.Status(desired("v1.36.2")); return err },
				func() error { _, err := h.Uninstall(t.Context()); return err },
				func() error { return h.Watch(t.Context()) },
				func() error { return (&HostKubelet{Systemd: Systemd{Tree: h.tree}}).Restart(t.Context()) },
			} {
				before := h.writes()
				err := do()
				if !errors.Is(err, ErrState) || !strings.Contains(err.Error(), filepath.Join(h.dir, stateFile)) {
					t.Errorf("%s: %v", name, err)
				}
				if name == "no JSON" && !strings.Contains(textOf(err), "unexpected EOF") {
					t.Errorf("%s: %v", name, err)
				}
				if name == "an unknown field" && !strings.Contains(textOf(err), `unknown field "x"`) {
					t.Errorf("%s: %v", name, err)
				}
				h.expect(name, h.writes(), before)
			}
			if files := h.Repairable(); files != nil {
				t.Errorf("%s: %q", name, files)
			}
		}
	})
}

func TestOnlyOneAtATime(t *testing.T) {
	t.Parallel()
	h := newHost(t, "eks")
	unlock, ok, err := h.tree.Lock(lockFile, true)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	h.untouched(ErrBusy, "", func() error { _, err := h.Apply(t.Context(), desired("v1.36.2")); return err })
	testkit.Must(t, unlock())
}

func TestAnotherProfileThanInstalled(t *testing.T) {
	onHost(t, "kind", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		h.profile = "kubeadm"
		h.untouched(ErrProfile, "it was installed as kind, and is kubeadm now", func() error { _, err := h.Apply(t.Context(), desired("v1.36.2")); return err })
	})
}
