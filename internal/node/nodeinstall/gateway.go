package nodeinstall

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/node/hoststoml"
)

const (
	gatewayArgument  = "--gateway="
	certsDirArgument = "--certs-dir="
)

// withCertsDir tells the plugin the directory in which the platform's containerd looks for the
// hosts.toml. With --gateway, the plugin verifies that file.
func withCertsDir(content []byte, dir string) ([]byte, error) {
	if dir == "" || dir == hoststoml.DefaultDir {
		return content, nil
	}
	return editArguments(content, func(args *yaml.Node) bool {
		isGuarded := slices.ContainsFunc(args.Content, func(arg *yaml.Node) bool { return strings.HasPrefix(arg.Value, gatewayArgument) })
		if isGuarded {
			args.Content = append(args.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.DoubleQuotedStyle, Value: certsDirArgument + dir})
		}
		return isGuarded
	})
}

// withoutGateway is for a kubelet that cannot see the files of containerd.
func withoutGateway(content []byte) ([]byte, error) {
	return editArguments(content, func(args *yaml.Node) bool {
		before := len(args.Content)
		args.Content = slices.DeleteFunc(args.Content, func(arg *yaml.Node) bool { return strings.HasPrefix(arg.Value, gatewayArgument) })
		return len(args.Content) != before
	})
}

// editArguments changes the args of our providers, which have the form that "pullpass
// kubelet-config" prints.
func editArguments(content []byte, edit func(args *yaml.Node) bool) ([]byte, error) {
	f, err := parseProviders(content)
	if err != nil {
		return nil, err
	}
	changed := false
	for _, provider := range f.list.Content {
		if args := strictyaml.Field(strictyaml.Resolve(provider), "args"); args != nil && edit(args) {
			changed = true
		}
	}
	if !changed {
		return content, nil
	}
	return f.encode(content)
}
