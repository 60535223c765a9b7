package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/node/hoststoml"
)

const (
	apiVersion = "credentialprovider.kubelet.k8s.io/v1"

	// maxRequestSize is in bytes. A request is about 1.5 KiB; annotations, which
	// Kubernetes limits to 256 KiB, can make it larger.
	maxRequestSize = 1 << 20

	// readTimeout is shorter than the minute after which the kubelet kills the
	// plugin, so that its log gets the reason.
	readTimeout = 30 * time.Second

	// maxTokenSize is in bytes and equals the limit of the token endpoint, so
	// that a token that is too long fails where its cause is.
	maxTokenSize = 16 << 10

	// username is believed in nothing, but must not be empty: containerd drops a
	// credential without a username and pulls anonymously.
	username = "serviceaccount"

	defaultHost = "docker.io"
)

// The messages are fixed texts. An error of encoding/json can hold pieces of
// the input, and the token is part of the input.
var (
	errArguments = errors.New("unexpected arguments: only --registry=HOST[:PORT], --gateway=URL, --certs-dir=DIR, --by-name, --help and --version are known, each but the first once " +
		"(see args of this provider in the kubelet's CredentialProviderConfig)")
	errRegistry = errors.New("argument --registry: must be HOST[:PORT], without scheme, path and wildcards " +
		"(see args of this provider in the kubelet's CredentialProviderConfig)")
	errGateway = errors.New("argument --gateway: must be https://HOST[:PORT], as gateway.url of Pullpass's configuration " +
		"(see args of this provider in the kubelet's CredentialProviderConfig)")
	errCertsDir = errors.New("argument --certs-dir: must be the absolute path of a directory, beside --gateway " +
		"(see args of this provider in the kubelet's CredentialProviderConfig)")
	errByName = errors.New("argument --by-name: must be beside --gateway " +
		"(see args of this provider in the kubelet's CredentialProviderConfig)")
	errOtherRegistry = errors.New("image of the request: its registry is not one of --registry, and is not given the token " +
		"(correct matchImages or args of this provider in the kubelet's CredentialProviderConfig)")
	errShortName = errors.New("image of the request: is of docker.io, and the kubelet takes every short name (nginx) for one of docker.io, but CRI-O would send the pod's token to the registry that registries.conf names for it; " +
		"no token is given with --by-name (name the image by the gateway's own host: gateway.example.com/docker.io/library/nginx)")
	errSlow = errors.New("request on standard input: not complete after 30s " +
		"(this program is started by the kubelet; see --help)")
	errRequestSize = errors.New("request on standard input: larger than 1 MiB")
	errRequestJSON = errors.New("request on standard input: not a JSON CredentialProviderRequest " +
		"(this program is started by the kubelet; see --help)")
	errAPIVersion = errors.New("apiVersion of the request: must be " + apiVersion +
		" (set this apiVersion for the provider in the kubelet's CredentialProviderConfig)")
	errKind       = errors.New("kind of the request: must be CredentialProviderRequest")
	errEmptyToken = errors.New("serviceAccountToken of the request: empty " +
		"(set tokenAttributes.serviceAccountTokenAudience and tokenAttributes.requireServiceAccount: true " +
		"for the provider in the kubelet's CredentialProviderConfig)")
	errTokenSize  = errors.New("serviceAccountToken of the request: longer than 16 KiB, which Pullpass does not take either: use fewer audiences")
	errEmptyImage = errors.New("image of the request: empty")
	errImage      = errors.New("image of the request: must be HOST[:PORT]/REPOSITORY")
	errIPv6       = errors.New("image of the request: an IPv6 address needs a port, " +
		"because the kubelet cannot match it without one (write [ADDRESS]:443)")
)

// request is a CredentialProviderRequest of credentialprovider.kubelet.k8s.io/v1.
// Fields that are not used here are ignored: a newer kubelet may send more, and
// annotations are read from the API by Pullpass, never believed from a node.
type request struct {
	APIVersion          string `json:"apiVersion"`
	Kind                string `json:"kind"`
	Image               string `json:"image"`
	ServiceAccountToken string `json:"serviceAccountToken"`
}

// response is a CredentialProviderResponse of credentialprovider.kubelet.k8s.io/v1.
type response struct {
	APIVersion    string                `json:"apiVersion"`
	Kind          string                `json:"kind"`
	CacheKeyType  string                `json:"cacheKeyType"`
	CacheDuration string                `json:"cacheDuration"`
	Auth          map[string]credential `json:"auth"`
}

type credential struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

// gatewayError is the error of a registry that containerd would ask itself.
func gatewayError(reason error) error {
	return fmt.Errorf("hosts.toml of the image's registry: %w, so containerd would send the pod's token to another host than the gateway; "+
		"no token is given until the file is as pullpass kubelet-config --mirror prints it (see --gateway and --certs-dir of this provider in the kubelet's CredentialProviderConfig)", reason)
}

// respond reads one request and returns the encoded response to it.
func respond(stdin io.Reader, o options) ([]byte, error) {
	input, err := readRequest(stdin)
	if err != nil {
		return nil, err
	}
	var r request
	if err := json.Unmarshal(input, &r); err != nil {
		return nil, errRequestJSON
	}
	if err := r.validate(); err != nil {
		return nil, err
	}
	host, err := registryHost(r.Image)
	if err != nil {
		return nil, err
	}
	// matchImages may have a wildcard, and any recipient of the token can use it
	// as the pod until it expires.
	if len(o.registries) > 0 && !slices.Contains(o.registries, host) {
		return nil, errOtherRegistry
	}
	// The kubelet asks for docker.io/library/centos and tells CRI-O to pull centos:1, which an alias or
	// unqualified-search-registries of registries.conf turns into an image of any registry.
	if o.byName && host == defaultHost {
		return nil, errShortName
	}
	// Other programs rewrite containerd's directory: Spegel removes all that is in it. The
	// gateway itself needs no file to be asked.
	if _, gateway, _ := strings.Cut(o.gateway, "://"); o.gateway != "" && host != gateway {
		if o.byName {
			err = verifyHosts(hostsFile, time.Now(), os.Getenv, host, gateway)
		} else if err = hoststoml.Verify(cmp.Or(o.certsDir, hoststoml.DefaultDir), o.gateway, host); err != nil {
			err = gatewayError(err)
		}
		if err != nil {
			return nil, err
		}
	}
	output, err := json.Marshal(response{
		APIVersion:   apiVersion,
		Kind:         "CredentialProviderResponse",
		CacheKeyType: "Registry",
		// The kubelet renews the token by itself; a cached password could
		// outlive it.
		CacheDuration: "0s",
		Auth:          map[string]credential{host: {Username: username, Password: r.ServiceAccountToken}},
	})
	return append(output, '\n'), err
}

// readRequest is bounded in size and time. A read that it does not wait for ends with
// the process.
func readRequest(stdin io.Reader) ([]byte, error) {
	var input []byte
	done := make(chan error, 1)
	go func() {
		var err error
		input, err = io.ReadAll(io.LimitReader(stdin, maxRequestSize+1))
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return nil, fmt.Errorf("reading the request from standard input: %w", err)
		}
		if len(input) > maxRequestSize {
			return nil, errRequestSize
		}
		return input, nil
	case <-time.After(readTimeout):
		return nil, errSlow
	}
}

func (r request) validate() error {
	switch {
	case r.APIVersion != apiVersion:
		return errAPIVersion
	case r.Kind != "CredentialProviderRequest":
		return errKind
	case r.ServiceAccountToken == "":
		return errEmptyToken
	case len(r.ServiceAccountToken) > maxTokenSize:
		return errTokenSize
	case r.Image == "":
		return errEmptyImage
	}
	return nil
}

// registryHost returns the host[:port] of an image. The kubelet sends a full
// name (docker.io/library/nginx); a short one is read as the distribution
// reference grammar reads it.
//
// The result becomes a key of the response's auth, and the kubelet takes such a
// key as a glob. A host that held a glob character would offer the token to
// other registries, so only plain hosts pass.
func registryHost(image string) (string, error) {
	host, repository, found := strings.Cut(image, "/")
	if found && (host == "" || repository == "") {
		return "", errImage
	}
	if !found || !isHost(host) {
		return defaultHost, nil
	}
	if address, isIPv6 := strings.CutPrefix(host, "["); isIPv6 {
		address, port, found := strings.Cut(address, "]")
		if !consistsOf(address, isIPv6Byte) {
			return "", errImage
		}
		// The kubelet matches hosts with filepath.Match, to which [ADDRESS] is a
		// character class. With a port it takes the brackets off first.
		if found && port == "" {
			return "", errIPv6
		}
		if port, found := strings.CutPrefix(port, ":"); !found || !consistsOf(port, isDigit) {
			return "", errImage
		}
		return host, nil
	}
	name, port, hasPort := strings.Cut(host, ":")
	if !consistsOf(name, isHostByte) || hasPort && !consistsOf(port, isDigit) {
		return "", errImage
	}
	return host, nil
}

// isHost tells a registry host from the first component of a repository on
// docker.io, as the distribution reference grammar does.
func isHost(component string) bool {
	return component == "localhost" || strings.ContainsAny(component, ".:") ||
		strings.ToLower(component) != component
}

func consistsOf(s string, allowed func(byte) bool) bool {
	for i := range len(s) {
		if !allowed(s[i]) {
			return false
		}
	}
	return s != ""
}

func isDigit(b byte) bool { return '0' <= b && b <= '9' }

func isIPv6Byte(b byte) bool {
	return isDigit(b) || b == ':' || 'a' <= b && b <= 'f' || 'A' <= b && b <= 'F'
}

func isHostByte(b byte) bool {
	return isDigit(b) || b == '.' || b == '-' || 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z'
}
