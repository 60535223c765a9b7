package oidc

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// follow returns a Verifier that takes the place of the fixture's.
func (f *fixture) follow(t *testing.T, issuers ...Issuer) *Verifier {
	t.Helper()
	v := testkit.Value(f.WithIssuers(issuers))(t)
	return v
}

// The state of an issuer is kept while its settings are the same. It is discarded as soon as one of
// them changes.
func TestAVerifierTakesThePlaceOfAnother(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	raw := keys().rsa.sign(t, payload(t, "kubelet"))
	want := accept(t, f.Verifier, raw)

	more := validIssuer(f.file)
	more.Cluster, more.URL = "prod-us", issuerURL+"/us"
	next := f.follow(t, more, validIssuer(f.file))
	if got, err := next.Verify(t.Context(), presented(raw)); err != nil || got != want || !next.Remembers(presented(raw)) {
		t.Errorf("with another issuer beside it: %+v, %v", got, err)
	}
	if s := next.Status(); s[1].Fetches != 1 || s[1].Keys == 0 || s[0].Fetches != 0 {
		t.Errorf("the keys of an unchanged issuer were not kept, or those of a new one were: %+v", s)
	}

	gone := f.follow(t, more)
	refuse(t, gone, raw, refusal.TokenUnknownIssuer, "is not configured here")
	if gone.Remembers(presented(raw)) {
		t.Error("a token of an issuer that is gone is remembered")
	}

	for name, change := range map[string]func(*Issuer){
		"audience": func(i *Issuer) { i.Audiences = []string{"other.example.com"} },
		"lifetime": func(i *Issuer) { i.MaxLifetime = time.Minute },
		"node":     func(i *Issuer) { i.RequireNode = true },
	} {
		changed := validIssuer(f.file)
		change(&changed)
		next := f.follow(t, changed)
		if next.Remembers(presented(raw)) {
			t.Errorf("%s: what the old settings accepted is remembered", name)
		}
		if name == "node" { // this token has one
			accept(t, next, raw)
		} else if _, err := next.Verify(t.Context(), presented(raw)); err == nil {
			t.Errorf("%s: what the new settings refuse is accepted", name)
		}
		if s := next.Status()[0]; s.Fetches != 1 {
			t.Errorf("%s: the keys were fetched %d times", name, s.Fetches)
		}
	}
	older := validIssuer(f.file)
	older.MaxKeyAge++
	if f.follow(t, older).byURL[issuerURL].keys == f.byURL[issuerURL].keys {
		t.Error("the keys of another maximum age are the same")
	}
	if v, err := f.WithIssuers(nil); err == nil || v != nil {
		t.Errorf("without issuers: %v, %v", v, err)
	}
	if _, err := f.Verify(t.Context(), presented(raw)); err != nil {
		t.Errorf("the Verifier before refuses: %v", err)
	}
}

// Keys of another source are other keys, also while they cannot be read.
func TestAVerifierWithAnotherKeySource(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	raw := keys().rsa.sign(t, payload(t, "kubelet"))
	accept(t, f.Verifier, raw)
	elsewhere := validIssuer(filepath.Join(t.TempDir(), "other.json"))
	refuse(t, f.follow(t, elsewhere), raw, refusal.IssuerUnavailable, "cannot be read")
}

// Only keys that were never fetched are fetched first; Fetch fetches all.
func TestFetch(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.Fetch(t.Context())
	other := validIssuer(filepath.Join(t.TempDir(), "missing.json"))
	other.Cluster, other.URL = "prod-us", issuerURL+"/us"
	next := f.follow(t, validIssuer(f.file), other)
	next.FetchFirst(t.Context())
	next.FetchFirst(t.Context())
	if s := next.Status(); s[0].Fetches != 1 || s[1].Fetches != 1 || !strings.Contains(s[1].LastFailure, "missing.json: no such file") {
		t.Errorf("FetchFirst: %+v", s)
	}
	next.Fetch(t.Context())
	if s := next.Status(); s[0].Fetches != 2 || s[1].Fetches != 2 {
		t.Errorf("Fetch: %+v", s)
	}
}

// The background work may have begun the first fetch: FetchFirst waits for that one.
func TestFetchFirstWaitsForARunningFetch(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		r := &keyring{now: time.Now, log: slog.New(slog.DiscardHandler), fetch: func(context.Context) (map[string]*key, error) {
			time.Sleep(time.Second)
			return nil, nil
		}}
		v := &Verifier{issuers: []*issuer{{keys: r}}}
		go func() { _ = r.refresh(t.Context()) }()
		synctest.Wait()
		v.FetchFirst(t.Context())
		if s := r.status(); s.FetchedAt.IsZero() || s.Fetches != 1 {
			t.Errorf("%+v", s)
		}
	})
}
