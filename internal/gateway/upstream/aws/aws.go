// Package aws gets logins for Amazon ECR: by the IAM role of the gateway's own pod or
// machine, or by a role that the caller assumes with an assertion.
//
// The SDK finds the gateway's role as every program on AWS does: environment, web
// identity (IRSA), pod identity, instance role.
package aws

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/ecr"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go/logging"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

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

// Config configures the logins of one registry.
type Config struct {
	Upstream   string // its name, for messages
	Region     string
	RoleARN    string            // role that callers assume; empty: the gateway's own identity requests all logins
	Assertions logins.Assertions // with RoleARN
	Now        func() time.Time  // nil: time.Now
	Logger     *slog.Logger      // nil: silent

	endpoint string // of STS and ECR, in tests
}

type asker struct {
	cfg Config
	aws aws.Config
}

// New finds the gateway's own identity if it is needed. It uses no network.
func New(ctx context.Context, cfg Config) (*logins.Remembered, error) {
	a := &asker{cfg: cfg}
	switch {
	case cfg.RoleARN == "":
		var err error
		a.aws, err = config.LoadDefaultConfig(ctx, config.WithRegion(cfg.Region), config.WithRetryMaxAttempts(attempts), config.WithLogger(logging.Nop{}),
			// Keep the SDK's own client, because only that one uses AWS_CA_BUNDLE.
			config.WithAPIOptions([]func(*middleware.Stack) error{capAnswers}))
		if err != nil {
			return nil, fmt.Errorf("upstream %s: %w", cfg.Upstream, logins.Failure(err))
		}
	case cfg.Assertions == nil:
		return nil, fmt.Errorf("upstream %s: to assume a role takes assertions", cfg.Upstream)
	default:
		// Use nothing from the environment: an identity of the gateway must not replace that of a
		// caller.
		a.aws = aws.Config{Region: cfg.Region, HTTPClient: logins.NewClient(nil), RetryMaxAttempts: attempts, Credentials: aws.AnonymousCredentials{}}
	}
	if cfg.endpoint != "" {
		a.aws.BaseEndpoint = aws.String(cfg.endpoint)
	}
	return logins.New(logins.Config{Upstream: cfg.Upstream, Ask: a.ask, PerCaller: cfg.RoleARN != "", Now: cfg.Now, Logger: cfg.Logger}), nil
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
	if a.cfg.RoleARN == "" {
		return login(ctx, a.aws, time.Time{})
	}
	assertion, err := a.cfg.Assertions.Sign(caller, Audience)
	if err != nil {
		return upstream.Login{}, err
	}
	answer, err := sts.NewFromConfig(a.aws).AssumeRoleWithWebIdentity(ctx, &sts.AssumeRoleWithWebIdentityInput{
		RoleArn:          aws.String(a.cfg.RoleARN),
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
