package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/credential"
)

// maxServerSize is in bytes. An image name has at most 255.
const maxServerSize = 4 << 10

// Clients know these by their text (credentials.IsErrCredentialsNotFoundMessage
// and the like of docker-credential-helpers). After the first they go on
// without a credential or ask another store; any other error ends the pull.
var (
	errNotFound = errors.New("credentials not found in native keychain")
	errNoServer = errors.New("no credentials server URL")
)

var (
	errArguments  = errors.New("expected one of get, list, store, erase, configure, version and --help")
	errServerSize = errors.New("server on standard input: longer than 4 KiB")
	errStore      = errors.New("nothing was stored: the pod or the CI job is logged in already, by its token, " +
		"and no password replaces that")
	errErase = errors.New("nothing was erased: the token belongs to the pod or the CI job and is stored nowhere else " +
		"(to stop using it, take the registry out of credHelpers in the client's config.json)")
	errNoRegistries = errors.New("PULLPASS_REGISTRIES: empty; set it to the registries that may get the token of the pod or the CI job, " +
		"as their images name them (registry.example.com,localhost:5443)")
	// The value is not quoted: an operator who sets it to the token itself would
	// find the token in a log.
	errTokenFile = errors.New("PULLPASS_TOKEN_FILE: must be an absolute path")
	errTwoTokens = errors.New("PULLPASS_TOKEN_FILE and PULLPASS_ID_TOKEN: both are set, and they are tokens of two; unset one")
)

// settings are what the environment says. Protocol and clients leave no other
// way: a helper is started with one argument.
type settings struct {
	registries []string
	audience   string   // empty: the name of the registry
	tokenFile  string   // empty: that of the CI job, and outside of one the default
	push       []string // scopes of the push credential; none: the token itself is the answer
}

func parseSettings(getenv func(string) string) (settings, error) {
	s := settings{audience: getenv("PULLPASS_AUDIENCE"), tokenFile: getenv("PULLPASS_TOKEN_FILE")}
	registries := getenv("PULLPASS_REGISTRIES")
	if registries == "" {
		return settings{}, errNoRegistries
	}
	for registry := range strings.SplitSeq(registries, ",") {
		registry = strings.TrimSpace(registry)
		if !isHost(registry) {
			return settings{}, fmt.Errorf("PULLPASS_REGISTRIES: entry %d is not HOST or HOST:PORT", len(s.registries)+1)
		}
		s.registries = append(s.registries, registryOf(registry))
	}
	switch {
	case s.tokenFile == "":
	case !strings.HasPrefix(s.tokenFile, "/"):
		return settings{}, errTokenFile
	case getenv("PULLPASS_ID_TOKEN") != "":
		return settings{}, errTwoTokens
	}
	var err error
	s.push, err = parsePush(getenv("PULLPASS_PUSH"), s.registries)
	return s, err
}

// get answers with the token if the server is one of the registries. Hosts are
// compared byte by byte, as clients do with credHelpers.
func get(getenv func(string) string, now time.Time, stdin io.Reader, stderr io.Writer) ([]byte, error) {
	s, err := parseSettings(getenv)
	if err != nil {
		return nil, err
	}
	server, err := readServer(stdin)
	if err != nil {
		return nil, err
	}
	registry := registryOf(server)
	if !slices.Contains(s.registries, registry) {
		return nil, errNotFound
	}
	c, err := s.credential(getenv, cmp.Or(s.audience, registry), now)
	if errors.Is(err, credential.ErrAudience) {
		return nil, fmt.Errorf("%w (or set PULLPASS_AUDIENCE, if Pullpass expects another audience)", err)
	}
	if err != nil {
		return nil, err
	}
	password := c.Password()
	if len(s.push) > 0 {
		if password, err = s.pushCredential(registry, password, stderr); err != nil {
			return nil, err
		}
	}
	return encode(struct{ ServerURL, Username, Secret string }{server, credential.Username, password})
}

// pushCredential exchanges the token for a credential that lives longer. Scopes that are not
// granted are reported and are not an error: the job may push there only from other branches.
func (s settings) pushCredential(registry, token string, stderr io.Writer) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	password, refused, err := newAsker().exchange(ctx, registry, token, s.push)
	if len(refused) > 0 {
		fmt.Fprintf(stderr, "docker-credential-pullpass: PULLPASS_PUSH: not granted: %s (the policy does not give it to this job)\n", strings.Join(refused, " "))
	}
	return password, err
}

// credential is that of the file which was named, else of the CI job, else of
// the pod. The settings decide, and a failure never does: a job that gets
// no token must not become the pod that runs it.
func (s settings) credential(getenv func(string) string, audience string, now time.Time) (credential.Credential, error) {
	if s.tokenFile != "" {
		return credential.FromFile(s.tokenFile, audience, now)
	}
	if job, found := jobOf(getenv); found {
		return job.credential(audience, now)
	}
	return credential.FromFile(credential.DefaultTokenFile, audience, now)
}

// list names the registries without looking at the token: a client that lists them asks
// for each of them next, and gets the error then.
func list(getenv func(string) string) ([]byte, error) {
	s, err := parseSettings(getenv)
	if err != nil {
		return nil, err
	}
	usernames := map[string]string{}
	for _, registry := range s.registries {
		for _, name := range namesOf(registry) {
			usernames[name] = credential.Username
		}
	}
	return encode(usernames)
}

func encode(answer any) ([]byte, error) {
	output, err := json.Marshal(answer)
	return append(output, '\n'), err
}

func readServer(stdin io.Reader) (string, error) {
	input, err := io.ReadAll(io.LimitReader(stdin, maxServerSize+1))
	if err != nil {
		return "", fmt.Errorf("server on standard input: %w", err)
	}
	if len(input) > maxServerSize {
		return "", errServerSize
	}
	server := strings.TrimSpace(string(input))
	if server == "" {
		return "", errNoServer
	}
	return server, nil
}

// registryOf returns HOST[:PORT] of a client's server address: that alone, with a
// repository, or as a URL (https://HOST/v1/). The result counts only if it is
// one of the configured registries to the letter, so an invalid host needs no
// refusal; neither does a URL of plain HTTP, of which "http:" remains.
func registryOf(server string) string {
	host, _, _ := strings.Cut(strings.TrimPrefix(server, "https://"), "/")
	if host == hubIndex {
		return hub
	}
	return host
}

// Docker Hub is docker.io in the names of images, and for podman and skopeo. docker, crane and oras ask
// for the address of its index.
const (
	hub      = "docker.io"
	hubIndex = "index.docker.io"
)

// namesOf returns what clients call a registry.
func namesOf(registry string) []string {
	if registry == hub {
		return []string{hub, "https://" + hubIndex + "/v1/"}
	}
	return []string{registry}
}

// isHost catches URLs, repositories and globs, with which an entry would never
// match.
func isHost(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || 'z' < r) && (r < 'A' || 'Z' < r) && (r < '0' || '9' < r) && !strings.ContainsRune(".-:[]", r)
	})
}
