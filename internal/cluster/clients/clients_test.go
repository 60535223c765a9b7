package clients_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/cluster/clients"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const credential = "the-credential-of-pullpass"

// A response that is not a success leads the credential neither to the host of a redirect nor into an error.
func TestCredentialStaysAtTheAPIServer(t *testing.T) {
	t.Parallel()
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	t.Cleanup(other.Close)
	for name, answer := range map[string]http.HandlerFunc{
		"redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, http.StatusFound) },
		"redirect with a body": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		},
		"text": func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "who is "+r.Header.Get("Authorization"), http.StatusInternalServerError)
		},
		"status, with the lowest code": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusMultipleChoices)
			_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 300, "message": "not `+r.Header.Get("Authorization")+`"}`)
		},
		"endless text": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, strings.Repeat(r.Header.Get("Authorization")+" ", 1<<16))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(answer)
			t.Cleanup(server.Close)
			shared := testkit.Value(clients.New(clients.Config{REST: &rest.Config{Host: server.URL, BearerToken: credential}}))(t)
			core := testkit.Value(shared.Typed(corev1.SchemeGroupVersion, runtime.ContentTypeJSON, &corev1.Pod{}))(t)
			err := core.Get().Resource("pods").Namespace("a").Name("b").MaxRetries(0).Do(t.Context()).Error()
			if err == nil || strings.Contains(err.Error(), credential) || len(err.Error()) > 100<<10 {
				t.Errorf("%.1000v", err)
			}
		})
	}
	t.Cleanup(func() {
		if n := elsewhere.Load(); n > 0 {
			t.Errorf("%d requests at the host of a redirect", n)
		}
	})
}
