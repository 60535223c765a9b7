// Command docker-credential-pullpass is a docker credential helper: registry
// clients in a pod or a CI job start it, and it answers with the pod's own
// ServiceAccount token, or the job's own OpenID token, as the password for the
// registries that are named to it. Pullpass judges that password later, at the
// registry's token endpoint.
//
// A pod's token comes from a projected volume and is read at every call, so a
// rotated one is found without anybody's doing. A job's comes from its CI system
// and is asked for at every call, because it lives for minutes where builds take
// hours. A client that keeps the answer for minutes, as BuildKit does, needs one that
// lives longer than such a token: the helper exchanges the token for it, if
// PULLPASS_PUSH says what for. Package credential says what is wrong with a token;
// what is here is the protocol of github.com/docker/docker-credential-helpers, the
// ways to a job's token, the exchange, and the decision who gets what comes of it:
// servers in PULLPASS_REGISTRIES and no others.
//
// That list is needed because a client does not say why it asks. With credHelpers
// in its config.json it asks for one registry, with credsStore for every server
// it meets, and both look the same from here.
//
// It has no state. It sends requests only to GitHub's token service in a job of GitHub's,
// and with PULLPASS_PUSH to the registry and its token endpoint. It prints the token
// nowhere but in the answer. The standard library is all it imports besides package
// credential, because clients start it for every image and it goes into images of
// others.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/pullpass/pullpass/credential"
)

// version is set by the linker (-X main.version).
var version = "devel"

var help = `docker-credential-pullpass answers registry clients with the token of the pod's
ServiceAccount, or of the CI job, as the password (docker credential helper protocol).

Clients start it as their config.json says: {"credHelpers": {"REGISTRY": "pullpass"}}

  get         read a server from standard input, print its credential
  list        print the registries that have one
  configure   add the registries to credHelpers of the client's config.json, which is
              in the directory DOCKER_CONFIG; default: $HOME/.docker
  version     print the version
  --help      print this text

  PULLPASS_REGISTRIES   required: the registries that may get the token, as their
                        images name them, separated by commas: HOST[:PORT],HOST[:PORT]
  PULLPASS_AUDIENCE     audience that the token must have; default: the registry's name
  PULLPASS_PUSH         what the job pushes and pulls, separated by spaces: REPOSITORY or
                        REPOSITORY:pull,push; the answer is then no token, but a credential
                        for that, which Pullpass gives for it and which lives for 15 minutes

The token is of the first of these that there is, and of no other if that fails:

  PULLPASS_TOKEN_FILE   the file with that name
  PULLPASS_ID_TOKEN     the variable, as id_tokens of GitLab's jobs sets it
  a CI job              asked of ` + listed(func(s system) string { return s.asks }) + `; in
                        ` + listed(func(s system) string { return s.holds }) + `
  otherwise             the file ` + credential.DefaultTokenFile + `

store and erase are refused: there is nothing to log in to or to log out of.

Exit codes: 0 answered, 1 refused (the reason is on standard output, where clients
look for it, and on standard error).
`

func main() {
	os.Exit(run(os.Args[1:], os.Getenv, time.Now(), os.Stdin, os.Stdout, os.Stderr))
}

// run is the whole program; it returns the exit code.
func run(args []string, getenv func(string) string, now time.Time, stdin io.Reader, stdout, stderr io.Writer) int {
	output, err := answer(args, getenv, now, stdin, stderr)
	switch {
	case err == nil:
		if _, err = stdout.Write(output); err == nil {
			return 0
		}
		fmt.Fprintln(stderr, "docker-credential-pullpass: writing to standard output:", err)
	case errors.Is(err, errNotFound), errors.Is(err, errNoServer):
		fmt.Fprintln(stdout, err)
	default:
		// Clients read standard output and pass standard error on. docker pull and
		// docker manifest drop what they read (ResolveAuthConfig of docker/cli) and
		// go on without a credential: there the second line is all that people see.
		fmt.Fprintln(stdout, "docker-credential-pullpass:", err)
		fmt.Fprintln(stderr, "docker-credential-pullpass:", err)
	}
	return 1
}

func answer(args []string, getenv func(string) string, now time.Time, stdin io.Reader, stderr io.Writer) ([]byte, error) {
	if len(args) != 1 {
		return nil, errArguments
	}
	switch args[0] {
	case "get":
		return get(getenv, now, stdin, stderr)
	case "list":
		return list(getenv)
	case "configure":
		return configure(getenv)
	case "store":
		return nil, errStore
	case "erase":
		return nil, errErase
	case "version":
		return []byte("docker-credential-pullpass " + version + "\n"), nil
	case "--help":
		return []byte(help), nil
	}
	return nil, errArguments
}
