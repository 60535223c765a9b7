// Command pullpass-credential-provider is the kubelet's image credential
// provider plugin (KEP-4412). The kubelet starts it before a pull, writes one
// CredentialProviderRequest to its standard input and reads one
// CredentialProviderResponse from its standard output.
//
// It is a pass-through: the pod's ServiceAccount token from the request becomes
// the password of the response, and Pullpass judges that password later, at the
// registry's token endpoint. So the plugin has no network access and no state, and
// it decides nothing but which registry host the password is for. Its arguments
// can only narrow that: to some hosts, and to the time in which the runtime asks the
// gateway in place of the registry.
//
// It never prints the token except as that password, and its errors quote
// nothing of the request: the kubelet copies standard error into its own log.
//
// The standard library is all that it links beside packages of this repository that
// read a file, because the kubelet starts it for every pull and it is installed on
// every node.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// version is set by the linker (-X main.version).
var version = "devel"

const help = `pullpass-credential-provider answers the kubelet with the pod's ServiceAccount
token as the password for the image's registry (KEP-4412).

The kubelet starts it as its CredentialProviderConfig says: it reads a
CredentialProviderRequest from standard input and writes a
CredentialProviderResponse to standard output.

  --registry=HOST[:PORT]   give the token to this registry alone; repeatable, for
                           args of this provider in the CredentialProviderConfig
  --gateway=URL            give it only while hosts.toml of the image's registry has
                           containerd ask only this gateway
  --certs-dir=DIR          where containerd looks for hosts.toml
                           (default: /etc/containerd/certs.d)
  --by-name                with CRI-O, which has no hosts.toml: give it only while
                           /etc/hosts gives the registry the gateway's addresses,
                           for 6 seconds or longer, and never for docker.io
  --help                   print this text
  --version                print the version

Exit codes: 0 answered, 1 refused (the reason is on standard error).
`

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is the whole program; it returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	output, err := answer(args, stdin)
	if err == nil {
		if _, err = stdout.Write(output); err == nil {
			return 0
		}
		err = fmt.Errorf("writing to standard output: %w", err)
	}
	fmt.Fprintln(stderr, "pullpass-credential-provider:", err)
	return 1
}

func answer(args []string, stdin io.Reader) ([]byte, error) {
	switch {
	case len(args) == 1 && args[0] == "--help":
		return []byte(help), nil
	case len(args) == 1 && args[0] == "--version":
		return []byte("pullpass-credential-provider " + version + "\n"), nil
	}
	o, err := parseOptions(args)
	if err != nil {
		return nil, err
	}
	return respond(stdin, o)
}

// options bound who is given the token.
type options struct {
	registries []string // empty: matchImages alone decides
	gateway    string   // empty: the registries are asked themselves
	certsDir   string
	byName     bool // the runtime finds the gateway by the registry's name
}

// parseOptions takes --NAME=VALUE and --NAME VALUE.
func parseOptions(args []string) (o options, err error) {
	for i := 0; i < len(args); i++ {
		if args[i] == "--by-name" && !o.byName {
			o.byName = true
			continue
		}
		name, value, found := strings.Cut(args[i], "=")
		if !found {
			if i++; i == len(args) {
				return o, errArguments
			}
			value = args[i]
		}
		switch {
		case name == "--registry":
			// The host of an image is compared with it, so it must be one.
			if got, err := registryHost(value + "/repository"); err != nil || got != value {
				return o, errRegistry
			}
			o.registries = append(o.registries, value)
		case name == "--gateway" && o.gateway == "":
			if !isGateway(value) {
				return o, errGateway
			}
			o.gateway = value
		case name == "--certs-dir" && o.certsDir == "":
			if !filepath.IsAbs(value) {
				return o, errCertsDir
			}
			o.certsDir = value
		default:
			return o, errArguments
		}
	}
	if o.certsDir != "" && (o.gateway == "" || o.byName) {
		return o, errCertsDir
	}
	if o.byName && o.gateway == "" {
		return o, errByName
	}
	return o, nil
}

// isGateway takes URLs as gateway.url of the configuration has them. hosts.toml is
// compared with it.
func isGateway(s string) bool {
	host, found := strings.CutPrefix(s, "https://")
	if !found {
		host, found = strings.CutPrefix(s, "http://")
	}
	got, err := registryHost(host + "/repository")
	return found && (err == nil && got == host || consistsOf(host, isHostByte))
}
