package node

import "fmt"

// Settings of containerd and the kubelet that only the machines of the tests need: no systemd, no CAP_SYS_RESOURCE, either
// version of cgroups, no network of pods, and no disk that images may fill.
const (
	sandboxImage = "e2e.local/pause:1"

	// containerd 2.
	containerdConfig = `version = 3
root = '%[1]s/containerd'
state = '/run/containerd'
disabled_plugins = ['io.containerd.internal.v1.opt', 'io.containerd.nri.v1.nri', 'io.containerd.snapshotter.v1.btrfs', 'io.containerd.snapshotter.v1.devmapper', 'io.containerd.snapshotter.v1.zfs', 'io.containerd.snapshotter.v1.blockfile', 'io.containerd.snapshotter.v1.erofs'%[3]s]
[grpc]
  address = '/run/containerd/containerd.sock'
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '` + sandboxImage + `'
  [plugins.'io.containerd.cri.v1.images'.registry]
    config_path = '/etc/containerd/certs.d'
[plugins.'io.containerd.transfer.v1.local']
  config_path = '/etc/containerd/certs.d'
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      Root = '/run/containerd/runc'
      SystemdCgroup = false
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['/usr/lib/cni']
    conf_dir = '/etc/containerd/cni'
[plugins.'io.containerd.shim.v1.manager']
  socket_dir = '/run/containerd/s'
[plugins.'io.containerd.grpc.v1.cri']
  stream_server_address = '%[2]s'
`

	// containerd 1.
	oldContainerdConfig = `version = 2
root = '%[1]s/containerd'
state = '/run/containerd'
disabled_plugins = ['io.containerd.internal.v1.opt', 'io.containerd.snapshotter.v1.aufs', 'io.containerd.snapshotter.v1.btrfs', 'io.containerd.snapshotter.v1.devmapper', 'io.containerd.snapshotter.v1.zfs']
[grpc]
  address = '/run/containerd/containerd.sock'
[plugins.'io.containerd.grpc.v1.cri']
  sandbox_image = '` + sandboxImage + `'
  restrict_oom_score_adj = true
  disable_apparmor = true
  stream_server_address = '%[2]s'
  [plugins.'io.containerd.grpc.v1.cri'.registry]
    config_path = '/etc/containerd/certs.d'
  [plugins.'io.containerd.grpc.v1.cri'.cni]
    bin_dir = '/usr/lib/cni'
    conf_dir = '/etc/containerd/cni'
  [plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc.options]
      Root = '/run/containerd/runc'
      SystemdCgroup = false
`

	// loopback alone makes containerd report a network; all pods have hostNetwork.
	noNetwork = `{"cniVersion": "1.0.0", "name": "e2e", "plugins": [{"type": "loopback"}]}`

	// A bridge of the node, by which pods and the machine reach each other.
	podNetwork = `{"cniVersion": "1.0.0", "name": "e2e", "plugins": [{"type": "bridge", "bridge": "%s", "isGateway": true,
  "ipam": {"type": "host-local", "dataDir": "/run/containerd/addresses", "ranges": [[{"subnet": "%s"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`

	kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: %[1]s
healthzBindAddress: %[1]s
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
staticPodPath: /var/lib/kubelet/manifests
fileCheckFrequency: 1s
syncFrequency: 2s
nodeStatusUpdateFrequency: 5s
cgroupDriver: cgroupfs
cgroupRoot: %[2]s
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: false}
  x509: {clientCAFile: /var/lib/kubelet/pki/ca.crt}
authorization: {mode: AlwaysAllow}
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
localStorageCapacityIsolation: false
resolvConf: ""
serializeImagePulls: false
maxParallelImagePulls: 8
registryPullQPS: 0
eventRecordQPS: 1000 # 0 is the default, 5, and the tests wait for events
eventBurst: 1000
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: "0%%", nodefs.available: "0%%", imagefs.available: "0%%"}
logging: {verbosity: 5}
`
)

func (n *Node) networkConfig() string {
	if n.config.PodNetwork == "" {
		return noNetwork
	}
	// The name of a network interface has 15 characters at most.
	return fmt.Sprintf(podNetwork, fmt.Sprintf("br%.13s", n.config.Name), n.config.PodNetwork)
}

func (n *Node) containerdConfig() string {
	return ContainerdConfig(n.config.OldContainerd, n.dir, n.config.Address, len(n.config.Traces) > 0)
}

// ContainerdConfig is a configuration of containerd 1 (old) or 2 that serves a kubelet at an address of its node, and keeps its
// state in a directory. All its other paths are below /run/containerd and /etc/containerd.
func ContainerdConfig(old bool, dir, address string, traces bool) string {
	if old {
		return fmt.Sprintf(oldContainerdConfig, dir, address)
	}
	disabled := ", 'io.containerd.tracing.processor.v1.otlp'"
	if traces {
		disabled = ""
	}
	return fmt.Sprintf(containerdConfig, dir, address, disabled)
}

// KubeletConfig is a configuration of the kubelet of a node with an address, whose pods are below a cgroup.
func KubeletConfig(address, cgroup string) string { return fmt.Sprintf(kubeletConfig, address, cgroup) }

// NoNetwork is a configuration of the network of pods that all have that of their node.
const NoNetwork = noNetwork

// SandboxImage is what pods need beside their own images.
const SandboxImage = sandboxImage
