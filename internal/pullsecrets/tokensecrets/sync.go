package tokensecrets

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// probeInterval is the interval between checks that a Secret is unchanged. Secrets are not watched,
// because the right to watch Secrets includes the right to read all of them.
const probeInterval = 10 * time.Minute

// Words of the admission policy (deploy/kubernetes/pull-secrets-controller.yaml). Only the policy
// can see the Secrets of others.
const (
	optInWords   = "the namespace has not opted in"
	foreignWords = "the Secret belongs to another program"
	staleWords   = "the Secret would have another owner, or outlive it" // no update contains finalizers, so the owner is the cause
	otherWords   = "the Secret is not one of a ServiceAccount"

	quotaWords = "exceeded quota" // of the API server, for a ResourceQuota of the namespace
)

// secrets maintains the Secret of one ServiceAccount at a time. It has no state of its own.
type secrets struct {
	settings
	core     rest.Interface
	metadata metadata.Interface
	now      func() time.Time
	gone     func(keyID string, issued time.Time) bool // reports whether the cluster has stopped publishing the key
	memory   *memory
	counts   *counts
}

// sync does the due work on the Secret of a ServiceAccount and returns its new state. before is the
// known state, zero if it is not known. The error is errForeign, errStale or an error of an API
// server. After an error, nothing is known but the error.
func (s *secrets) sync(ctx context.Context, a account, before held) (held, error) {
	if len(a.secretName()) > maxNameBytes {
		return held{}, errLongName
	}
	known := before
	if known.account != a.uid || !s.now().Before(known.seen.Add(probeInterval)) {
		var err error
		if known, err = s.probe(ctx, a); err != nil {
			return held{}, err
		}
	}
	if !s.isDue(known) {
		return known, nil
	}
	// The watch may be behind. A ServiceAccount that was deleted or recreated meanwhile gets no
	// Secret.
	live, err := s.metadata.Resource(serviceAccounts).Namespace(a.namespace).Get(ctx, a.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return held{}, nil
	case err != nil:
		return held{}, err
	case live.UID != a.uid || live.DeletionTimestamp != nil || live.Labels[Label] != Enabled:
		return held{}, nil
	}
	if known.uid == "" {
		var created corev1.Secret
		if err := s.core.Post().Namespace(a.namespace).Resource("secrets").Param("fieldManager", manager).Body(s.empty(a)).Do(ctx).Into(&created); err != nil {
			return held{}, err
		}
		s.counts.created.Add(1)
		known.uid = created.UID
	}
	return s.renew(ctx, a, known.uid)
}

// put replaces a Secret, or only makes a dry run. An update, unlike a patch, cannot copy stored
// data into the changed fields. So an error cannot disclose stored data, and this controller needs
// no right to patch Secrets.
func (s *secrets) put(ctx context.Context, secret *corev1.Secret, dryRun bool) (*corev1.Secret, error) {
	request := s.core.Put().Namespace(secret.Namespace).Resource("secrets").Name(secret.Name).Param("fieldManager", manager).Body(secret)
	if dryRun {
		request.Param("dryRun", metav1.DryRunAll)
	}
	// Others may give the Secret a time after the year 9999 (managedFields), which the API server
	// accepts, and sends in JSON in a form that is not one of a time.
	request.SetHeader("Accept", runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON)
	var stored corev1.Secret
	err := request.Do(ctx).Into(&stored)
	switch {
	case err == nil:
		return &stored, nil
	case strings.Contains(err.Error(), foreignWords):
		return nil, errForeign
	case strings.Contains(err.Error(), staleWords):
		return nil, errStale
	case isInvalid(err, "type", "immutable"):
		// The API server validates before it asks the policy. This controller writes one type, and
		// makes no Secret immutable.
		return nil, errForeign
	}
	return nil, err
}

// isInvalid reports whether the API server refused a value of one of the fields.
func isInvalid(err error, fields ...string) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	return ok && status.ErrStatus.Reason == metav1.StatusReasonInvalid && status.ErrStatus.Details != nil && slices.ContainsFunc(status.ErrStatus.Details.Causes, func(cause metav1.StatusCause) bool {
		return slices.Contains(fields, cause.Field)
	})
}

// isOfNamespace reports whether users of the namespace alone can cause and correct an error. Such a
// Secret is late for them, and not for the cluster: one user must not hide what is late for all.
func isOfNamespace(err error) bool {
	return errors.Is(err, errForeign) || errors.Is(err, errStale) || errors.Is(err, errLongName) ||
		apierrors.IsForbidden(err) && strings.Contains(err.Error(), quotaWords)
}

// probe asks for the state of the Secret with a dry-run update. The response has the sent data, the
// UID and the version. The memory has the facts about the token.
func (s *secrets) probe(ctx context.Context, a account) (held, error) {
	found, err := s.put(ctx, s.empty(a), true)
	switch {
	case apierrors.IsNotFound(err):
		return held{account: a.uid, seen: s.now()}, nil
	case err != nil:
		return held{}, err
	case found.DeletionTimestamp != nil:
		return held{}, errStale
	}
	h := held{account: a.uid, uid: found.UID, seen: s.now()}
	// A different version means that others have changed the Secret, so it is written again.
	if n := s.memory.find(found.UID); n.version == found.ResourceVersion {
		h.noted = n
	}
	return h, nil
}

// isBounded returns why this controller must not work. It relies on the policy, which alone can
// tell its Secrets from those of others. It sends a request that the policy must refuse, for a
// Secret that is not created in any case.
func (s *secrets) isBounded(ctx context.Context, namespace string) error {
	err := s.core.Post().Namespace(namespace).Resource("secrets").Param("fieldManager", manager).Param("dryRun", metav1.DryRunAll).
		Body(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: NamePrefix, Namespace: namespace}, Type: corev1.SecretTypeOpaque}).Do(ctx).Error()
	switch {
	case err == nil:
		return errors.New("no admission policy bounds this controller: apply the ValidatingAdmissionPolicies and their bindings of deploy/kubernetes/pull-secrets-controller.yaml, for this namespace and ServiceAccount")
	case strings.Contains(err.Error(), optInWords), strings.Contains(err.Error(), otherWords):
		return nil
	}
	return fmt.Errorf("cannot ask whether an admission policy bounds this controller: %w", err)
}

func (s *secrets) isDue(h held) bool {
	return h.uid == "" || h.keyID == "" || !s.now().Before(h.renewAt()) || s.gone(h.keyID, h.issued)
}

// renew puts a new token into the Secret with the UID.
func (s *secrets) renew(ctx context.Context, a account, secret types.UID) (held, error) {
	seconds := int64(lifetime / time.Second)
	request := &authenticationv1.TokenRequest{
		ObjectMeta: metav1.ObjectMeta{UID: a.uid}, // the request fails for a recreated ServiceAccount
		Spec: authenticationv1.TokenRequestSpec{
			Audiences: []string{s.audience}, ExpirationSeconds: &seconds,
			BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Secret", APIVersion: "v1", Name: a.secretName(), UID: secret},
		},
	}
	var answer authenticationv1.TokenRequest
	if err := s.core.Post().Namespace(a.namespace).Resource("serviceaccounts").Name(a.name).SubResource("token").Body(request).Do(ctx).Into(&answer); err != nil {
		return held{}, err
	}
	t, err := readToken(answer.Status.Token, a, secret, s.audience)
	if err != nil {
		return held{}, err
	}
	full, err := s.full(a, secret, t)
	if err != nil {
		return held{}, err
	}
	stored, err := s.put(ctx, full, false)
	if err != nil {
		return held{}, err
	}
	s.counts.renewed.Add(1)
	renewed := held{account: a.uid, uid: secret, seen: s.now(), noted: noted{keyID: t.keyID, issued: t.issued, expires: t.expires, version: stored.ResourceVersion}}
	s.memory.note(secret, renewed.noted)
	if now := s.now(); !now.Before(renewed.renewAt()) || t.issued.After(now.Add(maxSkew)) {
		return renewed, fmt.Errorf("the clock here and that of the API server differ by %s: when tokens are due cannot be known", now.Sub(t.issued).Abs().Round(time.Second))
	}
	return renewed, nil
}

// next returns the time until the next look at the Secret.
func (s *secrets) next(h held) time.Duration {
	return max(min(h.renewAt().Sub(s.now()), h.seen.Add(probeInterval).Sub(s.now())), time.Second)
}

// reason returns the reason of the event about a failure. It is empty if people need not know.
func reason(err error) string {
	switch {
	case errors.Is(err, errForeign):
		return "PullSecretForeign"
	case errors.Is(err, errStale), apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		return "" // temporary
	}
	return "PullSecretFailed"
}

var (
	serviceAccounts = corev1.SchemeGroupVersion.WithResource("serviceaccounts")
	namespaces      = corev1.SchemeGroupVersion.WithResource("namespaces")
)
