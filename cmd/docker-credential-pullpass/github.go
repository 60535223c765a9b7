package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/pullpass/pullpass/credential"
)

const idTokenPermission = "give the job permissions: {id-token: write}"

var errAnswer = errors.New(`answered no JSON object with "value"`)

// Forgejo and Gitea set the variable, too, and have the same token service.
var gitHubActions = system{
	marks: []string{"GITHUB_ACTIONS"}, asks: "GitHub Actions",
	job: func(getenv func(string) string) job { return newGitHub(getenv).job() },
}

// gitHub is the token service of GitHub Actions: a GET with an audience, and a
// token that GitHub gives the job for asking
// (https://docs.github.com/en/actions/reference/security/oidc).
type gitHub struct {
	asker
	getenv func(string) string
}

func newGitHub(getenv func(string) string) gitHub { return gitHub{newAsker(), getenv} }

func (g gitHub) job() job {
	return job{credential.Source{
		Name:     "ACTIONS_ID_TOKEN_REQUEST_URL",
		Audience: "the audience that it is asked for",
		Renewal:  "it answered with one that has ended",
	}, g.token}
}

func (g gitHub) token(ctx context.Context, audience string) (string, error) {
	if g.getenv("ACTIONS_ID_TOKEN_REQUEST_URL") == "" || g.getenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN") == "" {
		return "", fmt.Errorf("%w for this CI job, for it or ACTIONS_ID_TOKEN_REQUEST_TOKEN is not set; %s "+
			"(a pull request of a fork gets none, and a container of the job only the variables that it is given); %s",
			credential.ErrMissing, idTokenPermission, instead)
	}
	service, err := url.Parse(g.getenv("ACTIONS_ID_TOKEN_REQUEST_URL"))
	if err != nil || service.Scheme != "https" || service.Host == "" || service.User != nil {
		return "", errors.New("not an https URL; it has to be as the runner set it")
	}
	query := service.Query()
	query.Set("audience", audience)
	service.RawQuery = query.Encode()

	answered, err := g.ask(ctx, http.MethodGet, service.String(), map[string]string{
		"Authorization": "bearer " + g.getenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN"),
		"Accept":        "application/json",
	}, "")
	switch {
	case err != nil:
		return "", err
	case answered.status == http.StatusUnauthorized, answered.status == http.StatusForbidden:
		return "", fmt.Errorf("answered %d; %s, and note that a job can ask for about six hours", answered.status, idTokenPermission)
	case answered.status != http.StatusOK:
		return "", fmt.Errorf("answered %d", answered.status)
	}
	var answer struct{ Value string }
	if json.Unmarshal(answered.body, &answer) != nil || answer.Value == "" {
		return "", errAnswer
	}
	return answer.Value, nil
}
