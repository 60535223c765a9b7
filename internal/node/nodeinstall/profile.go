package nodeinstall

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/node/hostfs"
)

// ErrProfile means that a node does not match a profile.
var ErrProfile = errors.New("the node is not as the profile has it")

// Paths of our own files.
const (
	ownConfigDir = "/etc/pullpass/credential-providers"
	ownPluginDir = "/usr/local/libexec/pullpass"
)

// rotatedClient is the path of the certificate that kubelets renew themselves.
const rotatedClient = "/var/lib/kubelet/pki/kubelet-client-current.pem"

// profile has the paths of a platform that the kubelet and containerd read.
type profile struct {
	name   string
	has    string   // a path that exists on this platform alone
	hasNot string   // a path that exists on a similar platform; empty: none is similar
	units  []string // of systemd; of several, the one that is enabled runs the kubelet

	config  string // the provider configuration that the kubelet has without a flag, or that is created
	plugins string // likewise, for the directory of plugins
	implied bool   // if both exist, the kubelet gets them without a visible flag

	settings []string // the KubeletConfiguration: files, and directories of them

	client []string // the kubelet's certificate, with its key or before it; empty: it authenticates differently

	flags          flagSource
	containerd     string // its configuration
	containerdUnit string // of systemd, which can name a different one; empty: the platform does not let it
	containerdArgs string // the file with its flags, which can name a different one; empty: the platform has none
	socket         string // of containerd
	certs          string // directory of hosts.toml if the configuration has no plain path
}

// profiles has a line for each platform that Pullpass changes, in the order in which texts list
// them. Each value is from the platform's own sources or documentation; see docs/how-to/nodes.md.
func profiles() []profile {
	return []profile{
		kubeadm(),
		kind(),
		k3s(),
		rke2(),
		microk8s(),
		eks(),
		aks(),
		gke(),
	}
}

// Profiles returns the names of the platforms whose nodes can be changed.
func Profiles() (names []string) {
	for _, p := range profiles() {
		names = append(names, p.name)
	}
	return names
}

// findProfile returns the profile of the name. If the name is empty, it returns the one that the
// node matches.
func findProfile(tree *hostfs.Tree, name string) (profile, error) {
	var found []profile
	var looked []string
	for _, p := range profiles() {
		if name == p.name {
			return p, nil
		}
		is, err := p.describes(tree)
		if err != nil {
			return profile{}, err
		}
		if is {
			found = append(found, p)
		}
		looked = append(looked, fmt.Sprintf("%s (%s)", p.has, p.name))
	}
	switch {
	case name != "":
		return profile{}, fmt.Errorf("--profile %s is not known; use %s", term.QuoteValue(name), strictyaml.List(Profiles()))
	case len(found) == 1:
		return found[0], nil
	case len(found) == 0:
		return profile{}, fmt.Errorf("%w: none of %s is below %s; give --profile, or see pullpass node-install print", ErrProfile, strings.Join(looked, ", "), tree.Path("/"))
	}
	var which []string
	for _, p := range found {
		which = append(which, fmt.Sprintf("%s (%s)", p.has, p.name))
	}
	return profile{}, fmt.Errorf("%w: %s are all below %s; give --profile", ErrProfile, strings.Join(which, " and "), tree.Path("/"))
}

func (p profile) describes(tree *hostfs.Tree) (bool, error) {
	is, err := tree.Exists(p.has)
	if !is || p.hasNot == "" {
		return is, err
	}
	other, err := tree.Exists(p.hasNot)
	return !other, err
}

// unit returns the unit that runs the kubelet.
func (p profile) unit(tree *hostfs.Tree) (string, error) {
	if len(p.units) == 1 {
		return p.units[0], nil
	}
	var enabled []string
	for _, unit := range p.units {
		is, err := tree.Exists("/etc/systemd/system/multi-user.target.wants/" + unit)
		if err != nil {
			return "", err
		}
		if is {
			enabled = append(enabled, unit)
		}
	}
	if len(enabled) != 1 {
		return "", fmt.Errorf("%w: exactly one of %s must be enabled in %s (%d are); enable the one that runs the kubelet", ErrProfile,
			strings.Join(p.units, " and "), tree.Path("/etc/systemd/system/multi-user.target.wants"), len(enabled))
	}
	return enabled[0], nil
}

// certsDir returns the directory in which containerd looks for hosts.toml, according to its own
// configuration.
func (p profile) certsDir(tree *hostfs.Tree) (string, error) {
	c, err := p.containerdSettings(tree)
	if err != nil {
		return "", err
	}
	dir := c.Dir()
	switch {
	case c.IsUnread() && c.Discard != nil:
		// If that setting is missing, only Remarks reports the list, because containerd 1 accepts
		// lists.
		return "", fmt.Errorf("%w: %s", ErrProfile, listProblem(c))
	case c.ConfigPath == "":
		return "", fmt.Errorf("%w: config_path is in none of %s, or not in the section that the version of the file has, so containerd would read no hosts.toml; write config_path = %q there (docs/how-to/kubelet.md) and restart containerd",
			ErrProfile, strings.Join(c.Files, ", "), p.certs)
	case p.name == "microk8s" && dir == "${SNAP_DATA}/args/certs.d":
		return p.certs, nil
	case !path.IsAbs(dir) || strings.Contains(dir, "$"):
		return "", fmt.Errorf("%w: config_path of containerd is not an absolute path, or has a variable (%s); write %q", ErrProfile, term.QuoteValue(dir), p.certs)
	}
	return path.Clean(dir), nil
}

// withClient sets the path of the kubelet's certificate on the platform. If the file is missing,
// containerd fails all pulls from the registry.
func (p profile) withClient(tree *hostfs.Tree, hosts []byte, client string) ([]byte, error) {
	line := []byte("\nclient = " + strconv.Quote(client) + "\n")
	if !bytes.Contains(hosts, line) {
		return hosts, nil
	}
	if len(p.client) == 0 {
		return nil, fmt.Errorf("%w: node.proof of the cluster is by certificate, and kubelets of %s have none; write methods: [address] (docs/how-to/node-proof.md)", ErrProfile, p.name)
	}
	for _, name := range p.client {
		if _, err := tree.Follow(name); err != nil {
			return nil, fmt.Errorf("%w: node.proof of the cluster is by certificate, and the kubelet's cannot be read (%w); write methods: [address] if it has none (docs/how-to/node-proof.md)", ErrProfile, err)
		}
	}
	value := strconv.Quote(p.client[0])
	if len(p.client) == 2 {
		value = fmt.Sprintf("[[%q, %q]]", p.client[0], p.client[1])
	}
	return bytes.Replace(hosts, line, []byte("\nclient = "+value+"\n"), 1), nil
}

// flagFile returns the file of the kubelet's flags that we may change.
func (p profile) flagFile(tree *hostfs.Tree) (string, error) {
	if len(p.flags.files) == 1 {
		return p.flags.files[0], nil
	}
	c, err := commandOf(tree, p.units[0])
	if err != nil {
		return "", err
	}
	var named []string
	for _, file := range p.flags.files {
		reads, err := c.reads(file)
		if err != nil {
			return "", err
		}
		if reads {
			named = append(named, file)
		}
	}
	if len(named) != 1 {
		return "", fmt.Errorf("%w: the kubelet's unit must have exactly one of %s as EnvironmentFile (has %d; it and its drop-ins were looked at: systemctl cat %s); name it in a drop-in",
			ErrProfile, strings.Join(p.flags.files, " and "), len(named), p.units[0])
	}
	return named[0], nil
}
