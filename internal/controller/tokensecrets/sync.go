package tokensecrets

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// probeInterval is how often the API server is asked whether a Secret is still as it was
// left: they are not watched, because whoever may watch Secrets may read all of them.
const probeInterval = 10 * time.Minute

// foreignWords are those of the admission policy when it does not show a Secret that is not
// ours (deploy/kubernetes/pull-secrets-controller.yaml).
const foreignWords = "the Secret is somebody else's"

// secrets looks after the Secret of one ServiceAccount at a time. It keeps nothing itself.
type secrets struct {
	settings
	core     rest.Interface
	metadata metadata.Interface
	now      func() time.Time
	gone     func(keyID string, issued time.Time) bool // does the cluster not publish the key any more
	counts   *counts
}

// sync does what is due for the Secret of a ServiceAccount, and returns what is known of it
// then. before is what was known; zero: nothing is. The error is errForeign or errStale, or
// that of an API server; then nothing is known but what it says.
func (s *secrets) sync(ctx context.Context, a account, before held) (held, error) {
	if len(a.secretName()) > maxNameBytes {
		return held{}, fmt.Errorf("the name of the ServiceAccount is longer than %d characters, which leaves none for that of a Secret", maxNameBytes-len(NamePrefix))
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
	// The watch may be behind: nothing is made for a ServiceAccount that was deleted, or was
	// made again, meanwhile.
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

// probe asks what is there with a patch that changes nothing and is not carried out. The
// answer has the metadata alone.
func (s *secrets) probe(ctx context.Context, a account) (held, error) {
	found, err := s.metadata.Resource(secretsResource).Namespace(a.namespace).Patch(ctx, a.secretName(), types.MergePatchType, []byte(`{}`),
		metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: manager})
	switch {
	case apierrors.IsNotFound(err):
		return held{account: a.uid, seen: s.now()}, nil
	case err != nil && strings.Contains(err.Error(), foreignWords):
		return held{}, errForeign
	case err != nil:
		return held{}, err
	}
	return heldBy(a, found, s.now())
}

func (s *secrets) isDue(h held) bool {
	return h.uid == "" || h.keyID == "" || h.content != s.content() || !s.now().Before(h.renewAt()) || s.gone(h.keyID, h.issued)
}

// renew puts a new token into the Secret with the UID.
func (s *secrets) renew(ctx context.Context, a account, secret types.UID) (held, error) {
	seconds := int64(lifetime / time.Second)
	request := &authenticationv1.TokenRequest{
		ObjectMeta: metav1.ObjectMeta{UID: a.uid}, // of another ServiceAccount of this name there is none
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
	patch, err := s.applied(a, secret, t)
	if err != nil {
		return held{}, err
	}
	force := true
	if _, err := s.metadata.Resource(secretsResource).Namespace(a.namespace).Patch(ctx, a.secretName(), types.ApplyPatchType, patch,
		metav1.PatchOptions{FieldManager: manager, Force: &force}); err != nil {
		return held{}, err
	}
	s.counts.renewed.Add(1)
	renewed := held{account: a.uid, uid: secret, keyID: t.keyID, content: s.content(), issued: t.issued, expires: t.expires, seen: s.now()}
	if now := s.now(); !now.Before(renewed.renewAt()) || t.issued.After(now.Add(maxSkew)) {
		return renewed, fmt.Errorf("the clock here and that of the API server differ by %s: when tokens are due cannot be known", now.Sub(t.issued).Abs().Round(time.Second))
	}
	return renewed, nil
}

// next is how long it is until the Secret has to be looked at again.
func (s *secrets) next(h held) time.Duration {
	return max(min(h.renewAt().Sub(s.now()), h.seen.Add(probeInterval).Sub(s.now())), time.Second)
}

// reason is the reason of an event for what failed, empty: people need not be told.
func reason(err error) string {
	switch {
	case errors.Is(err, errForeign):
		return "PullSecretForeign"
	case errors.Is(err, errStale), apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		return "" // it passes
	}
	return "PullSecretFailed"
}

var (
	serviceAccounts = corev1.SchemeGroupVersion.WithResource("serviceaccounts")
	namespaces      = corev1.SchemeGroupVersion.WithResource("namespaces")
	secretsResource = corev1.SchemeGroupVersion.WithResource("secrets")
)
