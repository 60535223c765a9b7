package nodeinstall

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/tools/txtar"

	"github.com/pullpass/pullpass/internal/node/hostfs"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Every platform, from its bare node to its bare node.
func TestLifeOnEveryPlatform(t *testing.T) {
	t.Parallel()
	for _, name := range Profiles() {
		for version, section := range map[string]string{"v1.36.2": "want/", "v1.33.5": "want133/"} {
			t.Run(name+"/"+version, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { life(t, name, version, section) })
			})
		}
	}
}

func life(t *testing.T, name, version, section string) {
	h := newHost(t, name)
	plan := h.apply(desired(version))
	for _, c := range plan.Changes {
		text := map[string]string{"create": "is missing", "edit": "to name Pullpass"}[c.Action]
		if _, existed := h.before[c.Path]; strings.HasPrefix(c.Reason, "the kubelet's flags are") {
			text = "the kubelet's flags are to name Pullpass"
			if c.Action == "create" && existed {
				t.Errorf("%+v", c)
			}
		}
		if strings.HasPrefix(c.Reason, "the provider configuration") && c.Action == "edit" {
			text = "the provider configuration is to name Pullpass"
		}
		if text == "" || !strings.HasSuffix(c.Reason, text) {
			t.Errorf("%s %s: %s", c.Action, c.Path, c.Reason)
		}
	}
	if plan.Profile != name || !plan.Restart || h.kubelet.restarts != 1 {
		t.Errorf("profile %s, restart %v, %d restarts", plan.Profile, plan.Restart, h.kubelet.restarts)
	}
	h.expectWanted(name, section)

	installed := h.writes()
	if plan := h.apply(desired(version)); len(plan.Changes) > 0 || plan.Restart {
		t.Errorf("the second time: %q", actions(plan))
	}
	h.expect("the second time", h.writes(), installed)

	d := desired(version)
	d.Plugin = []byte("NEW PLUGIN\n")
	if plan := h.apply(d); len(plan.Changes) != 1 || plan.Restart || h.kubelet.restarts != 1 || plan.Changes[0].Reason != "the plugin has a new version" {
		t.Errorf("a new plugin: %q, %d restarts", actions(plan), h.kubelet.restarts)
	}
	d.Provider = []byte(strings.Replace(testProvider, "0s", "1s", 1))
	if plan := h.apply(d); len(plan.Changes) != 1 || !plan.Restart || h.kubelet.restarts != 2 {
		t.Errorf("a new configuration: %q, %d restarts", actions(plan), h.kubelet.restarts)
	}
	h.uninstall()
	if h.kubelet.restarts != 3 {
		t.Errorf("%d restarts", h.kubelet.restarts)
	}
	h.expect("after uninstall", h.files(), h.before)
	h.uninstall()
	h.expect("after another uninstall", h.files(), h.before)
}

// expectWanted compares the installed files with the fixture, and all other files with their
// earlier state.
func (h *host) expectWanted(name, section string) {
	h.t.Helper()
	archive, err := txtar.ParseFile(filepath.Join("testdata", name+".txtar"))
	testkit.Must(h.t, err)
	got, seen := h.files(), 0
	for _, file := range archive.Files {
		path, found := strings.CutPrefix(file.Name, section)
		if !found {
			continue
		}
		seen++
		content := strings.Replace(string(file.Data), "PROVIDER\n", testProvider, 1)
		if target, isLink := strings.CutPrefix(content, "link "); isLink {
			if link, err := os.Readlink(filepath.Join(h.dir, path)); link+"\n" != target || err != nil {
				h.t.Errorf("%s leads to %s, %v", path, link, err)
			}
		} else if text := h.read(path); text != content {
			h.t.Errorf("%s:\n%s\nwant\n%s", path, text, content)
		}
		mode, _, _ := strings.Cut(got["/"+path], "\n")
		if was, existed := h.before["/"+path]; existed && !strings.HasPrefix(was, mode+"\n") {
			h.t.Errorf("%s has another mode: %s", path, mode)
		}
		delete(got, "/"+path)
	}
	if seen < 4 && section == "want/" {
		h.t.Errorf("%d files in the fixture", seen)
	}
	for path, text := range got {
		if was, existed := h.before[path]; !existed && !strings.HasPrefix(text, "drwxr-xr-x") && !strings.HasPrefix(path, stateDir) || existed && text != was {
			h.t.Errorf("%s is not wanted:\n%s", path, text)
		}
	}
}

func TestProfileIsNotGuessed(t *testing.T) {
	t.Parallel()
	h := newHost(t, "eks")
	h.put("etc/kubernetes/azure.json", "{}")
	h.untouched(ErrProfile, "/etc/eks/kubelet/environment (eks) and /etc/kubernetes/azure.json (aks) are all below "+h.dir, func() error {
		_, err := h.Apply(t.Context(), desired("v1.36.2"))
		return err
	})
	h.profile = "eks"
	if plan, err := h.Status(desired("v1.36.2")); err != nil || plan.Profile != "eks" {
		t.Errorf("with a profile: %v, %v", plan, err)
	}
	h.profile = "talos"
	if _, err := h.Status(desired("v1.36.2")); err == nil || !strings.Contains(err.Error(), `--profile "talos" is not known; use `) {
		t.Errorf("an unknown one: %v", err)
	}
	h.profile = ""
	testkit.Remove(t, filepath.Join(h.dir, "etc"))
	if _, err := h.Status(desired("v1.36.2")); err == nil || !strings.Contains(err.Error(), "none of /var/lib/kubelet/kubeadm-flags.env (kubeadm), /kind/version (kind), ") {
		t.Errorf("none: %v", err)
	}
}

func TestProfileNeedsWhatItKnows(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		platform string
		spoil    func(h *host)
		want     error
		text     string
	}{
		"two units": {"k3s", func(h *host) { h.link("etc/systemd/system/multi-user.target.wants/k3s.service", "x") }, ErrProfile, "(2 are)"},
		"no unit":   {"k3s", func(h *host) { testkit.Remove(h.t, filepath.Join(h.dir, "etc/systemd")) }, ErrProfile, "(0 are)"},
		"no file of flags in the unit": {"kubeadm", func(h *host) { testkit.Remove(h.t, filepath.Join(h.dir, "usr/lib/systemd")) }, ErrProfile,
			"exactly one of /etc/default/kubelet and /etc/sysconfig/kubelet"},
		"no file of flags": {"aks", func(h *host) { testkit.Remove(h.t, filepath.Join(h.dir, "etc/default/kubelet")) }, ErrProfile, "etc/default/kubelet is not there"},
		"no config_path": {"kubeadm", func(h *host) {
			h.put("etc/containerd/config.toml", "#config_path = \"/x\"\n  # config_path = \"/x\"\nconfig_path = \"\"\n")
		}, ErrProfile, "config_path is in none of"},
		"a directory for containerd's": {"kubeadm", func(h *host) {
			testkit.Remove(h.t, filepath.Join(h.dir, "etc/containerd/config.toml"))
			testkit.Mkdir(h.t, filepath.Join(h.dir, "etc/containerd/config.toml"))
		}, hostfs.ErrNotRegular, "etc/containerd/config.toml"},
		"a relative config_path": {"kubeadm", func(h *host) {
			h.put("etc/containerd/config.toml", "[plugins.cri.registry]\nconfig_path = \"certs.d\"\n")
		}, ErrProfile, "not an absolute path"},
		"a config_path with a variable": {"kubeadm", func(h *host) {
			h.put("etc/containerd/config.toml", "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.registry]\nconfig_path = \"/etc/${X}/certs.d\"\n")
		}, ErrProfile, "has a variable"},
		"another variable of snaps": {"microk8s", func(h *host) {
			const file = "var/snap/microk8s/current/args/containerd-template.toml"
			h.put(file, strings.ReplaceAll(h.read("/"+file), "SNAP_DATA", "SNAP_COMMON"))
		}, ErrProfile, "has a variable"},
		"lines of flags that go on": {"aks", func(h *host) { h.put("etc/default/kubelet", "KUBELET_FLAGS=--a \\\n --b\n") }, errForm, "a line ends with"},
		"a comment that goes on":    {"aks", func(h *host) { h.put("etc/default/kubelet", "# flags: \\\nKUBELET_FLAGS=--a\n") }, errForm, "a comment ends with"},
		"a comment that would":      {"aks", func(h *host) { h.put("etc/default/kubelet", "# flags: \\\n#  --b \\\n") }, errForm, "a comment ends with"},
		"quotes within quotes":      {"gke", func(h *host) { h.put("etc/default/kubelet", `KUBELET_OPTS="--a=\"b\""`) }, errForm, "quotes within quotes"},
		"earlier flags in an odd file": {"kubeadm", func(h *host) {
			h.put("var/lib/kubelet/kubeadm-flags.env", `KUBELET_KUBEADM_ARGS="--a=\"b\""`)
		}, errForm, "kubeadm-flags.env"},
		"a file of others in place of ours": {"kubeadm", func(h *host) { h.put("etc/pullpass/credential-providers/pullpass.yaml", testProvider) }, ErrForeign, "is there already"},
		"flags in a link": {"kind", func(h *host) {
			testkit.Remove(h.t, filepath.Join(h.dir, "etc/default/kubelet"))
			h.link("etc/default/kubelet", "/etc/passwd")
		}, ErrProfile, "is not a regular file"},
		"a configuration that is not there": {"eks", func(h *host) {
			testkit.Remove(h.t, filepath.Join(h.dir, "etc/eks/image-credential-provider/config.json"))
		}, os.ErrNotExist, "--image-credential-provider-config of the kubelet"},
		"a plugin that is not there": {"eks", func(h *host) {
			testkit.Remove(h.t, filepath.Join(h.dir, "etc/eks/image-credential-provider/ecr-credential-provider"))
		}, ErrProvider, `names the plugin "ecr-credential-provider"`},
		"a plugin that is not executable": {"eks", func(h *host) {
			testkit.Must(h.t, os.Chmod(filepath.Join(h.dir, "etc/eks/image-credential-provider/ecr-credential-provider"), 0o644))
		}, ErrProvider, "permission denied"},
		"a configuration without its ending": {"aks", func(h *host) {
			h.put("etc/default/kubelet", "KUBELET_FLAGS=--image-credential-provider-config=/etc/passwd\n")
		}, ErrProvider, "none of the endings"},
		"a configuration at a relative place": {"aks", func(h *host) {
			h.put("etc/default/kubelet", "KUBELET_FLAGS=--image-credential-provider-config x.yaml\n")
		}, ErrProfile, "not an absolute path"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, test.platform)
			test.spoil(h)
			h.untouched(test.want, test.text, func() error { _, err := h.Apply(t.Context(), desired("v1.36.2")); return err })
		})
	}
}

// The document has the paths of each platform.
func TestDocument(t *testing.T) {
	t.Parallel()
	text := testkit.Value(os.ReadFile("../../../docs/how-to/nodes.md"))(t)
	rows := strings.Split(string(text), "\n")
	for _, p := range profiles() {
		row := ""
		for _, line := range rows {
			if strings.HasPrefix(line, "| `"+p.name+"` ") {
				row = line
			}
		}
		if !strings.Contains(row, "`"+p.has+"`") {
			t.Errorf("%s: %q does not have %s", p.name, row, p.has)
		}
		for _, value := range append([]string{p.flags.variable, p.plugins, p.flags.files[0]}, strings.TrimPrefix(p.config, "/etc/pullpass/credential-provider.yaml")) {
			if !strings.Contains(string(text), value) {
				t.Errorf("%s: %s is not in the document", p.name, value)
			}
		}
	}
	for _, platform := range GuidedPlatforms() {
		if !strings.Contains(string(text), "`"+platform+"`") {
			t.Errorf("%s is not in the document", platform)
		}
	}
}
