package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/pullpass/pullpass/credential"
)

// tries of GitHub's token service. Its own toolkit tries eleven times.
const tries = 3

const idTokenPermission = "give the job permissions: {id-token: write}"

var errAnswer = errors.New(`answered no JSON object with "value"`)

// gitHub is the token service of GitHub Actions: a GET with an audience, and a
// token that GitHub gives the job for asking
// (https://docs.github.com/en/actions/reference/security/oidc).
type gitHub struct {
	getenv func(string) string
	client *http.Client
	pause  time.Duration // before the second try; twice that before the third
}

func newGitHub(getenv func(string) string) gitHub {
	return gitHub{getenv, &http.Client{
		Timeout: 8 * time.Second,
		// Runners that are one's own may have a proxy in their environment.
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment},
		// The token for asking stays with whom the runner named.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, time.Second}
}

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

	for try := 1; ; try++ {
		token, again, err := g.ask(ctx, service.String())
		if !again || try == tries {
			return token, err
		}
		select {
		case <-time.After(time.Duration(try) * g.pause):
		case <-ctx.Done():
			return "", err
		}
	}
}

// ask says whether to ask again if it fails.
func (g gitHub) ask(ctx context.Context, service string) (token string, again bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, service, nil)
	if err != nil {
		return "", false, err
	}
	request.Header.Set("Authorization", "bearer "+g.getenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN"))
	request.Header.Set("Accept", "application/json")
	response, err := g.client.Do(request)
	if err != nil {
		if asked := (*url.Error)(nil); errors.As(err, &asked) {
			err = asked.Err // the address is long, and known
		}
		return "", true, err
	}
	defer func() { _ = response.Body.Close() }()
	switch code := response.StatusCode; {
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return "", false, fmt.Errorf("answered %d; %s, and note that a job can ask for about six hours", code, idTokenPermission)
	case code != http.StatusOK:
		return "", code >= 500 || code == http.StatusTooManyRequests, fmt.Errorf("answered %d", code)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerSize+1))
	if err != nil {
		return "", true, err
	}
	if len(body) > maxAnswerSize {
		return "", false, errAnswerSize
	}
	var answer struct{ Value string }
	if json.Unmarshal(body, &answer) != nil || answer.Value == "" {
		return "", false, errAnswer
	}
	return answer.Value, false, nil
}
