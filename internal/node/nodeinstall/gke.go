package nodeinstall

func gke() profile {
	return profile{
		name: "gke", has: "/home/kubernetes/kube-env", units: []string{"kubelet.service"},
		config: "/etc/srv/kubernetes/cri_auth_config.yaml", plugins: "/home/kubernetes/bin",
		settings:   []string{"/home/kubernetes/kubelet-config.yaml"},
		client:     []string{rotatedClient},
		flags:      flagSource{form: formEnvironment, variable: "KUBELET_OPTS", files: []string{"/etc/default/kubelet"}},
		containerd: "/etc/containerd/config.toml", containerdUnit: "containerd.service", socket: "/run/containerd/containerd.sock", certs: "/etc/containerd/certs.d",
	}
}
