package nodeinstall

func kubeadm() profile {
	return profile{
		name: "kubeadm", has: "/var/lib/kubelet/kubeadm-flags.env", hasNot: "/kind/version", units: []string{"kubelet.service"},
		config: "/etc/pullpass/credential-provider.yaml", plugins: ownPluginDir, client: []string{rotatedClient},
		settings: []string{"/var/lib/kubelet/config.yaml"},
		flags: flagSource{
			form: formEnvironment, variable: "KUBELET_EXTRA_ARGS", mayBeAbsent: true,
			// The package of Debian, and that of Red Hat; kubeadm's drop-in for the unit names one
			// of them.
			files: []string{"/etc/default/kubelet", "/etc/sysconfig/kubelet"},
			before: []flagSource{{
				form: formEnvironment, variable: "KUBELET_KUBEADM_ARGS", files: []string{"/var/lib/kubelet/kubeadm-flags.env"}, mayBeAbsent: true,
			}},
		},
		containerd: "/etc/containerd/config.toml", containerdUnit: "containerd.service", socket: "/run/containerd/containerd.sock", certs: "/etc/containerd/certs.d",
	}
}

func kind() profile {
	p := kubeadm()
	p.name, p.has, p.hasNot = "kind", "/kind/version", ""
	return p
}
