package nodeinstall

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/node/nodeconfig"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The plugin reads hosts.toml in the directory of the platform's containerd.
func TestCertsDirArgument(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const args = "  args: [\"--registry=ghcr.io\", \"--gateway=https://gateway.example.com\"] # why\n"
		for platform, want := range map[string]string{
			"kubeadm": "", "eks": "", "gke": "/etc/containerd/hosts.d", "k3s": "/var/lib/rancher/k3s/agent/etc/containerd/certs.d", "microk8s": "/var/snap/microk8s/current/args/certs.d",
		} {
			h := newHost(t, platform)
			d := desired("v1.36.2")
			d.Provider = []byte(testProvider + args)
			plan := h.apply(d)
			name := ""
			for _, c := range plan.Changes {
				if c.Restart && strings.HasSuffix(c.Path, "/pullpass.yaml") || c.Path == "/var/lib/rancher/credentialprovider/config.yaml" {
					name = c.Path
				}
			}
			text := h.read(name[1:])
			if want == "" {
				if text != string(d.Provider) {
					t.Errorf("%s: changed to %s", platform, text)
				}
				continue
			}
			if !strings.Contains(text, `["--registry=ghcr.io", "--gateway=https://gateway.example.com", "--certs-dir=`+want+`"]`) {
				t.Errorf("%s: %s", platform, text)
			}
			if plan := h.apply(d); len(plan.Changes) > 0 {
				t.Errorf("%s: once more: %q", platform, actions(plan))
			}
		}
	})
}

func TestRemarks(t *testing.T) {
	t.Parallel()
	const (
		shared  = "any pod of a node may use an image that another pod's ServiceAccount pulled"
		always  = "whatever they are told"
		upgrade = "kubelets of 1.34 and later do not start without it"
		list    = "config_path of containerd is a list (/etc/containerd/certs.d:/etc/docker/certs.d)"
		on      = "kind: KubeletConfiguration\nfeatureGates: {KubeletEnsureSecretPulledImages: true}\n"
		off     = "--feature-gates=Other=true,KubeletEnsureSecretPulledImages=false"
		flag    = "(--feature-gates with KubeletEnsureSecretPulledImages=false, in "
		never   = "imagePullCredentialsVerificationPolicy: NeverVerify\n"
		options = "etc/default/kubelet"
		unknown = "so it is not known whether the kubelet verifies images"
		// always10 is a file that is merged.
		always10 = "imagePullCredentialsVerificationPolicy: AlwaysVerify\n"
	)
	for name, test := range map[string]struct {
		platform, version string
		change            func(h *host)
		want              []string
	}{
		"1.33":               {"kubeadm", "v1.33.5", nil, []string{always, upgrade}},
		"1.33 with the gate": {"kubeadm", "v1.33.5", func(h *host) { h.put("var/lib/kubelet/config.yaml", on) }, []string{always, upgrade}},
		"1.34":               {"kubeadm", "v1.34.2", nil, []string{shared}},
		"1.34 with the gate": {"kubeadm", "v1.34.2", func(h *host) { h.put("var/lib/kubelet/config.yaml", on) }, nil},
		"1.34, no YAML":      {"kubeadm", "v1.34.2", func(h *host) { h.put("var/lib/kubelet/config.yaml", "{") }, []string{unknown, shared}},
		"several documents":  {"kubeadm", "v1.36.2", func(h *host) { h.put("var/lib/kubelet/config.yaml", never+"---\n"+on) }, []string{unknown}},
		"a relative path": {"kubeadm", "v1.36.2", func(h *host) { h.put(options, "KUBELET_EXTRA_ARGS=--config=config.yaml\n") },
			[]string{"--config of the kubelet is not an absolute path (\"config.yaml\")"}},
		"a link to a directory, which is not read": {"kubeadm", "v1.36.2", func(h *host) {
			h.put(options, "KUBELET_EXTRA_ARGS=--config-dir=/opt/kubelet\n")
			h.put("var/lib/kubelet/config.yaml", never)
			h.put("opt/real/10.conf", always10)
			testkit.Must(t, os.Symlink("real", filepath.Join(h.dir, "opt/kubelet")))
		}, []string{shared}},
		"a link in the directory": {"kubeadm", "v1.36.2", func(h *host) {
			h.put(options, "KUBELET_EXTRA_ARGS=--config-dir=/opt/kubelet\n")
			h.put("var/lib/kubelet/config.yaml", never)
			h.put("opt/real/10.conf", always10)
			h.put("opt/kubelet/x", "")
			testkit.Must(t, os.Symlink("../real", filepath.Join(h.dir, "opt/kubelet/10")))
		}, []string{shared}},
		"null, which removes the gate": {"kubeadm", "v1.34.2", func(h *host) {
			h.put(options, "KUBELET_EXTRA_ARGS=--config-dir=/opt/kubelet\n")
			h.put("var/lib/kubelet/config.yaml", on)
			h.put("opt/kubelet/10.conf", "featureGates: null\n")
		}, []string{shared}},
		"null, which removes the policy": {"kubeadm", "v1.36.2", func(h *host) {
			h.put(options, "KUBELET_EXTRA_ARGS=--config-dir=/opt/kubelet\n")
			h.put("var/lib/kubelet/config.yaml", never)
			h.put("opt/kubelet/10.conf", "imagePullCredentialsVerificationPolicy: null\n")
		}, nil},
		"a list with the registry": {"kubeadm", "v1.36.2", func(h *host) {
			h.put("var/lib/kubelet/config.yaml", "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: [registry.k8s.io/*, ghcr.io/acme/*]\n")
		}, []string{"(/var/lib/kubelet/config.yaml): any pod of a node may use an image of ghcr.io that another pod's ServiceAccount pulled, because preloadedImagesVerificationAllowlist has \"ghcr.io/acme/*\""}},
		"a list of others": {"kubeadm", "v1.36.2", func(h *host) {
			h.put("var/lib/kubelet/config.yaml", "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: [registry.k8s.io/*]\n")
		}, nil},
		"no flag for the file": {"kubeadm", "v1.34.2", func(h *host) {
			h.put(dropIn, "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet $KUBELET_EXTRA_ARGS\n")
			h.put("var/lib/kubelet/config.yaml", on)
		}, []string{shared}},
		"1.36":                  {"kubeadm", "v1.36.2", nil, nil},
		"1.36 without the gate": {"kubeadm", "v1.36.2", func(h *host) { h.put("var/lib/kubelet/config.yaml", strings.Replace(on, "true", "false", 1)) }, []string{shared}},
		"1.36 that is told not to": {"kubeadm", "v1.36.2", func(h *host) {
			h.put("var/lib/kubelet/config.yaml", "imagePullCredentialsVerificationPolicy: NeverVerify\n")
		}, []string{shared}},
		"1.36 with other gates": {"kubeadm", "v1.36.2", func(h *host) {
			h.put("var/lib/kubelet/config.yaml", "featureGates: {Other: false}\n")
		}, nil},
		"1.36, told so by the first file": {"eks", "v1.36.2", func(h *host) {
			h.put("etc/containerd/config.toml", "[plugins.cri.registry]\nconfig_path = \"/etc/containerd/certs.d\"\n")
			h.put("etc/kubernetes/kubelet/config.json", `{"imagePullCredentialsVerificationPolicy": "NeverVerify"}`)
			h.put("etc/kubernetes/kubelet/config.json.d/10.json", `{}`)
		}, []string{"(/etc/kubernetes/kubelet/config.json and /etc/kubernetes/kubelet/config.json.d): "}},
		"a flag, over the file": {"kubeadm", "v1.36.2", func(h *host) {
			h.put("var/lib/kubelet/config.yaml", on)
			h.put(options, "KUBELET_EXTRA_ARGS=\""+off+"\"\n")
		}, []string{flag + "kubelet.service or a file that it reads, counts more than /var/lib/kubelet/config.yaml; remove it there"}},
		"a flag of kubeadm": {"kubeadm", "v1.36.2", func(h *host) { h.put("var/lib/kubelet/kubeadm-flags.env", "KUBELET_KUBEADM_ARGS=\""+off+"\"\n") }, []string{flag}},
		"a flag that others follow": {"kubeadm", "v1.36.2", func(h *host) {
			h.put(options, "KUBELET_EXTRA_ARGS=\""+off+" --feature_gates KubeletEnsureSecretPulledImages=1\"\n")
		}, nil},
		"a flag that is on": {"kubeadm", "v1.34.2", func(h *host) {
			h.put(options, "KUBELET_EXTRA_ARGS=--feature-gates=KubeletEnsureSecretPulledImages=true\n")
		}, nil},
		"a flag of a script": {"kubeadm", "v1.36.2", func(h *host) {
			h.put(dropIn, "[Service]\nExecStart=\nExecStart=/opt/run\n")
			h.put("opt/run", "#!/bin/sh\nexec kubelet "+off+"\n")
		}, []string{flag}},
		"a flag that a script takes": {"kubeadm", "v1.36.2", func(h *host) {
			h.put(dropIn, "[Service]\nExecStart=\nExecStart=/opt/run\n")
			h.put("opt/run", "#!/bin/sh\nexec kubelet $KUBELET_EXTRA_ARGS\n")
			h.put(options, "KUBELET_EXTRA_ARGS=\""+off+"\"\n")
		}, []string{flag}},
		"a flag of k3s": {"k3s", "v1.36.2", func(h *host) {
			h.put("etc/rancher/k3s/config.yaml", "kubelet-arg: ['"+strings.Replace(off[2:], "=", "+=", 1)+"']\n")
		}, []string{flag}},
		"a flag in k3s's unit": {"k3s", "v1.36.2", func(h *host) {
			h.put("etc/systemd/system/k3s-agent.service", "[Service]\nExecStart=/usr/local/bin/k3s agent --kubelet-arg="+off[2:]+"\n")
		}, []string{flag}},
		"a flag of MicroK8s":    {"microk8s", "v1.36.2", func(h *host) { h.put("var/snap/microk8s/current/args/kubelet", off+"\n") }, []string{flag}},
		"a flag, whatever 1.33": {"kubeadm", "v1.33.5", func(h *host) { h.put(options, "KUBELET_EXTRA_ARGS="+off+"\n") }, []string{"(/var/lib/kubelet/config.yaml): ", upgrade}},
		"another file": {"kubeadm", "v1.36.2", func(h *host) {
			h.put(options, "KUBELET_EXTRA_ARGS=--config=/opt/kubelet.yaml\n")
			h.put("opt/kubelet.yaml", never)
		}, []string{"(/opt/kubelet.yaml): "}},
		"another file, and not the profile's": {"kubeadm", "v1.36.2", func(h *host) {
			h.put(options, "KUBELET_EXTRA_ARGS=--config=/opt/kubelet.yaml\n")
			h.put("var/lib/kubelet/config.yaml", never)
		}, nil},
		"files that are merged": {"kubeadm", "v1.36.2", func(h *host) {
			h.put(options, "KUBELET_EXTRA_ARGS=--config-dir=/opt/kubelet\n")
			h.put("var/lib/kubelet/config.yaml", on)
			h.put("opt/kubelet/10.conf", strings.Replace(on, "true", "false", 1))
		}, []string{"(/var/lib/kubelet/config.yaml and /opt/kubelet): "}},
		"files that are merged, in their order": {"kubeadm", "v1.36.2", func(h *host) {
			h.put(options, "KUBELET_EXTRA_ARGS=--config-dir=/opt/kubelet\n")
			h.put("opt/kubelet/10.conf", never)
			h.put("opt/kubelet/20/a.conf", strings.Replace(never, "Never", "Always", 1))
			h.put("opt/kubelet/30.yaml", never)
		}, nil},
		"without a known file": {"microk8s", "v1.34.2", nil, []string{"(its KubeletConfiguration): "}},
		"in a directory":       {"k3s", "v1.34.2+k3s1", func(h *host) { h.put("var/lib/rancher/k3s/agent/etc/kubelet.conf.d/50-images.conf", on) }, nil},
		"in JSON": {"eks", "v1.34.2", func(h *host) {
			h.put("etc/kubernetes/kubelet/config.json", `{"featureGates": {"KubeletEnsureSecretPulledImages": true}}`)
		}, []string{list}},
		"a list": {"eks", "v1.36.2", nil, []string{list}},
		"a list, pulled by itself": {"eks", "v1.36.2", func(h *host) {
			h.put("etc/containerd/config.d/a.toml", "[plugins.'io.containerd.cri.v1.images']\ndiscard_unpacked_layers = true # as EKS has it\n")
		}, nil},
		"a list, and told so": {"eks", "v1.36.2", func(h *host) {
			h.put("etc/containerd/config.d/a.toml", "[plugins.'io.containerd.cri.v1.images']\ndiscard_unpacked_layers = false\nuse_local_image_pull = true\n")
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, test.platform)
			if test.change != nil {
				test.change(h)
			}
			got, err := h.Remarks(desired(test.version))
			if err != nil || len(got) != len(test.want) {
				t.Fatalf("%q, %v", got, err)
			}
			for i := range got {
				if !strings.Contains(got[i], test.want[i]) {
					t.Errorf("%q, want %q", got[i], test.want[i])
				}
			}
		})
	}
}

// A registry that containerd asks itself has no hosts.toml of ours, but others can have written one.
func TestHostsOfOthers(t *testing.T) {
	t.Parallel()
	const (
		registry = "registry.example.com:5000"
		certs    = "etc/containerd/certs.d/"
		mirror   = "server = \"https://" + registry + "\"\n[host.\"http://mirror.example:5000\"]\nskip_verify = true\n"
		clear    = "hosts.toml:2: host: sends the pod's token in the clear"
		another  = "hosts.toml:2: host: is another registry than " + registry + " (\"mirror.example:5000\"), and containerd offers the pod's token to it too; remove it"
		forOne   = "/etc/containerd/certs.d/" + registry + "/hosts.toml for this one"
	)
	for name, test := range map[string]struct {
		files map[string]string
		hosts []byte
		want  []string
	}{
		"none":               {nil, nil, nil},
		"its own":            {map[string]string{certs + registry + "/hosts.toml": mirror}, nil, []string{registry + "/" + clear, registry + "/" + another}},
		"with underscores":   {map[string]string{certs + "registry.example.com_5000_/hosts.toml": mirror, certs + registry + "/x": ""}, nil, []string{"_5000_/" + clear, "_5000_/" + another}},
		"of any registry":    {map[string]string{certs + "_default/hosts.toml": mirror}, nil, []string{forOne, forOne}},
		"of another":         {map[string]string{certs + "other.example.com/hosts.toml": mirror}, nil, nil},
		"a directory alone":  {map[string]string{certs + "_default/hosts.toml": mirror, certs + registry + "/ca.crt": ""}, nil, nil},
		"without a mirror":   {map[string]string{certs + registry + "/hosts.toml": "server = \"https://" + registry + "\"\n[host]\n"}, nil, nil},
		"ours":               {map[string]string{certs + "_default/hosts.toml": mirror}, []byte(testHosts), nil},
		"before ours":        {map[string]string{certs + "registry.example.com_5000_/hosts.toml": mirror}, []byte(testHosts), []string{clear, another}},
		"the default":        {map[string]string{"etc/containerd/config.toml": "version = 3\n", "etc/docker/certs.d/" + registry + "/hosts.toml": mirror}, nil, []string{clear, another}},
		"of a file, unknown": {map[string]string{"etc/containerd/config.toml": "version"}, nil, []string{"so it is not known to whom"}},
	} {
		h := newHost(t, "kubeadm")
		for file, content := range test.files {
			h.put(file, content)
		}
		d := desired("v1.36.2")
		d.Registry, d.LintHosts, d.Hosts = registry, nodeconfig.Target{Registries: []string{registry}}.LintHosts, nil
		if test.hosts != nil {
			d.Hosts = map[string][]byte{registry: test.hosts}
		}
		got, err := h.Remarks(d)
		if err != nil || len(got) != len(test.want) {
			t.Errorf("%s: %q, %v", name, got, err)
			continue
		}
		for i := range got {
			if !strings.Contains(got[i], test.want[i]) {
				t.Errorf("%s: %q, want %q", name, got[i], test.want[i])
			}
		}
	}
}

// The list matters only for registries behind the gateway. A file that cannot be read is an error.
func TestRemarksThatCannotBeMade(t *testing.T) {
	t.Parallel()
	h := newHost(t, "eks")
	d := desired("v1.36.2")
	d.Hosts = nil
	if got, err := h.Remarks(d); len(got) > 0 || err != nil {
		t.Errorf("without a mirror: %q, %v", got, err)
	}
	for name, test := range map[string]struct {
		platform, version string
		spoil             func(h *host)
		text              string
	}{
		"no such profile":        {"eks", "v1.36.2", func(h *host) { h.profile = "talos" }, "is not known"},
		"no version":             {"eks", "x", func(*host) {}, `"x"`},
		"a directory for a file": {"eks", "v1.36.2", func(h *host) { h.put("etc/kubernetes/kubelet/config.json/x", "") }, "kubelet/config.json"},
		"a file for a directory": {"eks", "v1.36.2", func(h *host) { h.put("etc/kubernetes/kubelet/config.json.d", "") }, "kubelet/config.json.d"},
		"a directory for containerd's": {"eks", "v1.36.2", func(h *host) {
			testkit.Remove(h.t, filepath.Join(h.dir, "etc/containerd/config.toml"))
			h.put("etc/containerd/config.toml/x", "")
		}, "etc/containerd/config.toml"},
	} {
		h := newHost(t, test.platform)
		test.spoil(h)
		if got, err := h.Remarks(desired(test.version)); err == nil || !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// containerd would send the pods' tokens to the registries behind the gateway.
func TestListOfDirectoriesThatContainerdDoesNotRead(t *testing.T) {
	t.Parallel()
	h := newHost(t, "eks")
	testkit.Must(t, os.MkdirAll(filepath.Join(h.dir, "etc/containerd/config.d"), 0o755))
	h.put("etc/containerd/config.d/spegel.toml", "[plugins.'io.containerd.cri.v1.images']\ndiscard_unpacked_layers = false\n")
	h.untouched(ErrProfile, "reads no hosts.toml when it pulls with its transfer service", func() error { _, err := h.Apply(t.Context(), desired("v1.36.2")); return err })
	d := desired("v1.36.2")
	d.Hosts = nil // no registry is behind the gateway
	if _, err := h.Status(d); err != nil {
		t.Error(err)
	}
}

// The hosts.toml has to be where containerd reads it: otherwise, pods' tokens go to the registries behind
// the gateway.
func TestConfigurationOfContainerd(t *testing.T) {
	t.Parallel()
	const registry, unit = "[plugins.'io.containerd.cri.v1.images'.registry]\n", "etc/systemd/system/containerd.service"
	for name, test := range map[string]struct {
		change func(h *host)
		want   string // the directory, or an error
	}{
		"an imported file": {func(h *host) {
			h.put("etc/containerd/config.toml", "version = 3\nimports = ['site/*.toml']\n"+registry+"config_path = '/a'\n")
			h.put("etc/containerd/site/.b.toml", registry+"config_path = '/b'\n") // containerd's patterns match it
			h.put("etc/containerd/site/c.toml.bak", registry+"config_path = '/old'\n")
		}, "/b"},
		"a file that is not imported": {func(h *host) {
			h.put("etc/containerd/conf.d/a.toml", registry+"config_path = '/b'\n")
		}, "/etc/containerd/certs.d"},
		"the section of another version": {func(h *host) {
			h.put("etc/containerd/config.toml", "version = 2\n"+registry+"config_path = '/a'\n")
		}, "config_path is in none of /etc/containerd/config.toml, or not in the section"},
		"a file that the unit names": {func(h *host) {
			h.put(unit, "[Service]\nExecStart=/usr/bin/containerd --config /srv/containerd.toml\n")
			h.put("srv/containerd.toml", "version = 3\n"+registry+"config_path = '/b'\n")
		}, "/b"},
		"a file that the unit names, before other flags": {func(h *host) {
			h.put(unit, "[Service]\nExecStart=/usr/bin/containerd --config=/srv/containerd.toml --log-level=debug\n")
			h.put("srv/containerd.toml", "version = 3\n"+registry+"config_path = '/b'\n")
		}, "/b"},
		"a file that a variable of the unit names": {func(h *host) {
			h.put(unit, "[Service]\nEnvironment=OPTIONS=-c=/srv/containerd.toml\nExecStart=/usr/bin/containerd $OPTIONS\n")
		}, "config_path is in none of /srv/containerd.toml,"},
		"the last of several files, with one hyphen": {func(h *host) {
			h.put(unit, "[Service]\nExecStart=/usr/bin/containerd --config /etc/containerd/config.toml -config /srv/containerd.toml\n")
			h.put("srv/containerd.toml", "version = 3\n"+registry+"config_path = '/b'\n")
		}, "/b"},
		"a word without a hyphen": {func(h *host) {
			h.put(unit, "[Service]\nExecStart=/usr/bin/containerd config /srv/containerd.toml\n")
		}, "/etc/containerd/certs.d"},
		"a script that starts it": {func(h *host) {
			h.put(unit, "[Service]\nExecStart=/opt/start-containerd\n")
		}, `starts containerd by "/opt/start-containerd"`},
		"a program that cannot be read": {func(h *host) {
			h.put(unit, "[Service]\nExecStart=/etc/containerd\n")
		}, "not a regular file"},
		"a unit that names no file": {func(h *host) {
			h.put(unit, "[Service]\nExecStart=/usr/bin/containerd --log-level debug\n")
		}, "/etc/containerd/certs.d"},
		"a file that the unit names by a path that is relative": {func(h *host) {
			h.put(unit, "[Service]\nExecStart=/usr/bin/containerd --config containerd.toml\n")
		}, "--config of containerd.service is not an absolute path"},
		"a variable that cannot be read": {func(h *host) {
			h.put(unit, "[Service]\nEnvironmentFile=/etc/default/containerd\nExecStart=/usr/bin/containerd $OPTIONS\n")
			h.link("etc/default/containerd", "containerd")
		}, "too many symbolic links"},
		"a unit that cannot be read": {func(h *host) { testkit.Mkdir(h.t, filepath.Join(h.dir, unit)) }, "not a regular file"},
		"no TOML":                    {func(h *host) { h.put("etc/containerd/config.toml", "version") }, "the configuration of containerd: /etc/containerd/config.toml: containerd would not start with it"},
	} {
		h := newHost(t, "kubeadm")
		test.change(h)
		plan, err := h.Status(desired("v1.36.2"))
		switch {
		case err != nil && !strings.Contains(err.Error(), test.want), err == nil && plan.Changes[0].Path != test.want+"/ghcr.io/hosts.toml":
			t.Errorf("%s: %+v, %v", name, plan, err)
		}
	}
}
