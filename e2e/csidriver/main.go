// Command csidriver is a CSI driver that mounts the manifest of an image, which it pulls as the pod. docs/how-to/csi.md describes it.
// It registers with the kubelet of its node, and writes a line of JSON for each NodePublishVolume.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"log"
	"net"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const kubeletDir = "/var/lib/kubelet"

func main() {
	log.SetFlags(0)
	d := driver{report: json.NewEncoder(os.Stdout)}
	flag.StringVar(&d.name, "name", "", "name of the CSIDriver object")
	flag.StringVar(&d.registry, "registry", "", "the registry that gets tokens, which is their audience as well")
	flag.BoolVar(&d.inSecrets, "secrets", false, "serviceAccountTokenInSecrets of the CSIDriver object")
	flag.Parse()
	if err := d.run(); err != nil {
		log.Fatal(err)
	}
}

func (d *driver) run() error {
	endpoint := filepath.Join(kubeletDir, "plugins", d.name, "csi.sock")
	storage := grpc.NewServer()
	csi.RegisterIdentityServer(storage, d)
	csi.RegisterNodeServer(storage, d)
	plugin := grpc.NewServer()
	registration.RegisterRegistrationServer(plugin, &registrar{name: d.name, endpoint: endpoint})
	ended := make(chan error, 2)
	// The endpoint comes first: the kubelet uses it as soon as it sees the other.
	for _, s := range []struct {
		server *grpc.Server
		socket string
	}{{storage, endpoint}, {plugin, filepath.Join(kubeletDir, "plugins_registry", d.name+"-reg.sock")}} {
		listener, err := listen(s.socket)
		if err != nil {
			return err
		}
		go func() { ended <- s.server.Serve(listener) }()
	}
	return errors.Join(<-ended, <-ended)
}

func listen(socket string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		return nil, err
	}
	return net.Listen("unix", socket)
}
