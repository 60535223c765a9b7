package nodeinstall

func eks() profile {
	return profile{
		name: "eks", has: "/etc/eks/kubelet/environment", units: []string{"kubelet.service"},
		config: "/etc/eks/image-credential-provider/config.json", plugins: "/etc/eks/image-credential-provider",
		settings:   []string{"/etc/kubernetes/kubelet/config.json", "/etc/kubernetes/kubelet/config.json.d"},
		flags:      flagSource{form: formEnvironment, variable: "NODEADM_KUBELET_ARGS", files: []string{"/etc/eks/kubelet/environment"}},
		containerd: "/etc/containerd/config.toml", containerdUnit: "containerd.service", socket: "/run/containerd/containerd.sock", certs: "/etc/containerd/certs.d",
	}
}
