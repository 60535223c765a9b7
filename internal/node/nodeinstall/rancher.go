package nodeinstall

func k3s() profile { return rancher("k3s", "k3s.service", "k3s-agent.service") }

func rke2() profile { return rancher("rke2", "rke2-server.service", "rke2-agent.service") }

func rancher(name string, units ...string) profile {
	return profile{
		name: name, has: "/var/lib/rancher/" + name + "/agent", units: units,
		config: "/var/lib/rancher/credentialprovider/config.yaml", plugins: "/var/lib/rancher/credentialprovider/bin", implied: true,
		settings:   []string{"/var/lib/rancher/" + name + "/agent/etc/kubelet.conf.d"},
		client:     []string{"/var/lib/rancher/" + name + "/agent/client-kubelet.crt", "/var/lib/rancher/" + name + "/agent/client-kubelet.key"},
		flags:      flagSource{form: formRancher, files: []string{"/etc/rancher/" + name + "/config.yaml.d/" + rancherFlagFile}, mayBeAbsent: true},
		containerd: "/var/lib/rancher/" + name + "/agent/etc/containerd/config.toml",
		socket:     "/run/k3s/containerd/containerd.sock",
		certs:      "/var/lib/rancher/" + name + "/agent/etc/containerd/certs.d",
	}
}
