package nodeinstall

func aks() profile {
	return profile{
		name: "aks", has: "/etc/kubernetes/azure.json", units: []string{"kubelet.service"},
		config: "/var/lib/kubelet/credential-provider-config.yaml", plugins: "/var/lib/kubelet/credential-provider",
		settings:   []string{"/etc/default/kubeletconfig.json"},
		client:     []string{rotatedClient},
		flags:      flagSource{form: formEnvironment, variable: "KUBELET_FLAGS", files: []string{"/etc/default/kubelet"}},
		containerd: "/etc/containerd/config.toml", containerdUnit: "containerd.service", socket: "/run/containerd/containerd.sock", certs: "/etc/containerd/certs.d",
	}
}
