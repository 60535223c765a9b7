package aws

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins/loginstest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const (
	roleARN = "arn:aws:iam::123456789012:role/pullpass"
	region  = "eu-central-1"
)

// cloud stands in for STS (query protocol, XML) and ECR (JSON 1.1), as the API
// references of both show them.
type cloud struct {
	t *testing.T
	// subject verifies an assertion.
	subject func(raw string) string

	mu       sync.Mutex
	sessions []string // names of those that were assumed
	logins   int
	endless  bool
}

func (c *cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		c.t.Error(err)
	}
	if r.Header.Get("X-Amz-Target") == "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken" {
		c.login(w, r, body)
		return
	}
	if c.endless {
		for range 1 << 10 {
			if _, err := w.Write(bytes.Repeat([]byte(" "), 4<<10)); err != nil {
				return
			}
		}
	}
	form, err := url.ParseQuery(string(body))
	if err != nil || form.Get("Action") != "AssumeRoleWithWebIdentity" || form.Get("Version") != "2011-06-15" || r.Header.Get("Authorization") != "" {
		c.t.Errorf("%s %s %v: %v", r.Method, r.URL, r.Header, form)
	}
	subject := c.subject(form.Get("WebIdentityToken"))
	w.Header().Set("Content-Type", "text/xml")
	if form.Get("RoleArn") != roleARN || !strings.HasPrefix(subject, "prod-eu/") {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type><Code>AccessDenied</Code>`+
			`<Message>Not authorized to perform sts:AssumeRoleWithWebIdentity</Message></Error><RequestId>r</RequestId></ErrorResponse>`)
		return
	}
	c.sessions = append(c.sessions, form.Get("RoleSessionName"))
	fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult>`+
		`<SubjectFromWebIdentityToken>%s</SubjectFromWebIdentityToken><Credentials><SessionToken>session-%s</SessionToken><SecretAccessKey>secret</SecretAccessKey>`+
		`<Expiration>%s</Expiration><AccessKeyId>ASIAEXAMPLE</AccessKeyId></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`,
		subject, form.Get("RoleSessionName"), time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
}

func (c *cloud) login(w http.ResponseWriter, r *http.Request, body []byte) {
	if r.Header.Get("Content-Type") != "application/x-amz-json-1.1" || string(body) != "{}" ||
		!strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential=ASIAEXAMPLE/") || !strings.Contains(r.Header.Get("Authorization"), "/"+region+"/ecr/aws4_request") {
		c.t.Errorf("%s %s %v: %s", r.Method, r.URL, r.Header, body)
	}
	c.logins++
	password := fmt.Sprintf("AWS:password-%d-%s", c.logins, r.Header.Get("X-Amz-Security-Token"))
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	if err := json.NewEncoder(w).Encode(map[string]any{"authorizationData": []map[string]any{{
		"authorizationToken": base64.StdEncoding.EncodeToString([]byte(password)),
		"expiresAt":          float64(time.Now().Add(12*time.Hour).UnixMilli()) / 1000,
		"proxyEndpoint":      "https://123456789012.dkr.ecr.eu-central-1.amazonaws.com",
	}}}); err != nil {
		c.t.Error(err)
	}
}

func TestACallerAssumesTheRole(t *testing.T) {
	t.Parallel()
	issuer := loginstest.NewIssuer(t)
	c := &cloud{t: t, subject: func(raw string) string { return issuer.Subject(t, "sts.amazonaws.com", raw) }}
	logins, err := (&Credential{Identity: logins.Caller, Region: region, RoleARN: roleARN}).open(logins.Service{Upstream: "ecr", Assertions: issuer}, loginstest.StandIn(t, c))
	testkit.Must(t, err)

	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			login := loginstest.Expect(t, logins, loginstest.Caller, "AWS", "password-1-session-prod-eu.payments.api")
			loginstest.Until(t, login, time.Hour) // of the role's session
		})
	}
	all.Wait()
	loginstest.Expect(t, logins, "prod-eu/payments/worker", "AWS", "password-2-session-prod-eu.payments.worker")
	if _, err := logins.Login(t.Context(), "stage/payments/api"); err == nil || !strings.Contains(err.Error(), "AccessDenied: Not authorized to perform sts:AssumeRoleWithWebIdentity") {
		t.Errorf("error %v, want what STS says", err)
	}
	if _, err := logins.Login(t.Context(), ""); !errors.Is(err, upstream.ErrNoCaller) {
		t.Errorf("error %v of an anonymous caller", err)
	}
	if len(c.sessions) != 2 || c.logins != 2 {
		t.Errorf("%q were assumed, and %d logins made", c.sessions, c.logins)
	}
}

// The gateway's own role is found as on a node of EKS, by IRSA, here behind a proxy with its own
// CA.
func TestTheGatewayHasARoleOfItsOwn(t *testing.T) {
	issuer := loginstest.NewIssuer(t)
	token := testkit.Value(issuer.Sign("prod-eu/pullpass/gateway", "irsa"))(t)
	c := &cloud{t: t, subject: func(raw string) string { return issuer.Subject(t, "irsa", raw) }}
	server := httptest.NewTLSServer(c)
	t.Cleanup(server.Close)
	dir, endpoint := t.TempDir(), server.URL
	testkit.Write(t, dir, "ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	testkit.Write(t, dir, "token", token.Reveal())
	for name, value := range map[string]string{
		"AWS_ROLE_ARN": roleARN, "AWS_ROLE_SESSION_NAME": "gateway", "AWS_WEB_IDENTITY_TOKEN_FILE": filepath.Join(dir, "token"),
		"AWS_ENDPOINT_URL_STS": endpoint, "AWS_ENDPOINT_URL_ECR": endpoint, "AWS_CONFIG_FILE": filepath.Join(dir, "none"), "AWS_SHARED_CREDENTIALS_FILE": filepath.Join(dir, "none"),
		"AWS_EC2_METADATA_DISABLED": "true", "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_PROFILE": "", "AWS_CA_BUNDLE": filepath.Join(dir, "ca.crt"),
	} {
		t.Setenv(name, value)
	}
	service := logins.Service{Upstream: "ecr"}
	logins := testkit.Value((&Credential{Region: region}).Open(service))(t)
	for _, caller := range []string{loginstest.Caller, "prod-eu/payments/worker", ""} {
		login := loginstest.Expect(t, logins, caller, "AWS", "password-1-session-gateway")
		loginstest.Until(t, login, 12*time.Hour)
	}
	c.endless = true
	logins = testkit.Value((&Credential{Region: region}).Open(service))(t)
	if _, err := logins.Login(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "the answer has more than 262144 bytes") {
		t.Errorf("error %v of an answer without end", err)
	}
}

// An identity of the gateway never replaces that of a caller.
func TestACallerIsNeverTheGateway(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIAGATEWAY")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	issuer := loginstest.NewIssuer(t)
	asked := 0
	logins := testkit.Value((&Credential{Identity: logins.Caller, Region: region, RoleARN: roleARN}).open(logins.Service{Upstream: "ecr", Assertions: issuer}, loginstest.StandIn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if r.Header.Get("Authorization") != "" {
			t.Errorf("asked as %s", r.Header.Get("Authorization"))
		}
		w.WriteHeader(http.StatusForbidden)
	}))))(t)
	if _, err := logins.Login(t.Context(), loginstest.Caller); err == nil || asked != 1 {
		t.Errorf("error %v after %d requests", err, asked)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	issuer := loginstest.NewIssuer(t)
	loginstest.Faults(t, func(t *testing.T, standIn http.Handler) upstream.Logins {
		logins, err := (&Credential{Identity: logins.Caller, Region: region, RoleARN: roleARN}).open(logins.Service{Upstream: "ecr", Assertions: issuer}, loginstest.StandIn(t, standIn))
		testkit.Must(t, err)
		return logins
	})
}

// Responses of ECR are checked as well as those of STS.
func TestFaultsOfECR(t *testing.T) {
	t.Parallel()
	issuer := loginstest.NewIssuer(t)
	for want, answer := range map[string]string{
		"has no authorization":               `{"authorizationData": []}`,
		"ECR has no authorization":           `{"authorizationData": [{}]}`,
		"not a user name and a password":     `{"authorizationData": [{"authorizationToken": "c2VjcmV0"}]}`,
		"a user name and a password":         `{"authorizationData": [{"authorizationToken": "!!!"}]}`,
		"is not a user name and a password":  `{"authorizationData": [{"authorizationToken": "QVdTOnNl!"}]}`,
		"ECR is not a user name":             `{"authorizationData": [{"authorizationToken": "OnNlY3JldA=="}]}`,
		"the answer has none":                `{"authorizationData": [{"authorizationToken": "QVdTOg=="}]}`,
		"ended at 2001":                      `{"authorizationData": [{"authorizationToken": "QVdTOnNlY3JldA==", "expiresAt": 1000000000}]}`,
		"operation error ECR: GetAuthorizat": `<html>`,
	} {
		c := &cloud{t: t, subject: func(raw string) string { return issuer.Subject(t, Audience, raw) }}
		logins := testkit.Value((&Credential{Identity: logins.Caller, Region: region, RoleARN: roleARN}).open(logins.Service{Upstream: "ecr", Assertions: issuer}, loginstest.StandIn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Amz-Target") == "" {
				c.ServeHTTP(w, r)
				return
			}
			_, _ = io.WriteString(w, answer)
		}))))(t)
		if _, err := logins.Login(t.Context(), loginstest.Caller); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", answer, err, want)
		}
	}
}

func TestASessionIsNamedForTheCaller(t *testing.T) {
	t.Parallel()
	long := "prod-eu/" + strings.Repeat("n", 63) + "/" + strings.Repeat("s", 100)
	seen := map[string]bool{}
	for caller, want := range map[string]string{
		"prod-eu/payments/api":                 "prod-eu.payments.api",
		"prod-eu/payments/api.v1":              "prod-eu.payments.api.v1",
		"c/" + strings.Repeat("n", 60) + "/a":  "c." + strings.Repeat("n", 60) + ".a",
		"c/" + strings.Repeat("n", 60) + "/ab": "c." + strings.Repeat("n", 45) + "-",
		long + "1":                             "prod-eu." + strings.Repeat("n", 39) + "-",
		long + "2":                             "prod-eu." + strings.Repeat("n", 39) + "-",
	} {
		name := sessionName(caller)
		if !strings.HasPrefix(name, want) || len(name) > 64 || seen[name] {
			t.Errorf("the session of %s is %s, want %s", caller, name, want)
		}
		seen[name] = true
	}
}

func TestARoleTakesAssertions(t *testing.T) {
	t.Parallel()
	if _, err := (&Credential{Identity: logins.Caller, Region: region, RoleARN: roleARN}).Open(logins.Service{}); err == nil || !strings.Contains(err.Error(), "takes assertions") {
		t.Errorf("error %v", err)
	}
}

// A login must not outlive the session of the role, also if ECR names no end.
func TestALoginEndsWithTheSession(t *testing.T) {
	t.Parallel()
	issuer := loginstest.NewIssuer(t)
	c := &cloud{t: t, subject: func(raw string) string { return issuer.Subject(t, Audience, raw) }}
	logins := testkit.Value((&Credential{Identity: logins.Caller, Region: region, RoleARN: roleARN}).open(logins.Service{Upstream: "ecr", Assertions: issuer}, loginstest.StandIn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Amz-Target") == "" {
			c.ServeHTTP(w, r)
			return
		}
		_, _ = io.WriteString(w, `{"authorizationData": [{"authorizationToken": "QVdTOnNlY3JldA=="}]}`)
	}))))(t)
	loginstest.Until(t, loginstest.Expect(t, logins, loginstest.Caller, "AWS", "secret"), time.Hour)
}

func TestAnswersOfSTSWithoutCredentials(t *testing.T) {
	t.Parallel()
	issuer := loginstest.NewIssuer(t)
	fields := []string{"<SessionToken>a</SessionToken>", "<SecretAccessKey>a</SecretAccessKey>", "<Expiration>2100-01-01T00:00:00Z</Expiration>", "<AccessKeyId>a</AccessKeyId>"}
	for _, missing := range fields {
		answer := `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult><Credentials>` +
			strings.Replace(strings.Join(fields, ""), missing, "", 1) + `</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`
		logins := testkit.Value((&Credential{Identity: logins.Caller, Region: region, RoleARN: roleARN}).open(logins.Service{Upstream: "ecr", Assertions: issuer},
			loginstest.StandIn(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) }))))(t)
		if _, err := logins.Login(t.Context(), loginstest.Caller); err == nil || !strings.Contains(err.Error(), "the answer of STS has no credentials") {
			t.Errorf("without %s: error %v", missing, err)
		}
	}
}

// The environment is the gateway's: an invalid one ends nothing for callers.
func TestOnlyTheGatewayReadsTheEnvironment(t *testing.T) {
	dir := t.TempDir()
	for name, value := range map[string]string{"AWS_PROFILE": "missing", "AWS_CONFIG_FILE": filepath.Join(dir, "none"), "AWS_SHARED_CREDENTIALS_FILE": filepath.Join(dir, "none")} {
		t.Setenv(name, value)
	}
	if _, err := (&Credential{Region: region}).Open(logins.Service{Upstream: "ecr"}); err == nil || !strings.Contains(err.Error(), "upstream ecr: ") {
		t.Errorf("the gateway's own: error %v", err)
	}
	if _, err := (&Credential{Identity: logins.Caller, Region: region, RoleARN: roleARN}).Open(logins.Service{Upstream: "ecr", Assertions: loginstest.NewIssuer(t)}); err != nil {
		t.Errorf("a caller's: error %v", err)
	}
}

// The request gets no answer, so that none is capped.
func TestECRIsNotReached(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_PROFILE": "", "AWS_CA_BUNDLE": ""} {
		t.Setenv(name, value)
	}
	logins := testkit.Value((&Credential{Region: region}).open(logins.Service{Upstream: "ecr"}, server.URL))(t)
	if _, err := logins.Login(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("error %v", err)
	}
}

func TestNoLoginWithoutAnAssertion(t *testing.T) {
	t.Parallel()
	loginstest.WithoutAssertion(t, &Credential{Identity: logins.Caller, Region: region, RoleARN: roleARN})
}

func TestFields(t *testing.T) {
	t.Parallel()
	for credential, want := range map[Credential]string{
		{Identity: logins.Caller, Region: region, RoleARN: roleARN}:                              "",
		{Identity: logins.Gateway, Region: region}:                                               "",
		{Identity: logins.Caller, Region: region, RoleARN: "arn:aws:iam::123456789012"}:          "roleARN is not the ARN of a role",
		{Identity: logins.Caller, Region: region, RoleARN: "x:aws:iam::123456789012:role/p"}:     "roleARN is not the ARN of a role",
		{Identity: logins.Caller, Region: region, RoleARN: "arn:aws:sts::123456789012:role/p"}:   "roleARN is not the ARN of a role",
		{Identity: logins.Caller, Region: region, RoleARN: "arn:aws:iam::123456789012:user/p"}:   "roleARN is not the ARN of a role",
		{Identity: logins.Caller, Region: region, RoleARN: "arn:aws:iam::acme:role/p"}:           "roleARN is not the ARN of a role",
		{Identity: logins.Caller, Region: region, RoleARN: "arn:aws:iam::123456789012:role/p q"}: "roleARN is not the ARN of a role",
		{Identity: logins.Gateway}:                   "region is missing",
		{Identity: logins.Gateway, Region: "Europe"}: "region is not a region",
	} {
		if got := loginstest.FaultsOf(&credential); (got == "") != (want == "") || !strings.HasPrefix(got, want) || strings.Contains(got, "\n") {
			t.Errorf("%+v: %q, want %q", credential, got, want)
		}
	}
}

func TestTheHostNamesTheRegion(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"https://1.dkr.ecr.us-east-1.amazonaws.com":      "us-east-1",
		"https://1.dkr.ecr-fips.us-east-1.amazonaws.com": "us-east-1",
		"https://1.dkr-ecr.us-east-1.on.aws":             "us-east-1",
		"https://1.dkr-ecr-fips.us-east-1.on.aws":        "us-east-1",
		"https://1.dkr.ecr.us-east-1":                    "",
		"https://1.dkr.ecr":                              "",
		"https://1.dkr-ecr.us-east-1":                    "",
		"https://1.dkr-ecr":                              "",
		"https://1.dkr.s3.us-east-1.amazonaws.com":       "",
		"https://1.other.ecr.us-east-1.amazonaws.com":    "",
		"https://1.s3.us-east-1.on.aws":                  "",
		"https://[":                                      "",
	} {
		if got := regionOf(url); got != want {
			t.Errorf("the region of %s is %q, want %q", url, got, want)
		}
	}
}
