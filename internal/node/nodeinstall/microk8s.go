package nodeinstall

func microk8s() profile {
	return profile{
		name: "microk8s", has: "/var/snap/microk8s/current/args/kubelet", units: []string{"snap.microk8s.daemon-kubelite.service"},
		config: "/etc/pullpass/credential-provider.yaml", plugins: ownPluginDir,
		client:     []string{"/var/snap/microk8s/current/certs/kubelet.crt", "/var/snap/microk8s/current/certs/kubelet.key"},
		flags:      flagSource{form: formArguments, files: []string{"/var/snap/microk8s/current/args/kubelet"}},
		containerd: "/var/snap/microk8s/current/args/containerd-template.toml", containerdArgs: "/var/snap/microk8s/current/args/containerd",
		socket: "/var/snap/microk8s/common/run/containerd.sock", certs: "/var/snap/microk8s/current/args/certs.d",
	}
}
