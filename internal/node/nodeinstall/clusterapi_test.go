package nodeinstall

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestClusterAPI(t *testing.T) {
	t.Parallel()
	checkGuide(t, "cluster-api", "below kubeadmConfigSpec of the KubeadmControlPlane. Its first machine\n# uses initConfiguration: there, write the nodeRegistration of joinConfiguration below initConfiguration, too.\n", func(t *testing.T, d map[string]any) string {
		if content := at(t, d, "spec", "template", "spec", "files", 1, "content"); content != testHosts {
			t.Errorf("hosts.toml: %q", content)
		}
		return at(t, d, "spec", "template", "spec", "files", 0, "content").(string)
	})
}

// A containerd that does not read hosts.toml would send the pods' tokens to the registries. The dumps are those of
// containerd 1.6.20 and 2.4.2.
func TestMachinesWithoutConfigPathDoNotJoin(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	testkit.Must(t, Guidance{Provider: testProvider, Plugin: "p", Hosts: map[string]string{"ghcr.io": testHosts}}.Write(&b, "cluster-api"))
	var document map[string]any
	testkit.Must(t, yaml.Unmarshal(b.Bytes(), &document))
	command := at(t, document, "spec", "template", "spec", "preKubeadmCommands", 0).(string)
	if strings.Contains(command, "{{") || strings.Contains(command, "{%") || strings.Contains(command, "{#") {
		t.Errorf("cloud-init would read it as a template: %s", command)
	}
	const old, images = `.grpc.v1.cri".registry]`, `.cri.v1.images'.registry]`
	for name, test := range map[string]struct{ dump, section, path, said string }{
		"old":                          {"1.6.20.toml", old, `"/etc/containerd/certs.d"`, ""},
		"new":                          {"2.4.2.toml", images, "'/etc/containerd/certs.d'", ""},
		"old, none":                    {"1.6.20.toml", old, `""`, "is ''"},
		"new, none":                    {"2.4.2.toml", images, "''", "is ''"},
		"old, another":                 {"1.6.20.toml", old, `"/etc/docker/certs.d"`, "is '/etc/docker/certs.d'"},
		"new, a list":                  {"2.4.2.toml", images, "'/etc/containerd/certs.d:/etc/docker/certs.d'", "is '/etc/containerd/certs.d:/etc/docker/certs.d'"},
		"new, of the transfer service": {"2.4.2.toml", ".transfer.v1.local']", "'/etc/containerd/certs.d'", "is ''"},
		"a slash behind it, old":       {"1.6.20.toml", old, `"/etc/containerd/certs.d/"`, ""},
		"a slash behind it, new":       {"2.4.2.toml", images, "'/etc/containerd/certs.d/'", ""},
		"new, the root":                {"2.4.2.toml", images, "'/'", "is ''"},
		"no containerd":                {said: "is ''"},
		"no restart":                   {"2.4.2.toml", images, "'/etc/containerd/certs.d'", "is 'not known, because containerd does not restart'"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			config, dump := filepath.Join(dir, "config"), ""
			testkit.Mkdir(t, config)
			if test.section != "" {
				dump = testkit.Read(t, filepath.Join("testdata/containerd", test.dump))
				before, after, found := strings.Cut(dump, test.section)
				rest, after, isSet := strings.Cut(after, "config_path = ")
				_, after, _ = strings.Cut(after, "\n")
				if !found || !isSet {
					t.Fatalf("no %s config_path in %s", test.section, test.dump)
				}
				dump = before + test.section + rest + "config_path = " + test.path + "\n" + after
			}
			testkit.Put(t, filepath.Join(dir, "dump"), dump)
			// The dump is of the files, so it proves nothing for a containerd that was started before.
			started, restart := filepath.Join(dir, "started"), "touch"
			if name == "no restart" {
				restart = "false"
			}
			script := "set -e\nsystemctl() { [ \"$*\" = 'restart containerd' ] && " + restart + " " + started + "; }\n" +
				"containerd() { [ \"$*\" = 'config dump' ] && [ -e " + started + " ] && cat " + filepath.Join(dir, "dump") + "; }\n" + strings.ReplaceAll(command, ownConfigDir, config) + "\necho kubeadm\n"
			var stdout, stderr bytes.Buffer
			sh := exec.CommandContext(t.Context(), "sh", "-c", script)
			sh.Stdout, sh.Stderr = &stdout, &stderr
			failure := sh.Run()
			_, err := os.Stat(config)
			if test.said == "" {
				testkit.Must(t, err)
				if failure != nil || stdout.String() != "kubeadm\n" || stderr.Len() > 0 {
					t.Errorf("%v, %q, %q", failure, &stdout, &stderr)
				}
				return
			}
			if failure == nil || stdout.Len() > 0 || !os.IsNotExist(err) || !strings.Contains(stderr.String(), "config_path of containerd "+test.said+", ") {
				t.Errorf("%v, %q, %q; configuration: %v, want %v", failure, &stdout, &stderr, err, fs.ErrNotExist)
			}
		})
	}
}

// Without files for containerd, its configuration does not matter.
func TestMachinesWithoutHosts(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	testkit.Must(t, Guidance{Provider: testProvider, Plugin: "p"}.Write(&b, "cluster-api"))
	if strings.Contains(b.String(), "config_path") {
		t.Errorf("%s", &b)
	}
}
