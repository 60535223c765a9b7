package nodeinstall

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

const dropIn = "etc/systemd/system/kubelet.service.d/20-local.conf"

// A file of variables replaces the Environment= of the unit, so the kubelet would lose the flags there.
func TestUnitThatAssignsOurVariable(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		dropIn, flags string
		refused       bool
	}{
		"Environment":                   {"Environment=\"KUBELET_EXTRA_ARGS=--node-ip=192.0.2.5 --v=2\"\n", "", true},
		"among others, on lines":        {"Environment=A=b \\\n  'KUBELET_EXTRA_ARGS=--node-ip=192.0.2.5'\r\n", "", true},
		"empty":                         {"Environment=KUBELET_EXTRA_ARGS=\n", "", false},
		"taken back":                    {"Environment=KUBELET_EXTRA_ARGS=--v=2\nEnvironment=\n", "", false},
		"in a comment":                  {"#Environment=KUBELET_EXTRA_ARGS=--v=2\n", "", false},
		"replaced already":              {"Environment=KUBELET_EXTRA_ARGS=--v=2\n", "KUBELET_EXTRA_ARGS=--v=3\n", false},
		"replaced by nothing":           {"Environment=KUBELET_EXTRA_ARGS=--v=2\n", "KUBELET_EXTRA_ARGS=\"\"\n", false},
		"a file that is read later":     {"EnvironmentFile=/etc/kubelet.env\n", "KUBELET_EXTRA_ARGS=--v=3\n", true},
		"a file that is read before":    {"EnvironmentFile=\nEnvironmentFile=/etc/kubelet.env\nEnvironmentFile=/etc/default/kubelet\n", "", true},
		"and replaced already":          {"EnvironmentFile=\nEnvironmentFile=/etc/kubelet.env\nEnvironmentFile=/etc/default/kubelet\n", "KUBELET_EXTRA_ARGS=--v=3\n", false},
		"a file that is not there":      {"EnvironmentFile=-/etc/none\n", "", false},
		"provider flags that win":       {"ExecStart=\nExecStart=/usr/bin/kubelet $KUBELET_EXTRA_ARGS --image-credential-provider-config /c.yaml\n", "", true},
		"a variable of them that wins":  {"Environment=X=--image-credential-provider-bin-dir=/x\nExecStart=\nExecStart=/usr/bin/kubelet $KUBELET_EXTRA_ARGS ${X}\n", "", true},
		"a variable before others":      {"Environment=X=--image-credential-provider-bin-dir=/x\nEnvironment=Y=z\nExecStart=\nExecStart=/usr/bin/kubelet $KUBELET_EXTRA_ARGS ${X}\n", "", true},
		"a later file that is odd":      {"EnvironmentFile=/etc/odd-args.env\n", "", true},
		"a variable that is not passed": {"Environment=X=--image-credential-provider-bin-dir=/x\n", "", false},
		"a file's that wins":            {"EnvironmentFile=/etc/more.env\nExecStart=\nExecStart=/usr/bin/kubelet $KUBELET_EXTRA_ARGS $MORE\n", "", true},
		"a file's that is replaced":     {"EnvironmentFile=/etc/more.env\nEnvironmentFile=/etc/none.env\nExecStart=\nExecStart=/usr/bin/kubelet $KUBELET_EXTRA_ARGS $MORE\n", "", false},
		"a shell":                       {"ExecStart=\nExecStart=/bin/sh -c 'exec kubelet --image-credential-provider-config=/c.yaml $KUBELET_EXTRA_ARGS'\n", "", true},
		"a variable in a shell":         {"Environment=X=--image-credential-provider-config=/c.yaml\nExecStart=\nExecStart=/bin/sh -c 'exec kubelet $$X $KUBELET_EXTRA_ARGS'\n", "", true},
		"a shell without them":          {"ExecStart=\nExecStart=/bin/sh -c 'exec kubelet $KUBELET_EXTRA_ARGS'\n", "", false},
		"a script":                      {"ExecStart=\nExecStart=-/opt/start $KUBELET_EXTRA_ARGS\n", "", true},
		"a specifier that is not known": {"EnvironmentFile=-/etc/%H.env\n", "", true},
		"the file taken back":           {"EnvironmentFile=\n", "", true},
		"a relative name of a file":     {"EnvironmentFile=etc/kubelet.env\n", "KUBELET_EXTRA_ARGS=--v=3\n", false},
		"a file before with nothing":    {"EnvironmentFile=\nEnvironmentFile=/etc/empty.env\nEnvironmentFile=/etc/default/kubelet\n", "", false},
		"a pattern with hidden files":   {"EnvironmentFile=-/etc/kubelet.d/*\n", "KUBELET_EXTRA_ARGS=--v=3\n", false},
		"a pattern for hidden files":    {"EnvironmentFile=-/etc/kubelet.d/.*\n", "KUBELET_EXTRA_ARGS=--v=3\n", true},
		"a pattern below a file":        {"EnvironmentFile=-/etc/passw*/*\n", "", false},
		"an invalid pattern":            {"EnvironmentFile=-/etc/kubelet.en[\n", "KUBELET_EXTRA_ARGS=--v=3\n", false},
		"a drop-in that leads nowhere":  {"", "", false},
		"plugins of a shell":            {"ExecStart=\nExecStart=/bin/sh -c 'exec kubelet --image-credential-provider-bin-dir=/x $KUBELET_EXTRA_ARGS'\n", "", true},
		"an odd file of a shell":        {"EnvironmentFile=/etc/odd.env\nEnvironment=X=--v=2\nExecStart=\nExecStart=/bin/sh -c 'exec kubelet $ODD $X $KUBELET_EXTRA_ARGS'\n", "", true},
		"an odd file, and a later one":  {"EnvironmentFile=/etc/odd.env\nEnvironmentFile=/etc/none.env\nExecStart=\nExecStart=/bin/sh -c 'exec kubelet $ODD $MORE $KUBELET_EXTRA_ARGS'\n", "", true},
		"an odd file of others":         {"EnvironmentFile=/etc/other.env\nExecStart=\nExecStart=/usr/bin/kubelet $MORE $KUBELET_EXTRA_ARGS\n", "", false},
		"an odd file of a word":         {"EnvironmentFile=/etc/other.env\nExecStart=\nExecStart=/usr/bin/kubelet $OTHER $KUBELET_EXTRA_ARGS\n", "", true},
		"a quote that is not closed":    {"", "KUBELET_EXTRA_ARGS=--hostname-override=it's\n", true},
		"a program with such a text":    {"ExecStart=\nExecStart=/opt/program $KUBELET_EXTRA_ARGS\n", "", false},
		"a large program":               {"ExecStart=\nExecStart=/opt/kubelet $KUBELET_EXTRA_ARGS\n", "", false},
		"a directory as the program":    {"ExecStart=\nExecStart=/opt $KUBELET_EXTRA_ARGS\n", "", false},
		"a name without a directory":    {"ExecStart=\nExecStart=start $KUBELET_EXTRA_ARGS\n", "", true},
		"a program of a path":           {"ExecStart=\nExecStart=/usr/bin/env start $KUBELET_EXTRA_ARGS\n", "", true},
		"a script without #!":           {"ExecStart=\nExecStart=/bin/sh /opt/plain $KUBELET_EXTRA_ARGS\n", "", true},
		"a file that cannot be read":    {"EnvironmentFile=/etc/odd.env\nExecStart=\nExecStart=/usr/bin/kubelet $ODD $KUBELET_EXTRA_ARGS\n", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "kubeadm")
			h.put(dropIn, "[Service]\n"+test.dropIn)
			h.put("etc/kubelet.env", "KUBELET_EXTRA_ARGS=--v=1\n")
			h.put("etc/odd-args.env", "NO_PROXY=a,\\\nb\nKUBELET_EXTRA_ARGS=--v=1\n")
			h.put("etc/more.env", "MORE=\"--image-credential-provider-config=/c.yaml\"\n")
			h.put("etc/none.env", "MORE=\n")
			h.put("opt/start", "#!/bin/sh\nexec kubelet --image-credential-provider-config=/c.yaml \"$@\"\n")
			h.put("opt/plain", "exec kubelet \"$@\" --image-credential-provider-config=/c.yaml\n")
			h.put("opt/program", "\x7fELF\x00 --image-credential-provider-config=/c.yaml\n")
			h.put("etc/empty.env", "KUBELET_EXTRA_ARGS=\n")
			h.put("etc/kubelet.d/.hidden", "KUBELET_EXTRA_ARGS=--v=1\n")
			h.put("etc/other.env", "OTHER=\"a 'b' \\\nc\"\n")
			h.put("opt/kubelet", strings.Repeat("x", maxFileBytes+1))
			h.put("start", "#!/bin/sh\nexec kubelet --image-credential-provider-config=/c.yaml \"$@\"\n")
			if name == "a drop-in that leads nowhere" {
				h.link(strings.Replace(dropIn, "20-local", "30-none", 1), "/etc/none.conf")
			}
			h.put("etc/odd.env", "ODD=\"--image_credential_provider_config='/c.yaml' \\\n--v=2\"\n")
			if test.flags != "" {
				h.put("etc/default/kubelet", test.flags)
			}
			status := func() error { _, err := h.Status(desired("v1.36.2")); return err }
			if test.refused {
				want := ErrProfile
				if strings.Contains(test.dropIn+name, "odd") || strings.Contains(test.flags, "'") {
					want = errForm
				}
				h.untouched(want, "", status)
			} else if err := status(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A kubelet whose command leaves our variable out would start without the plugin, and pull anonymously.
func TestUnitWithoutOurVariable(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		start   string
		refused bool
	}{
		"left out":            {"/usr/bin/kubelet --v=2 $KUBELET_KUBEADM_ARGS", true},
		"provider flags":      {"/usr/bin/kubelet --image-credential-provider-config=/c.yaml --image-credential-provider-bin-dir=/x", true},
		"a dollar":            {"/usr/bin/kubelet $$KUBELET_EXTRA_ARGS", true},
		"within a word":       {"/usr/bin/kubelet --v=2$KUBELET_EXTRA_ARGS", true},
		"variables are text":  {"-:/usr/bin/kubelet $KUBELET_EXTRA_ARGS", true},
		"another name":        {"@/usr/bin/kubelet hyperkube", true},
		"another name and it": {"@/usr/bin/kubelet hyperkube $KUBELET_EXTRA_ARGS", false},
		"other prefixes":      {"!!/usr/bin/kubelet $KUBELET_EXTRA_ARGS", false},
		"braces":              {"/usr/bin/kubelet ${KUBELET_EXTRA_ARGS}", true}, // they make one word of all flags
		"a script":            {"/opt/start", false},                            // it can read the variable itself
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "kubeadm")
			h.put(dropIn, "[Service]\nExecStart=\nExecStart="+test.start+"\n")
			status := func() error { _, err := h.Status(desired("v1.36.2")); return err }
			if test.refused {
				h.untouched(ErrProfile, "kubelet.service does not have $KUBELET_EXTRA_ARGS", status)
			} else if err := status(); err != nil {
				t.Error(err)
			}
		})
	}
}

// The file of GKE's flags is read by the unit, or by a script that starts the kubelet.
func TestUnitWithoutTheFileOfFlags(t *testing.T) {
	t.Parallel()
	for start, test := range map[string]struct {
		more    string
		refused bool
	}{
		"/home/kubernetes/bin/kubelet $KUBELET_OPTS":  {"", true},
		"-/home/kubernetes/bin/kubelet $KUBELET_OPTS": {"EnvironmentFile=-/etc/default/kubelet\n", false},
		"/home/kubernetes/bin/start":                  {"", false},
		"/opt/kubelet $KUBELET_OPTS":                  {"EnvironmentFile=/etc/linked\n", false},
	} {
		h := newHost(t, "gke")
		h.link("etc/linked", "default/kubelet")
		h.put("etc/systemd/system/kubelet.service", "[Service]\nExecStart="+start+"\n"+test.more)
		if _, err := h.Status(desired("v1.36.2")); (err != nil) != test.refused || test.refused && !strings.Contains(err.Error(), "is not an EnvironmentFile of kubelet.service") {
			t.Errorf("%s: %v", start, err)
		}
	}
}

// A program for images that reads no hosts.toml would send tokens to the registry itself.
func TestImagesOfAnotherProgram(t *testing.T) {
	t.Parallel()
	const soci = "unix:///run/soci-snapshotter-grpc/soci-snapshotter-grpc.sock"
	for name, test := range map[string]struct{ profile, file, content, want string }{
		"a setting":            {"kubeadm", "var/lib/kubelet/config.yaml", "imageServiceEndpoint: " + soci + "\n", "/var/lib/kubelet/config.yaml is \"unix:///run/soci"},
		"another settings":     {"kubeadm", "etc/default/kubelet", "KUBELET_EXTRA_ARGS=--config=/opt/kubelet.yaml\n", "imageServiceEndpoint in "},
		"a settings dir":       {"kubeadm", "etc/default/kubelet", "KUBELET_EXTRA_ARGS=--config-dir=/opt/kubelet\n", "imageServiceEndpoint in "},
		"relative settings":    {"kubeadm", "etc/default/kubelet", "KUBELET_EXTRA_ARGS=--config=kubelet.yaml\n", "--config of the kubelet is not an absolute path"},
		"a settings dir, odd":  {"kubeadm", "etc/default/kubelet", "KUBELET_EXTRA_ARGS=--config-dir=/opt/kubelet.yaml\n", "kubelet.yaml"},
		"no settings there":    {"kubeadm", "etc/default/kubelet", "KUBELET_EXTRA_ARGS=--config=/opt/none.yaml\n", ""},
		"settings far below":   {"kubeadm", "etc/default/kubelet", "KUBELET_EXTRA_ARGS=--config-dir=/opt/deep\n", "imageServiceEndpoint in "},
		"several documents":    {"kubeadm", "var/lib/kubelet/config.yaml", "imageServiceEndpoint: " + soci + "\n---\nmaxPods: 20\n", "more than one YAML document"},
		"an array of a shell":  {"kubeadm", dropIn, "[Service]\nExecStart=\nExecStart=/opt/array\n", "--image-service-endpoint of the kubelet"},
		"settings of a shell":  {"kubeadm", dropIn, "[Service]\nExecStart=\nExecStart=/bin/sh /opt/settings\n", "imageServiceEndpoint in "},
		"a shell's containerd": {"kubeadm", dropIn, "[Service]\nExecStart=\nExecStart=/bin/sh -c 'exec kubelet --config=\"$X\" --container-runtime-endpoint=unix:///run/containerd/containerd.sock'\n", ""},
		"another containerd":   {"kubeadm", "etc/default/kubelet", "KUBELET_EXTRA_ARGS=--container-runtime-endpoint=unix:///run/soci/containerd.sock\n", "--container-runtime-endpoint of the kubelet"},
		"a script":             {"kubeadm", dropIn, "[Service]\nExecStart=\nExecStart=/opt/start\n", "--image-service-endpoint of the kubelet"},
		"a shell's variable":   {"kubeadm", dropIn, "[Service]\nEnvironment=SOCI=--image-service-endpoint=" + soci + "\nExecStart=\nExecStart=/bin/sh -c 'exec kubelet $$SOCI'\n", "--image-service-endpoint of the kubelet"},
		"settings of k3s":      {"k3s", "etc/rancher/k3s/config.yaml", "kubelet-arg: [config=/opt/kubelet.yaml]\n", "imageServiceEndpoint in "},
		"a k3s setting":        {"k3s", "etc/rancher/k3s/config.yaml", "image-service-endpoint: " + soci + "\n", "image-service-endpoint in "},
		"a k3s flag":           {"k3s", "etc/systemd/system/k3s-agent.service", "[Service]\nExecStart=/usr/local/bin/k3s agent --image-service-endpoint=" + soci + "\n", "image-service-endpoint in ExecStart"},
		"k3s without a path":   {"k3s", "etc/systemd/system/k3s-agent.service", "[Service]\nExecStart=k3s agent\n", `starts k3s by "k3s"`},
		"settings of a snap":   {"microk8s", "var/snap/microk8s/current/args/kubelet", "--config=${SNAP_DATA}/args/soci.yaml\n", "imageServiceEndpoint in "},
		"a snap's containerd":  {"microk8s", "var/snap/microk8s/current/args/containerd", "--config ${SNAP_COMMON}/other.toml\n", "config_path is in none of /var/snap/microk8s/common/other.toml"},
		"a snap's own":         {"microk8s", "var/snap/microk8s/current/args/containerd", "--config ${SNAP_DATA}/args/containerd.toml\n--root ${SNAP_COMMON}/x\n", ""},
		"a setting of EKS":     {"eks", "etc/kubernetes/kubelet/config.json.d/40.conf", `{"imageServiceEndpoint": "` + soci + `"}`, "imageServiceEndpoint in "},
		"the runtime":          {"kubeadm", "var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: unix:///run/crio/crio.sock\n", "containerRuntimeEndpoint in "},
		"containerd":           {"kubeadm", "var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\nimageServiceEndpoint: \"\"\n", ""},
		"a flag in the file":   {"kubeadm", "etc/default/kubelet", "KUBELET_EXTRA_ARGS=\"--image-service-endpoint " + soci + "\"\n", "--image-service-endpoint of the kubelet"},
		"a flag of the unit":   {"kubeadm", dropIn, "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet --image_service_endpoint=" + soci + " $KUBELET_EXTRA_ARGS\n", "--image-service-endpoint of the kubelet"},
		"a flag in a shell":    {"kubeadm", dropIn, "[Service]\nExecStart=\nExecStart=/bin/sh -c 'exec kubelet --container-runtime-endpoint=/run/crio/crio.sock $KUBELET_EXTRA_ARGS'\n", "--container-runtime-endpoint of the kubelet"},
		"a flag of MicroK8s":   {"microk8s", "var/snap/microk8s/current/args/kubelet", "--image-service-endpoint=" + soci + "\n", "--image-service-endpoint of the kubelet"},
		"its own containerd":   {"microk8s", "var/snap/microk8s/current/args/kubelet", "--containerd=${SNAP_COMMON}/run/containerd.sock\n--container-runtime-endpoint=${SNAP_COMMON}/run/containerd.sock\n", ""},
		"without a directory":  {"kubeadm", dropIn, "[Service]\nEnvironmentFile=/etc/odd\nExecStart=\nExecStart=/usr/bin/kubelet $ODD $KUBELET_EXTRA_ARGS\n", "too many symbolic links"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, test.profile)
			h.put(test.file, test.content)
			h.link("etc/odd", "odd")
			for _, name := range []string{"opt/kubelet.yaml", "opt/kubelet/40.conf", "var/snap/microk8s/current/args/soci.yaml"} {
				h.put(name, "imageServiceEndpoint: "+soci+"\n")
			}
			h.put("opt/deep/a/40.conf", "imageServiceEndpoint: "+soci+"\n")
			h.put("opt/array", "ARGS+=(--image-service-endpoint="+soci+")\nexec kubelet \"${ARGS[@]}\"\n")
			h.put("opt/my_kubelet.yaml", "imageServiceEndpoint: "+soci+"\n")
			h.put("opt/settings", "A=--config=/opt/my_kubelet.yaml\nexec kubelet $A\n")
			h.put("opt/kubelet/README", "imageServiceEndpoint: \"\"\n")
			h.put("opt/start", "#!/bin/sh\nexec kubelet \\\n  --image-service-endpoint \""+soci+"\" \"$@\"\n")
			want := desired("v1.36.2")
			if _, err := h.Status(want); (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if want.Hosts = nil; name == "a setting" { // the gateway is not in between
				if _, err := h.Status(want); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// Others may add the assignment after the installation.
func TestUnitThatAssignsOurVariableLater(t *testing.T) {
	onHost(t, "kubeadm", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		h.put(dropIn, "[Service]\nEnvironment=KUBELET_EXTRA_ARGS=--node-ip=192.0.2.5\n")
		if _, err := h.Status(desired("v1.36.2")); err == nil || !strings.Contains(err.Error(), "20-local.conf assigns KUBELET_EXTRA_ARGS") {
			t.Error(err)
		}
	})
}

// The providers of flags in the unit stay.
func TestProviderFlagsOfTheUnit(t *testing.T) {
	for name, unit := range map[string]string{
		"ExecStart":                "ExecStart=\nExecStart=/usr/bin/kubelet --image-credential-provider-config=/opt/x/c.yaml --image_credential_provider_bin_dir \"/opt/x\" $KUBELET_EXTRA_ARGS\n",
		"Environment":              "Environment=\"KUBELET_CONFIG_ARGS=--image-credential-provider-config=/opt/x/c.yaml --image-credential-provider-bin-dir=/opt/x\"\n",
		"EnvironmentFile":          "EnvironmentFile=-/opt/x/env\nExecStart=\nExecStart=/usr/bin/kubelet $KUBELET_KUBEADM_ARGS $X_ARGS $KUBELET_EXTRA_ARGS\n",
		"specifiers":               "EnvironmentFile=-/opt/x/%p-%n\nExecStart=\nExecStart=/usr/bin/kubelet $X_ARGS $KUBELET_EXTRA_ARGS\n",
		"a pattern":                "EnvironmentFile=-/o*//x/en[v]\nExecStart=\nExecStart=/usr/bin/kubelet $X_ARGS $KUBELET_EXTRA_ARGS\n",
		"a comment within":         "ExecStart=\nExecStart=/usr/bin/kubelet \\\n# old\n --image-credential-provider-config=/opt/x/c.yaml --image-credential-provider-bin-dir=/opt/x $KUBELET_EXTRA_ARGS\n",
		"a comment with \\ before": "ExecStart=\n# old \\\nExecStart=/usr/bin/kubelet --image-credential-provider-config=/opt/x/c.yaml --image-credential-provider-bin-dir=/opt/x $KUBELET_EXTRA_ARGS\n",
		"a quote that is escaped": `Environment="A=\"" "X_ARGS=--image-credential-provider-config=/opt/x/c.yaml --image-credential-provider-bin-dir=/opt/x"` +
			"\nExecStart=\nExecStart=/usr/bin/kubelet $X_ARGS $KUBELET_EXTRA_ARGS\n",
		"of two, the last": "Environment=X_ARGS=--image-credential-provider-config=/none --image-credential-provider-bin-dir=/none\nEnvironmentFile=/opt/x/env\n" +
			"ExecStart=\nExecStart=/usr/bin/kubelet --image-credential-provider-config /none ${X_ARGS} $KUBELET_EXTRA_ARGS\n",
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, "kubeadm", func(t *testing.T, h *host) {
				h.put(dropIn, "[Service]\n"+unit)
				h.put("opt/x/kubelet-kubelet.service", "X_ARGS='--image-credential-provider-config=/opt/x/c.yaml --image-credential-provider-bin-dir=/opt/x'\n")
				h.put("opt/x/env", "A=b \\\\ c\nX_ARGS='--image-credential-provider-config=/opt/x/c.yaml --image-credential-provider-bin-dir=/opt/x'\n")
				h.keepsOthers(t)
			})
		})
	}
}

func TestUnitLines(t *testing.T) {
	t.Parallel()
	h := newHost(t, "k3s")
	h.put("usr/lib/systemd/system/k3s-agent.service", "ExecStart=of the package\n")
	h.put("lib/systemd/system/k3s-1.36.service", "[Service]\nExecStart=a\\\n;ExecStart=c\\\nb\n# d \\\nExecStart=e\\\\\nExecStart=f \\\n")
	h.link("etc/systemd/system/k3s-agent.service", "/lib/systemd/system/k3s-1.36.service")
	h.put("usr/lib/systemd/system/k3s-agent.service.d/10.conf", "ExecStart=hidden\n")
	h.put("usr/lib/systemd/system/k3s-agent.service.d/20-masked.conf", "ExecStart=masked\n")
	h.put("usr/lib/systemd/system/k3s-agent.service.d/30.conf", " ExecStart = g \n")
	h.put("etc/systemd/system/k3s-agent.service.d/10.conf", "ExecStart=\n")
	h.put("etc/systemd/system/k3s-agent.service.d/10.conf.bak", "ExecStart=a copy\n")
	h.link("etc/systemd/system/k3s-agent.service.d/20-masked.conf", "/dev/null")
	h.put("etc/systemd/system.control/service.d/30.conf", "ExecStart=hidden\n")
	h.put("etc/systemd/system/service.d/40.conf", "ExecStart=of all services\n")
	h.put("etc/systemd/system/k3s-.service.d/50.conf", "ExecStart=of its prefix\n")
	h.put("run/systemd/generator/k3s-1.36.service.d/60.conf", "ExecStart=of its other name\n")
	h.put("etc/systemd/system/k3s-agent.service.d/70.conf", "ExecStart=hidden by the other name\n")
	h.put("usr/lib/systemd/system/k3s-.service.d/70.conf", "ExecStart=of its prefix, too\n")
	h.put("usr/lib/systemd/system/k3s-1.36.service.d/80.conf", "ExecStart=hidden by a directory before\n")
	h.put("etc/systemd/system/k3s-.service.d/80.conf", "ExecStart=of its prefix again\n")
	h.put("etc/systemd/system/k3.service.d/90.conf", "ExecStart=of another unit\n")
	h.put("dev/null", "ExecStart=of what is masked\n")
	lines, err := unitLines(h.tree, "k3s-agent.service")
	var values []string
	for _, line := range lines {
		values = append(values, line.value)
	}
	if want := []string{"a b", `e\\`, "f", "", "g", "of all services", "of its prefix", "of its other name", "of its prefix, too", "of its prefix again"}; err != nil || !slices.Equal(values, want) {
		t.Errorf("%q, %v, want %q", values, err, want)
	}
}

func TestUnitWords(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		``: ``, ` a  b `: `a|b`, `"a b" c`: `a b|c`, `A="b c"d 'e "f'`: `A=b cd|e "f`, `""`: ``, `"a`: `a`, `"a\"b" 'c\'d' \\ \x`: `a"b|c'd|\|\x`, `a\`: `a\`,
	} {
		if got := strings.Join(unitWords(value), "|"); got != want {
			t.Errorf("%q is %q, want %q", value, got, want)
		}
	}
}

// The installation scripts of k3s and RKE2 write flags into the unit.
func TestProviderFlagsOfRancher(t *testing.T) {
	const (
		unit   = "etc/systemd/system/k3s-agent.service"
		start  = "[Service]\nExecStart=/usr/local/bin/k3s \\\n    agent \\\n"
		file   = "etc/rancher/k3s/config.yaml.d/50.yaml"
		config = "image-credential-provider-config: /opt/x/c.yaml\nimage-credential-provider-bin-dir: /opt/x\n"
		args   = "kubelet-arg: [image-credential-provider-config=/opt/x/c.yaml, image-credential-provider-bin-dir=/opt/x]\n"
	)
	for name, files := range map[string]map[string]string{
		"of the command":         {unit: start + "    '--image-credential-provider-config' '/opt/x/c.yaml' \\\n    '--image-credential-provider-bin-dir=/opt/x'\n"},
		"with one hyphen":        {unit: start + "    -image-credential-provider-config=/opt/x/c.yaml -image-credential-provider-bin-dir /opt/x\n"},
		"in a file":              {file: config},
		"in a file of k3s only":  {"etc/rancher/k3s/config.yaml.d/50.YML": config},
		"before those of a file": {unit: start + " --image-credential-provider-config=/none --config /etc/rancher/k3s/config.yaml\n", file: args},
		"replaced by a later kubelet-arg": {
			"etc/rancher/k3s/config.yaml.d/10.yaml": "kubelet-arg: [image-credential-provider-config=/none]\n", file: "kubelet-arg: [v=2]\n" + config,
		},
		"with +, of an anchor":          {file: "a: &a /opt/x/c.yaml\nimage-credential-provider-config+: *a\nimage-credential-provider-bin-dir: /opt/x\n"},
		"a list of an anchor":           {file: "a: &a [image-credential-provider-config=/opt/x/c.yaml, image-credential-provider-bin-dir=/opt/x]\nkubelet-arg: *a\n"},
		"with hyphens":                  {file: "kubelet-arg: [--image-credential-provider-config=/opt/x/c.yaml, --image-credential-provider-bin-dir=/opt/x]\n"},
		"beside a file of another kind": {file: config, "etc/rancher/k3s/config.yaml.d/60.txt": "image-credential-provider-config: /none\n"},
		"beside an empty file":          {file: config, "etc/rancher/k3s/config.yaml": ""},
		"beside others with _":          {file: args, "etc/rancher/k3s/config.yaml": "kubelet-arg: [max_pods=200]\n"},
		"before a later kubelet-arg+":   {file: args, "etc/rancher/k3s/config.yaml.d/99-z.yaml": "kubelet-arg+: [v=2]\n"},
		"beside the usual directory":    {file: args + "data-dir: /var/lib/rancher/k3s/\ndocker: false\ncontainer-runtime-endpoint: \"\"\n"},
		"words without hyphens":         {file: args, unit: start + " docker d /var/lib\n"},
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, "k3s", func(t *testing.T, h *host) {
				for name, content := range files {
					h.put(name, content)
				}
				h.keepsOthers(t)
			})
		})
	}
	for name, test := range map[string]struct{ file, content, want string }{
		"kubelet-arg of the command": {unit, start + " --kubelet-arg=image-credential-provider-config=/c.yaml\n", "--kubelet-arg, where it counts more"},
		"kubelet-arg, and more":      {unit, start + " --kubelet-arg=image-credential-provider-config=/c.yaml --debug\n", "--kubelet-arg, where it counts more"},
		"kubelet-arg apart":          {unit, start + " '--kubelet-arg' 'image_credential_provider_bin_dir=/x'\n", "--kubelet-arg, where it counts more"},
		"kubelet-arg in a shell":     {unit, "[Service]\nExecStart=/bin/sh -c 'k3s agent --kubelet-arg=image-credential-provider-config=/c.yaml'\n", `starts k3s by "/bin/sh"`},
		"a script that starts it":    {unit, "[Service]\nExecStart=-/opt/start\n", `starts k3s by "/opt/start"`},
		"a script of its name":       {unit, "[Service]\nExecStart=/opt/k3s agent\n", `starts k3s by "/opt/k3s"`},
		"another program":            {unit, "[Service]\nExecStart=/usr/bin/env k3s agent\n", `starts k3s by "/usr/bin/env"`},
		"with underscores":           {"etc/rancher/k3s/config.yaml", "kubelet-arg: [image_credential_provider_config=/c.yaml]\n", "write it with hyphens"},
		"another config":             {unit, start + " -c /etc/k3s.yaml\n", "reads "},
		"another config by variable": {unit, start + "\nEnvironment=K3S_CONFIG_FILE=/etc/k3s.yaml\n", "reads "},
		"another config at once":     {unit, start + " --config=/etc/k3s.yaml\n", "reads "},
		"a later kubelet-arg":        {"etc/rancher/k3s/config.yaml.d/99-z.yml", "kubelet-arg: v=2\n", "write kubelet-arg+"},
		"a flag in a later one":      {"etc/rancher/k3s/config.yaml.d/99-z.yml", "kubelet-arg+: [image-credential-provider-config=/x]\n", "move it to an earlier file"},
		"a flag that adds":           {"etc/rancher/k3s/config.yaml", "kubelet-arg: [image-credential-provider-config+=/x]\n", "adds to other values"},
		"a flag that removes":        {"etc/rancher/k3s/config.yaml", "kubelet-arg: [image-credential-provider-bin-dir-=/x]\n", "adds to other values"},
		"a merge key":                {"etc/rancher/k3s/config.yaml", "a: &a {kubelet-arg: [v=2]}\n<<: *a\n", "merge key"},
		"a setting twice":            {"etc/rancher/k3s/config.yaml", "kubelet-arg: [v=2]\nkubelet-arg: [v=3]\n", `has "kubelet-arg" twice`},
		"another directory":          {"etc/rancher/k3s/config.yaml", "data-dir: /data/k3s\n", "make /var/lib/rancher/k3s a link"},
		"another directory, in +":    {"etc/rancher/k3s/config.yaml.d/99-z.yaml", "d+: /data/k3s\n", "make /var/lib/rancher/k3s a link"},
		"another directory's flag":   {unit, start + " --data-dir /data/k3s\n", "data-dir in ExecStart of k3s-agent.service"},
		"its short flag":             {unit, start + " -d=/data/k3s\n", "data-dir in ExecStart of k3s-agent.service"},
		"its variable":               {unit, start + "\nEnvironment=K3S_DATA_DIR=/data/k3s\n", "data-dir in the environment of k3s-agent.service"},
		"another runtime":            {"etc/rancher/k3s/config.yaml", "container-runtime-endpoint: unix:///run/containerd/containerd.sock\n", "another container runtime"},
		"another runtime's flag":     {unit, start + " --container-runtime-endpoint /run/c.sock\n", "another container runtime"},
		"Docker":                     {"etc/rancher/k3s/config.yaml", "docker: true\n", "another container runtime"},
		"a directory in a list":      {"etc/rancher/k3s/config.yaml", "data-dir: [/data/k3s]\n", "make /var/lib/rancher/k3s a link"},
		"a runtime for the kubelet":  {"etc/rancher/k3s/config.yaml", "kubelet-arg: [container-runtime-endpoint=unix:///run/c.sock]\n", "another container runtime"},
		"images of another program":  {"etc/rancher/k3s/config.yaml", "kubelet-arg: [image-service-endpoint=unix:///run/soci.sock]\n", "another container runtime"},
		"its flag for the kubelet":   {unit, start + " --kubelet-arg=--container_runtime_endpoint=/run/c.sock\n", "another container runtime"},
		"Docker's flag":              {unit, start + " --docker --debug\n", "docker in ExecStart of k3s-agent.service"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "k3s")
			h.put("opt/start", "#!/bin/sh\nexec k3s agent --data-dir=/data/k3s\n")
			h.link("opt/k3s", "start")
			h.put(test.file, test.content)
			h.untouched(ErrProfile, test.want, func() error { _, err := h.Status(desired("v1.36.2")); return err })
		})
	}
}

// A file that cannot be read is an error if it can have flags of the kubelet.
func TestFlagsOfRancherThatCannotBeRead(t *testing.T) {
	t.Parallel()
	const start = "[Service]\nEnvironmentFile=/etc/odd.env\n"
	for name, test := range map[string]struct {
		file, content string
		want          error
		text          string
	}{
		"no YAML":               {"etc/rancher/k3s/config.yaml", "{", nil, "is not YAML"},
		"no mapping":            {"etc/rancher/k3s/config.yaml", "[x]", nil, "is not a YAML mapping"},
		"a setting behind one":  {"etc/systemd/system/k3s-agent.service", "[Service]\nEnvironmentFile=/etc/data.env\nExecStart=/usr/local/bin/k3s agent\n", errForm, "data.env"},
		"a word of the command": {"etc/systemd/system/k3s-agent.service", start + "EnvironmentFile=/etc/place.env\nExecStart=/usr/local/bin/k3s agent $ODD\n", errForm, "odd.env"},
	} {
		h := newHost(t, "k3s")
		h.put("etc/odd.env", "ODD=\"--image_credential_provider_config='/c.yaml' \\\n--v=2\"\n")
		h.put("etc/data.env", "NO_PROXY=a,\\\nb\nK3S_DATA_DIR=/data/k3s\n")
		h.put("etc/place.env", "K3S_CONFIG_FILE=/etc/rancher/k3s/config.yaml\n")
		h.put(test.file, test.content)
		before := h.writes()
		if _, err := h.Status(desired("v1.36.2")); err == nil || !strings.Contains(err.Error(), test.text) || test.want != nil && !errors.Is(err, test.want) {
			t.Errorf("%s: error %v", name, err)
		}
		h.expect(name, h.writes(), before)
	}
}

// After the installation, the flags of the unit are looked at as before it.
func TestUnitThatChangesAfterTheInstallation(t *testing.T) {
	const environment = "[Service]\nEnvironment=KUBELET_EXTRA_ARGS=--v=2\n"
	for name, test := range map[string]struct {
		flags, before, after string
		refused              bool
	}{
		"flags of others":      {"KUBELET_EXTRA_ARGS=--v=3\n", environment, environment, false},
		"nothing of others":    {"KUBELET_EXTRA_ARGS=\"\"\n", environment, environment, false},
		"ours alone":           {"", "[Service]\n", environment, true},
		"a shell without them": {"", "[Service]\n", "[Service]\nExecStart=\nExecStart=/bin/sh -c 'exec kubelet $KUBELET_EXTRA_ARGS'\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, "kubeadm", func(t *testing.T, h *host) {
				h.put(dropIn, test.before)
				if test.flags != "" {
					h.put("etc/default/kubelet", test.flags)
				}
				h.apply(desired("v1.36.2"))
				h.put(dropIn, test.after)
				if plan, err := h.Status(desired("v1.36.2")); errors.Is(err, ErrProfile) != test.refused || err == nil && !plan.isDone() {
					t.Errorf("%+v, %v", plan, err)
				}
			})
		})
	}
}

// MicroK8s starts the kubelet with the lines of its file, whatever its unit has. A line can end with a backslash.
func TestUnitOfMicroK8s(t *testing.T) {
	onHost(t, "microk8s", func(t *testing.T, h *host) {
		h.put("etc/systemd/system/snap.microk8s.daemon-kubelite.service", "[Service]\nExecStart=/bin/sh -c 'x --image-credential-provider-config=/c.yaml'\n")
		h.put("var/snap/microk8s/8120/args/kubelet", "--v=2 \\\n")
		if plan := h.apply(desired("v1.36.2")); !plan.Restart {
			t.Errorf("%+v", plan)
		}
	})
}

// The drop-ins of all services count for a unit that is masked, too.
func TestLinesOfAMaskedUnit(t *testing.T) {
	t.Parallel()
	h := newHost(t, "k3s")
	testkit.Remove(t, filepath.Join(h.dir, "etc/systemd/system"))
	h.link("etc/systemd/system/k3s.service", "/dev/null")
	h.put("dev/null", "")
	h.put("etc/systemd/system/service.d/40.conf", "ExecStart=of all services\n")
	if lines, err := unitLines(h.tree, "k3s.service"); err != nil || len(lines) != 1 || lines[0].value != "of all services" {
		t.Errorf("%v, %v", lines, err)
	}
}

// A directory that cannot be read hides files that count.
func TestPatternThatCannotBeRead(t *testing.T) {
	t.Parallel()
	tree, _ := bare(t)
	tree.Failing = func(string) error { return unix.EIO }
	if files, err := environmentFiles(tree, "kubelet.service", "/etc/*.env"); !errors.Is(err, unix.EIO) {
		t.Errorf("%q, %v", files, err)
	}
}

// keepsOthers installs beside a provider of others, which the kubelet has below /opt/x.
func (h *host) keepsOthers(t *testing.T) {
	t.Helper()
	h.put("opt/x/c.yaml", "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders: []\n")
	h.apply(desired("v1.36.2"))
	files := h.files()
	if link := files["/etc/pullpass/credential-providers/platform.yaml"]; !strings.HasSuffix(link, " /opt/x/c.yaml") {
		t.Errorf("the provider of others is %q", link)
	}
	if _, is := files["/opt/x/pullpass-credential-provider"]; !is {
		t.Error("the plugin is not beside those of others")
	}
}
