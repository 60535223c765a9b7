package machinetest

import (
	"cmp"
	"path"
	"strings"

	"github.com/pullpass/pullpass/e2e/node"
	"github.com/pullpass/pullpass/e2e/upstream"
)

// platform is how one has its files, with what the installer is to find and to leave alone. In texts, @FLAGS@ are those of the kubelet
// that every machine of the tests needs.
type platform struct {
	name          string // as the installer calls it
	oldKubelet    bool
	oldContainerd bool
	gateOff       bool   // the old kubelet does not know tokenAttributes
	starts        string // how the files are when the machine starts: "as they were", "anew" (the platform's are), "reset" (/etc is); empty: not tried
	unit          string // that runs the kubelet
	drift         string // file of the kubelet's flags that another program rewrites

	files   map[string]string // by path
	enabled []string          // units of multi-user.target

	runtime     string // directory of containerd's socket and state; empty: /run/containerd
	etc         string // directory of containerd's configuration; empty: /etc/containerd
	data        string // of the kubelet; empty: /var/lib/kubelet
	client      string // the kubelet's certificate; with its key in it if key is empty; both empty: it has none
	key         string
	cloudConfig string // of the provider that is there before; empty: there is none
	cloudBin    string
}

const (
	cloudPlugin = "cloud-credential-provider"

	// The units of Debian's and others' packages of Kubernetes, without those that wait for a network.
	kubeletUnit = `[Unit]
Description=kubelet: The Kubernetes Node Agent
[Service]
ExecStart=/usr/bin/kubelet
Restart=always
StartLimitInterval=0
RestartSec=10
[Install]
WantedBy=multi-user.target
`
	kubeadmDropIn = `[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/var/lib/kubelet/kubeconfig"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
`
	rotated = "/var/lib/kubelet/pki/kubelet-client-current.pem"
)

func kubeadm() platform {
	return platform{
		name: "kubeadm", starts: "as they were", unit: "kubelet.service", client: rotated, drift: "/etc/default/kubelet",
		files: map[string]string{
			"/usr/lib/systemd/system/kubelet.service":                   kubeletUnit,
			"/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf": kubeadmDropIn,
			"/var/lib/kubelet/kubeadm-flags.env":                        "KUBELET_KUBEADM_ARGS=\"--hostname-override=@NAME@ --node-ip=@ADDRESS@\"\n",
		},
		enabled: []string{"kubelet.service"},
	}
}

func kind() platform {
	return platform{
		name: "kind", unit: "kubelet.service", client: rotated, drift: "/etc/default/kubelet",
		files: map[string]string{
			"/kind/version":                                         "v0.30.0\n",
			"/etc/systemd/system/kubelet.service":                   strings.Replace(kubeletUnit, "RestartSec=10", "RestartSec=1s\nCPUAccounting=true\nMemoryAccounting=true\nSlice=kubelet.slice\nKillMode=process", 1),
			"/etc/systemd/system/kubelet.service.d/10-kubeadm.conf": kubeadmDropIn,
			"/etc/systemd/system/kubelet.service.d/11-kind.conf":    "[Service]\nExecStartPre=/bin/sh -euc \"true\"\n",
			"/var/lib/kubelet/kubeadm-flags.env":                    "KUBELET_KUBEADM_ARGS=\"--hostname-override=@NAME@ --node-ip=@ADDRESS@ --node-labels= --provider-id=kind://docker/kind/@NAME@\"\n",
			"/etc/default/kubelet":                                  "KUBELET_EXTRA_ARGS=--runtime-cgroups=/system.slice/containerd.service\n",
		},
		enabled: []string{"kubelet.service"},
	}
}

// rancher is k3s or RKE2.
func rancher(name, unit string, cloud bool) platform {
	agent := "/var/lib/rancher/" + name + "/agent"
	p := platform{
		name: name, unit: unit, runtime: "/run/k3s/containerd", etc: agent + "/etc/containerd",
		client: agent + "/client-kubelet.crt", key: agent + "/client-kubelet.key", drift: "/etc/rancher/" + name + "/config.yaml.d/99-pullpass.yaml",
		files: map[string]string{
			"/etc/rancher/" + name + "/config.yaml": "server: https://10.96.0.1:6443\nkubelet-arg:\n- max-pods=20\n",
			"/etc/systemd/system/" + unit: `[Unit]
Description=` + name + `
[Service]
Type=notify
KillMode=process
Delegate=yes
LimitNOFILE=65536
TasksMax=infinity
TimeoutStartSec=0
Restart=always
RestartSec=5s
ExecStart=/usr/local/bin/` + name + ` ` + name + ` /run/k3s/containerd/containerd.sock @CONTAINERD@ /usr/bin/kubelet @WORDS@
[Install]
WantedBy=multi-user.target
`,
		},
		enabled: []string{unit},
	}
	if cloud {
		p.cloudConfig, p.cloudBin = "/var/lib/rancher/credentialprovider/config.yaml", "/var/lib/rancher/credentialprovider/bin"
	}
	return p
}

func microk8s() platform {
	return platform{
		name: "microk8s", unit: "snap.microk8s.daemon-kubelite.service", drift: "/var/snap/microk8s/8120/args/kubelet",
		runtime: "/var/snap/microk8s/common/run", etc: "/var/snap/microk8s/8120/args", data: "/var/snap/microk8s/common/var/lib/kubelet",
		client: "/var/snap/microk8s/8120/certs/kubelet.crt", key: "/var/snap/microk8s/8120/certs/kubelet.key",
		files: map[string]string{
			"/var/snap/microk8s/8120/args/kubelet": "--config=@CONFIG@\n--kubeconfig=${SNAP_COMMON}/var/lib/kubelet/kubeconfig\n" +
				"--root-dir=${SNAP_COMMON}/var/lib/kubelet\n# a comment\n--hostname-override=@NAME@\n--node-ip=@ADDRESS@\n--node-labels=\"microk8s.io/cluster=true\"\n",
			"/var/snap/microk8s/8120/args/certs.d/localhost:32000/hosts.toml": "server = \"http://localhost:32000\"\n",
			// As kubelite reads its file: comments and quotes go, variables are set.
			"/snap/microk8s/8120/run-kubelite-with-args": `#!/bin/bash
export SNAP_DATA=/var/snap/microk8s/current SNAP_COMMON=/var/snap/microk8s/common
flags=$(sed -e '/^ *#/d' -e "s/[\"']//g" -e "s|\${SNAP_DATA}|$SNAP_DATA|g" -e "s|\${SNAP_COMMON}|$SNAP_COMMON|g" "$SNAP_DATA/args/kubelet")
exec /usr/bin/kubelet $flags
`,
			"/etc/systemd/system/snap.microk8s.daemon-kubelite.service": `[Unit]
Description=Service for snap application microk8s.daemon-kubelite
[Service]
ExecStart=/bin/bash /snap/microk8s/8120/run-kubelite-with-args
Restart=always
TimeoutStopSec=30
KillMode=process
[Install]
WantedBy=multi-user.target
`,
		},
		enabled: []string{"snap.microk8s.daemon-kubelite.service"},
	}
}

func eks() platform {
	const bin = "/etc/eks/image-credential-provider"
	environment := "NODEADM_KUBELET_ARGS=@FLAGS@ --image-credential-provider-bin-dir=" + bin + " --image-credential-provider-config=" + bin + "/config.json --node-labels=a=b\n"
	return platform{
		name: "eks", starts: "anew", unit: "kubelet.service", cloudConfig: bin + "/config.json", cloudBin: bin, drift: "/etc/eks/kubelet/environment",
		files: map[string]string{
			"/etc/eks/kubelet/environment": environment,
			"/etc/systemd/system/kubelet.service": strings.NewReplacer("Restart=always", "Restart=on-failure\nRestartForceExitStatus=SIGPIPE\nKillMode=process\nCPUAccounting=true\nMemoryAccounting=true\nSlice=runtime.slice",
				"RestartSec=10", "RestartSec=5", "ExecStart=/usr/bin/kubelet", "EnvironmentFile=/etc/eks/kubelet/environment\nExecStart=/usr/bin/kubelet $NODEADM_KUBELET_ARGS").Replace(kubeletUnit),
			// nodeadm writes all anew, and then starts the kubelet.
			"/etc/systemd/system/nodeadm-run.service":  "[Service]\nType=oneshot\nExecStart=/bin/cp -r /opt/nodeadm/. /\nExecStart=/bin/systemctl start kubelet.service\n",
			"/opt/nodeadm/etc/eks/kubelet/environment": environment,
			"/opt/nodeadm" + bin + "/config.json":      cloudProvider(bin + "/config.json"),
		},
		enabled: []string{"nodeadm-run.service"},
	}
}

func aks() platform {
	const config, bin = "/var/lib/kubelet/credential-provider-config.yaml", "/var/lib/kubelet/credential-provider"
	return platform{
		name: "aks", unit: "kubelet.service", client: rotated, cloudConfig: config, cloudBin: bin, drift: "/etc/default/kubelet",
		files: map[string]string{
			"/etc/kubernetes/azure.json": `{"cloud": "AzurePublicCloud"}`,
			"/etc/default/kubelet": "KUBELET_FLAGS=@FLAGS@ --image-credential-provider-bin-dir=" + bin + " --image-credential-provider-config=" + config + " --max-pods=110  \n" +
				"KUBELET_REGISTER_SCHEDULABLE=true\nNETWORK_POLICY=\nKUBELET_IMAGE=\n",
			"/etc/systemd/system/kubelet.service": strings.NewReplacer("RestartSec=10", "RestartSec=2", "ExecStart=/usr/bin/kubelet",
				"EnvironmentFile=/etc/default/kubelet\nSuccessExitStatus=143\nKillMode=process\nExecStart=/usr/bin/kubelet $KUBELET_FLAGS").Replace(kubeletUnit),
		},
		enabled: []string{"kubelet.service"},
	}
}

func gke() platform {
	const config, bin = "/etc/srv/kubernetes/cri_auth_config.yaml", "/home/kubernetes/bin"
	return platform{
		name: "gke", starts: "reset", unit: "kubelet.service", client: rotated, cloudConfig: config, cloudBin: bin, drift: "/etc/default/kubelet",
		files: map[string]string{
			"/home/kubernetes/kube-env": "KUBERNETES_MASTER: \"false\"\n",
			"/etc/default/kubelet":      "KUBELET_OPTS=\"@FLAGS@ --image-credential-provider-config=" + config + " --image-credential-provider-bin-dir=" + bin + "\"\nKUBE_COVERAGE_FILE=\"/var/log/kubelet.cov\"\n",
			"/etc/systemd/system/kubelet.service": strings.NewReplacer("RestartSec=10", "RestartSec=10\nKillMode=process", "ExecStart=/usr/bin/kubelet",
				"EnvironmentFile=/etc/default/kubelet\nExecStart=/usr/bin/kubelet $KUBELET_OPTS").Replace(kubeletUnit),
		},
		enabled: []string{"kubelet.service"},
	}
}

// cloudProvider is what a platform has for its own registry, in the form that the name of the file says.
func cloudProvider(file string) string {
	if path.Ext(file) == ".json" {
		return `{"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": [{"name": "` + cloudPlugin + `", "matchImages": ["` + cloudName + `"],
  "defaultCacheDuration": "12h0m0s", "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "args": ["get-credentials"]}]}
`
	}
	return `# of the platform
kind: CredentialProviderConfig
apiVersion: kubelet.config.k8s.io/v1
providers:
  - name: ` + cloudPlugin + `
    apiVersion: credentialprovider.kubelet.k8s.io/v1
    matchImages:
    - "` + cloudName + `" # its registry
    args: [get-credentials]
    defaultCacheDuration: 1m
`
}

const cloudProgram = `#!/bin/sh
cat >/dev/null
echo '{"kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "cacheKeyType": "Registry", "cacheDuration": "0s",
  "auth": {"` + cloudName + `": {"username": "` + upstream.Username + `", "password": "` + upstream.Password + `"}}}'
`

// containerdConfig is that of the platform.
func (p platform) containerdConfig(address string) string {
	etc, runtime, certs := cmp.Or(p.etc, "/etc/containerd"), cmp.Or(p.runtime, "/run/containerd"), ""
	certs = etc + "/certs.d"
	switch p.name {
	case "microk8s":
		certs = "${SNAP_DATA}/args/certs.d" // of its template
	case "gke":
		certs = etc + "/hosts.d"
	}
	return strings.NewReplacer("/etc/containerd/certs.d", certs, "/etc/containerd/cni", etc+"/cni", "/run/containerd", runtime).
		Replace(node.ContainerdConfig(p.oldContainerd, "/var/lib", address, false))
}

func (p platform) certs() string {
	if p.name == "gke" {
		return "/etc/containerd/hosts.d"
	}
	return cmp.Or(p.etc, "/etc/containerd") + "/certs.d"
}

func (p platform) kubeletConfig(address string) string {
	text := strings.NewReplacer("healthzBindAddress: "+address+"\n", "", "/run/containerd", cmp.Or(p.runtime, "/run/containerd"), "/var/lib/kubelet", cmp.Or(p.data, "/var/lib/kubelet")).
		Replace(node.KubeletConfig(address, "/"))
	if p.oldKubelet && !p.gateOff {
		text += "featureGates: {KubeletServiceAccountTokenForCredentialProviders: true}\n"
	}
	return text
}
