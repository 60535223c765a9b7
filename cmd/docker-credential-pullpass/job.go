package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/credential"
)

// askTimeout bounds all requests for one token. Clients wait for a helper without
// a timeout.
const askTimeout = 30 * time.Second

// instead tells how to use the token of the pod that runs the job. It is never the
// default: anyone who can start jobs on a runner could act as the runner by not giving
// the job a token of its own.
const instead = "to answer with the token of the runner's pod, set PULLPASS_TOKEN_FILE"

// job is the CI job that the helper runs in, and its way to an OpenID token.
type job struct {
	from  credential.Source
	token func(ctx context.Context, audience string) (string, error)
}

// system is a CI system.
type system struct {
	marks []string // variables, of which its jobs have one
	asks  string   // the program or service that gives a token
	holds string   // or the variable that has it
	job   func(getenv func(string) string) job
}

// systems has a line for each CI system, in the order of their marks.
var systems = []system{
	gitLab,
	gitHubActions,
	buildkite,
	circleCI,
	bitbucket,
	terraform,
}

// jobOf detects the CI system by a variable that it sets in every job. The first
// variable that is set counts. PULLPASS_ID_TOKEN comes first, because it is set for
// this program.
func jobOf(getenv func(string) string) (j job, found bool) {
	for _, s := range systems {
		if slices.ContainsFunc(s.marks, func(mark string) bool { return getenv(mark) != "" }) {
			return s.job(getenv), true
		}
	}
	return job{}, false
}

// listed returns what --help lists of the systems.
func listed(text func(system) string) string {
	var texts []string
	for _, s := range systems {
		if text(s) != "" {
			texts = append(texts, text(s))
		}
	}
	last := len(texts) - 1
	return strings.Join(texts[:last], ", ") + " or " + texts[last]
}

// credential gets the job's token and looks at it as at a pod's.
func (j job) credential(audience string, now time.Time) (credential.Credential, error) {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	token, err := j.token(ctx, audience)
	if err != nil {
		return credential.Credential{}, fmt.Errorf("%s: %w", j.from.Name, err)
	}
	return credential.FromToken(token, j.from, audience, now)
}

// variable is for systems that put the token into the job's environment. The
// remedy has a place for the audience.
func variable(getenv func(string) string, name, remedy string, from credential.Source) job {
	from.Name = name
	return job{from, func(_ context.Context, audience string) (string, error) {
		if token := getenv(name); token != "" {
			return token, nil
		}
		return "", fmt.Errorf("%w in this CI job; "+remedy+"; %s", credential.ErrMissing, audience, instead)
	}}
}
