package pages

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestCheckRevision(t *testing.T) {
	t.Parallel()
	failure := errors.New("failed")
	for _, test := range []struct {
		name, has, known string
		err              error
		isExpired        bool
		want             error
	}{
		{name: "the same", has: "10", known: "10"},
		{name: "later", has: "10", known: "9"},
		{name: "earlier", has: "9", known: "10", isExpired: true},
		{name: "from the beginning", has: "9", known: "0"},
		{name: "from anywhere", has: "9"},
		{name: "not comparable", has: "9", known: "x10"},
		{name: "no revision", known: "10"},
		{name: "no right to list", has: "9", known: "10", err: apierrors.NewForbidden(schema.GroupResource{}, "", nil), isExpired: true},
		{name: "failed", has: "9", known: "10", err: failure, want: failure},
	} {
		list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			if _, ok := ctx.Deadline(); !ok || ctx.Value(boundKey{}) == nil || options.Limit != 1 || options.ResourceVersion != "" {
				t.Errorf("%s: asked with %+v", test.name, options)
			}
			return &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: test.has}}, test.err
		}
		err := CheckRevision(t.Context(), list, metav1.ListOptions{ResourceVersion: test.known, LabelSelector: "a=b"})
		if apierrors.IsResourceExpired(err) != test.isExpired || !test.isExpired && !errors.Is(err, test.want) {
			t.Errorf("%s: error %v", test.name, err)
		}
	}
}

// A stream has all objects of the present, whatever was known before.
func TestCheckRevisionOfStreams(t *testing.T) {
	t.Parallel()
	list := func(context.Context, metav1.ListOptions) (runtime.Object, error) { panic("asked") }
	testkit.Must(t, CheckRevision(t.Context(), list, metav1.ListOptions{ResourceVersion: "10", SendInitialEvents: new(true)}))
}

func TestCheckRevisionOfNoList(t *testing.T) {
	t.Parallel()
	list := func(context.Context, metav1.ListOptions) (runtime.Object, error) { return &runtime.Unknown{}, nil }
	if err := CheckRevision(t.Context(), list, metav1.ListOptions{ResourceVersion: "10"}); err == nil {
		t.Error("no error")
	}
}
