package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/cluster/controller"
	"github.com/pullpass/pullpass/internal/cluster/keysecrets"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
)

// keySecretsOptions say which Secrets have which keys.
type keySecretsOptions struct {
	kubeconfig, namespace, trust string
	servers, signing             []string
}

func keysSecretsCommand() *cobra.Command {
	var o keySecretsOptions
	command := &cobra.Command{
		Use:   "secrets",
		Short: "Make certificates and signing keys in Secrets of Kubernetes, and renew them",
		Long: `Make certificates and signing keys in Secrets, and renew those that end within 30
days, for clusters without cert-manager. The chart runs it with certificates.create.

The Secrets must exist, at first without data: NAME has the certificate (tls.crt), its
key (tls.key) and its CA (ca.crt) and is valid for 90 days; NAME-ca has the CA with its
key for ten years. A Secret with a certificate from elsewhere is refused.`,
		Example: `  pullpass keys secrets --namespace pullpass --server pullpass-serving=registry.example.com,10.0.0.7
  pullpass keys secrets --namespace pullpass --signing pullpass-signing --signing pullpass-gateway-signing=RS256
  pullpass keys secrets --namespace pullpass --server pullpass-serving=127.0.0.1 --trust pullpass-nodes/pullpass-serving-ca`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.keep(cmd) },
	}
	flags := command.Flags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "connection to the cluster (default: that of the pod's ServiceAccount)")
	flags.StringVar(&o.namespace, "namespace", "", "namespace of the Secrets")
	flags.StringArrayVar(&o.servers, "server", nil, "SECRET=NAME,NAME: a server's certificate, for DNS names and IP addresses; can be repeated")
	flags.StringArrayVar(&o.signing, "signing", nil, "SECRET or SECRET=ALGORITHM: a key that signs tokens; ES256 (default), RS256 or EdDSA; can be repeated")
	flags.StringVar(&o.trust, "trust", "", "NAMESPACE/NAME: a ConfigMap that gets the CA of the first --server as ca.crt")
	_ = command.MarkFlagRequired("namespace")
	return command
}

func (o *keySecretsOptions) keep(cmd *cobra.Command) error {
	leaves, err := o.leaves()
	if err != nil {
		return err
	}
	namespace, configMap, ok := strings.Cut(o.trust, "/")
	if o.trust != "" && (!ok || len(o.servers) == 0) {
		return errors.New("--trust: give NAMESPACE/NAME of a ConfigMap, and a --server whose CA it gets")
	}
	connection, err := controller.Connect(o.kubeconfig)
	if err != nil {
		return err
	}
	keeper, err := keysecrets.New(keysecrets.Config{Connection: connection, Namespace: o.namespace, Now: time.Now})
	if err != nil {
		return err
	}
	var faults []error // one Secret must not keep the others from being renewed
	for i, leaf := range leaves {
		name := leaf.CommonName
		ca, isNew, err := keeper.Keep(cmd.Context(), name, leaf)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		if isNew {
			fmt.Fprintf(cmd.OutOrStdout(), "%s: a new certificate and key\n", name)
		} else {
			fmt.Fprintf(cmd.OutOrStdout(), "%s: unchanged\n", name)
		}
		if i == 0 && o.trust != "" {
			if err := keeper.Publish(cmd.Context(), namespace, configMap, ca); err != nil {
				faults = append(faults, err)
			}
		}
	}
	return errors.Join(faults...)
}

// leaves returns the contents of the Secrets, servers first. The common name is that of the Secret.
func (o *keySecretsOptions) leaves() ([]signing.Leaf, error) {
	var leaves []signing.Leaf
	for _, server := range o.servers {
		name, list, _ := strings.Cut(server, "=")
		leaf := signing.Leaf{CommonName: name, Algorithm: signing.ES256}
		for host := range strings.SplitSeq(list, ",") {
			if host == "" {
				return nil, fmt.Errorf("--server %s: has an empty name; give SECRET=NAME,NAME", server)
			}
			if address, err := netip.ParseAddr(host); err == nil {
				host = address.String()
			}
			leaf.Names = append(leaf.Names, host)
		}
		leaves = append(leaves, leaf)
	}
	for _, key := range o.signing {
		name, algorithm, ok := strings.Cut(key, "=")
		if !ok {
			algorithm = string(signing.ES256)
		}
		leaves = append(leaves, signing.Leaf{CommonName: name, Algorithm: signing.Algorithm(algorithm)})
	}
	if len(leaves) == 0 {
		return nil, errors.New("--server, --signing: give at least one")
	}
	seen := map[string]bool{"": true}
	for _, leaf := range leaves {
		if seen[leaf.CommonName] {
			return nil, fmt.Errorf("--server, --signing: the Secret %q is named twice, or has no name", leaf.CommonName)
		}
		seen[leaf.CommonName] = true
	}
	return leaves, nil
}
