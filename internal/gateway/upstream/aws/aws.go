// Package aws gets logins for Amazon ECR: by the IAM role of the gateway's own pod or
// machine, or by a role that the caller assumes with an assertion.
//
// The SDK finds the gateway's role as every program on AWS does: environment, web
// identity (IRSA), pod identity, instance role.
package aws

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/ecr"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go/logging"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins"
	"github.com/pullpass/pullpass/internal/registryauth"
)

const (
	// Audience is the audience of assertions, as AWS documents it for web identities.
	Audience = "sts.amazonaws.com"

	// attempts is the number of attempts of a request, within the time limit of Ask.
	attempts = 2

	// The session of an assumed role is named after the caller, within the limits of AWS.
	maxSessionName = 64
	hashedBytes    = 8
)

// Credential is for Amazon ECR.
type Credential struct {
	Identity logins.Identity `json:"identity"` // whose IAM role asks: the gateway's own, or roleARN for the caller
	Region   string          `json:"region"`   // of the registry; empty: as its host says
	RoleARN  string          `json:"roleARN"`  // identity caller: the role whose trust policy knows the callers
}

// SetDefaults leaves the region empty: its default depends on the upstream.
func (c *Credential) SetDefaults() { *c = Credential{Identity: logins.Gateway} }

func (c *Credential) OfCaller() bool { return c.Identity == logins.Caller }

func (c *Credential) Complete(url string) { c.Region = cmp.Or(c.Region, regionOf(url)) }

// regionOf returns the region in the host of a registry of ECR, or an empty text:
// ACCOUNT.dkr.ecr.REGION.amazonaws.com, or ACCOUNT.dkr-ecr.REGION.on.aws.
func regionOf(upstream string) string {
	u, err := url.Parse(upstream)
	if err != nil {
		return ""
	}
	labels := strings.Split(u.Hostname(), ".")
	switch {
	case len(labels) > 4 && labels[1] == "dkr" && (labels[2] == "ecr" || labels[2] == "ecr-fips"):
		return labels[3]
	case len(labels) > 3 && (labels[1] == "dkr-ecr" || labels[1] == "dkr-ecr-fips"):
		return labels[2]
	}
	return ""
}

func (c *Credential) Validate(v logins.Validator) {
	switch {
	case c.Region == "":
		v.Fault("region", "is missing; the upstream's host does not name it, so write the registry's: eu-central-1")
	case !names.IsLabel(c.Region):
		v.Fault("region", "is not a region (%s); write the registry's: eu-central-1", term.QuoteValue(c.Region))
	}
	const example = "arn:aws:iam::123456789012:role/pullpass"
	c.Identity.Requires(v, "roleARN", c.RoleARN, "write the role that callers assume: "+example)
	if c.RoleARN == "" {
		return
	}
	// arn:PARTITION:iam::ACCOUNT:role/PATH
	if parts := strings.SplitN(c.RoleARN, ":", 6); len(parts) != 6 || parts[0] != "arn" || parts[2] != "iam" || !strings.HasPrefix(parts[5], "role/") ||
		!names.IsDecimal(parts[4]) || !names.IsVisible(c.RoleARN) {
		v.Fault("roleARN", "is not the ARN of a role (%s); write it as IAM shows it: %s", term.QuoteValue(c.RoleARN), example)
	}
}

// Open finds the gateway's own identity if it is needed.
func (c *Credential) Open(s logins.Service) (upstream.Logins, error) { return c.open(s, "") }

// open uses another endpoint for STS and ECR, in tests.
func (c *Credential) open(s logins.Service, endpoint string) (upstream.Logins, error) {
	a := &asker{Credential: c, Service: s}
	if c.OfCaller() {
		// Use nothing from the environment: an identity of the gateway must not replace that of a
		// caller.
		a.aws = aws.Config{Region: c.Region, HTTPClient: logins.NewClient(nil), RetryMaxAttempts: attempts, Credentials: aws.AnonymousCredentials{}}
	} else {
		var err error
		a.aws, err = config.LoadDefaultConfig(context.Background(), config.WithRegion(c.Region), config.WithRetryMaxAttempts(attempts), config.WithLogger(logging.Nop{}),
			// Keep the SDK's own client, because only that one uses AWS_CA_BUNDLE.
			config.WithAPIOptions([]func(*middleware.Stack) error{capAnswers}))
		if err != nil {
			return nil, fmt.Errorf("upstream %s: %w", s.Upstream, logins.Failure(err))
		}
	}
	if endpoint != "" {
		a.aws.BaseEndpoint = aws.String(endpoint)
	}
	return s.Remember(c.OfCaller(), a.ask)
}

type asker struct {
	*Credential
	logins.Service
	aws aws.Config
}

// capAnswers bounds the size of responses.
func capAnswers(stack *middleware.Stack) error {
	return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("Capped",
		func(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (middleware.DeserializeOutput, middleware.Metadata, error) {
			out, metadata, err := next.HandleDeserialize(ctx, in)
			if response, ok := out.RawResponse.(*smithyhttp.Response); ok && response.Body != nil {
				response.Body = logins.Capped(response.Body)
			}
			return out, metadata, err
		}), middleware.After)
}

func (a *asker) ask(ctx context.Context, caller string) (upstream.Login, error) {
	if !a.OfCaller() {
		return login(ctx, a.aws, time.Time{})
	}
	assertion, err := a.Assertions.Sign(caller, Audience)
	if err != nil {
		return upstream.Login{}, err
	}
	answer, err := sts.NewFromConfig(a.aws).AssumeRoleWithWebIdentity(ctx, &sts.AssumeRoleWithWebIdentityInput{
		RoleArn:          aws.String(a.RoleARN),
		RoleSessionName:  aws.String(sessionName(caller)),
		WebIdentityToken: aws.String(assertion.Reveal()),
	})
	if err != nil {
		return upstream.Login{}, logins.Failure(err, assertion)
	}
	role := answer.Credentials
	if role == nil || role.AccessKeyId == nil || role.SecretAccessKey == nil || role.SessionToken == nil || role.Expiration == nil {
		return upstream.Login{}, errors.New("the answer of STS has no credentials")
	}
	asRole := a.aws
	asRole.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: *role.AccessKeyId, SecretAccessKey: *role.SecretAccessKey, SessionToken: *role.SessionToken}, nil
	})
	return login(ctx, asRole, *role.Expiration)
}

// login requests an ECR token with the identity in cfg. The token is valid for twelve hours, even
// if the role's session ends before. notAfter is the time when the role must be assumed again.
func login(ctx context.Context, cfg aws.Config, notAfter time.Time) (upstream.Login, error) {
	answer, err := ecr.NewFromConfig(cfg).GetAuthorizationToken(ctx, &ecr.GetAuthorizationTokenInput{})
	if err != nil {
		return upstream.Login{}, logins.Failure(err)
	}
	if len(answer.AuthorizationData) == 0 || answer.AuthorizationData[0].AuthorizationToken == nil {
		return upstream.Login{}, errors.New("the answer of ECR has no authorization")
	}
	data := answer.AuthorizationData[0]
	decoded, err := base64.StdEncoding.DecodeString(*data.AuthorizationToken)
	username, password, found := strings.Cut(string(decoded), ":")
	if err != nil || !found || username == "" {
		return upstream.Login{}, errors.New("the authorization in the answer of ECR is not a user name and a password")
	}
	got := upstream.Login{Username: username, Password: registryauth.NewSecret(password)}
	if data.ExpiresAt != nil {
		got.Expiry = *data.ExpiresAt
	}
	if !notAfter.IsZero() && (got.Expiry.IsZero() || notAfter.Before(got.Expiry)) {
		got.Expiry = notAfter
	}
	return got, nil
}

// sessionName returns CLUSTER.NAMESPACE.SERVICEACCOUNT. It is unique, because only the last part
// may contain a dot. A long name is cut and ends with a hash of the whole.
func sessionName(caller string) string {
	name := strings.ReplaceAll(caller, "/", ".")
	if len(name) <= maxSessionName {
		return name
	}
	hash := sha256.Sum256([]byte(caller))
	return name[:maxSessionName-1-2*hashedBytes] + "-" + hex.EncodeToString(hash[:hashedBytes])
}
