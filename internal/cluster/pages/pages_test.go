package pages

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

var secrets = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

// list reads objects of these sizes to the end. It returns their names and the limits of the
// requests.
func list(t *testing.T, sizes []int) (names, limits []string, err error) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		if query.Get("resourceVersion") != "" {
			t.Errorf("of the resource version %q", query.Get("resourceVersion"))
		}
		limits = append(limits, query.Get("limit"))
		limit, _ := strconv.Atoi(query.Get("limit"))
		start, _ := strconv.Atoi(query.Get("continue"))
		end, next := min(start+limit, len(sizes)), ""
		if end < len(sizes) {
			next = strconv.Itoa(end)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {"continue": %q}, "items": [`, next)
		for i := start; i < end; i++ {
			_, err := fmt.Fprintf(w, `%s{"metadata": {"name": "o%d", "uid": "u", "annotations": {"a": "%s"}}}`, strings.Repeat(",", min(i-start, 1)), i, strings.Repeat("a", sizes[i]))
			if err != nil {
				return // the reader has stopped
			}
		}
		fmt.Fprint(w, "]}")
	}))
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL}
	config.Wrap(Transport)
	client, err := metadata.NewForConfig(config)
	testkit.Must(t, err)
	l := Lister{List: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return client.Resource(secrets).List(ctx, options)
	}}
	for options := (metav1.ListOptions{ResourceVersion: "0"}); ; {
		page, err := l.Page(t.Context(), options)
		if err != nil {
			return names, limits, err
		}
		_ = meta.EachListItem(page, func(o runtime.Object) error {
			names = append(names, o.(metav1.Object).GetName())
			return nil
		})
		from, _ := meta.ListAccessor(page)
		if options.Continue = from.GetContinue(); options.Continue == "" {
			return names, limits, nil
		}
	}
}

func TestSmallObjects(t *testing.T) {
	t.Parallel()
	names, limits, err := list(t, make([]int, 2*size+1))
	if err != nil || len(names) != 2*size+1 || fmt.Sprint(limits) != "[500 500 500]" {
		t.Errorf("%d objects with the limits %v, %v", len(names), limits, err)
	}
}

// No response above the limit is decoded, every object is listed once, and pages grow again after
// large objects.
func TestLargeObjects(t *testing.T) {
	t.Parallel()
	sizes := make([]int, 1200)
	for i := 20; i < 28; i++ {
		sizes[i] = 1_500_000
	}
	names, limits, err := list(t, sizes)
	if err != nil || len(names) != len(sizes) {
		t.Fatalf("%d objects, %v", len(names), err)
	}
	for i, name := range names {
		if name != fmt.Sprint("o", i) {
			t.Fatalf("object %d is %s", i, name)
		}
	}
	if first, last := fmt.Sprint(limits[:4]), limits[len(limits)-1]; first != "[500 62 7 14]" || last != "500" {
		t.Errorf("limits %v", limits)
	}
}

// An object above the limit is an error, and does not cause endless requests.
func TestEndlessObject(t *testing.T) {
	t.Parallel()
	_, limits, err := list(t, []int{10, maxObjectBytes})
	if err == nil || err.Error() != "one object has more than 8388608 bytes" || len(limits) > 6 {
		t.Errorf("%v after the limits %v", err, limits)
	}
}
