package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/pullpass/pullpass/credential"
)

const tokensKey = "csi.storage.k8s.io/serviceAccount.tokens"

type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer

	name, registry string
	inSecrets      bool

	mu     sync.Mutex
	report *json.Encoder
}

// published is what the tests read about a NodePublishVolume. It holds no token.
type published struct {
	Target string `json:"target"`
	// Audiences are those of the tokens, sorted.
	Audiences []string `json:"audiences"`
	// Forged says that the map which the kubelet leaves alone holds tokens, too.
	Forged bool `json:"forged"`
	// Expiry is that of the credential.
	Expiry time.Time `json:"expiry"`
	// Later is the error of the same tokens at Expiry.
	Later string `json:"later"`
	Error string `json:"error"`
}

// NodePublishVolume writes the manifest of the image into the target.
func (d *driver) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	seen := published{Target: req.GetTargetPath()}
	err := d.publish(ctx, req, &seen)
	if err != nil {
		seen.Error = err.Error()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return &csi.NodePublishVolumeResponse{}, errors.Join(err, d.report.Encode(seen))
}

func (d *driver) publish(ctx context.Context, req *csi.NodePublishVolumeRequest, seen *published) error {
	values, others := req.GetVolumeContext(), req.GetSecrets()
	if d.inSecrets {
		values, others = others, values
	}
	_, seen.Forged = others[tokensKey]
	var entries map[string]json.RawMessage
	_ = json.Unmarshal([]byte(values[tokensKey]), &entries) // FromCSI judges it
	for audience := range entries {
		seen.Audiences = append(seen.Audiences, audience)
	}
	slices.Sort(seen.Audiences)

	image, err := name.ParseReference(req.GetVolumeContext()["image"])
	if err != nil {
		return err
	}
	if image.Context().RegistryStr() != d.registry {
		return fmt.Errorf("%s: not from the registry that gets the pod's token", image)
	}
	c, err := credential.FromCSI(values, d.registry, time.Now())
	if err != nil {
		return err
	}
	seen.Expiry = c.Expiry
	if _, err := credential.FromCSI(values, d.registry, c.Expiry); err != nil {
		seen.Later = err.Error()
	}
	manifest, err := pull(ctx, c, image)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(req.GetTargetPath(), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(req.GetTargetPath(), "manifest.json"), manifest, 0o644)
}

func pull(ctx context.Context, c credential.Credential, reference name.Reference) ([]byte, error) {
	auth := &authn.Basic{Username: credential.Username, Password: c.Password()}
	image, err := remote.Image(reference, remote.WithContext(ctx), remote.WithAuth(auth), remote.WithUserAgent("csidriver"))
	if err != nil {
		return nil, err
	}
	return image.RawManifest()
}

func (d *driver) NodeUnpublishVolume(_ context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, os.RemoveAll(req.GetTargetPath())
}

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "node"}, nil
}

func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "1"}, nil
}

// registrar tells the kubelet of the driver.
type registrar struct {
	registration.UnimplementedRegistrationServer
	name, endpoint string
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: r.name, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}

func (r *registrar) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !s.GetPluginRegistered() {
		log.Printf("the kubelet does not take the driver: %s", s.GetError())
	}
	return &registration.RegistrationStatusResponse{}, nil
}
