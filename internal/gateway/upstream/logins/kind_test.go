package logins

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestServiceEndpoint(t *testing.T) {
	t.Parallel()
	for base, want := range map[string]string{"https://cloud.example.com": "https://cloud.example.com/a/b", "https://[": "", "/a": ""} {
		got, err := Service{Upstream: "u"}.Endpoint(base, "/a/b")
		switch {
		case want == "" && (err == nil || !strings.Contains(err.Error(), "upstream u: its URL cannot be read")):
			t.Errorf("%s: error %v", base, err)
		case want != "" && (err != nil || got.String() != want):
			t.Errorf("%s: %s, error %v", base, got, err)
		}
	}
}

type noAssertions struct{}

func (noAssertions) Sign(string, string) (registryauth.Secret, error) {
	return registryauth.Secret{}, errors.New("none")
}

// Without assertions, no request can be the caller's: not even one of the gateway itself.
func TestServiceRemember(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ofCaller   bool
		assertions Assertions
		refused    bool
	}{{true, nil, true}, {true, noAssertions{}, false}, {false, nil, false}} {
		if _, err := (Service{Upstream: "u", Assertions: c.assertions}).Remember(c.ofCaller, nil); (err != nil) != c.refused {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

type faults []string

func (f *faults) Fault(field, format string, args ...any) {
	*f = append(*f, field+" "+fmt.Sprintf(format, args...))
}

func (f *faults) BaseURL(string, string, string) {}

func TestIdentityRequires(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		identity    Identity
		value, want string
	}{{Caller, "", "role is missing; r"}, {Caller, "a", ""}, {Gateway, "", ""}, {Gateway, "a", "role has no use with identity gateway"}, {"", "", ""}, {"", "a", ""}} {
		var f faults
		c.identity.Requires(&f, "role", c.value, "r")
		if got := strings.Join(f, "\n"); (got == "") != (c.want == "") || !strings.HasPrefix(got, c.want) {
			t.Errorf("%q, %q: %q, want %q", c.identity, c.value, got, c.want)
		}
	}
}

// A body of the greatest size is read to its end.
func TestCappedAtItsLimit(t *testing.T) {
	t.Parallel()
	data, err := io.ReadAll(Capped(io.NopCloser(strings.NewReader(strings.Repeat("a", maxBodyBytes)))))
	if err != nil || len(data) != maxBodyBytes {
		t.Errorf("%d bytes, error %v", len(data), err)
	}
}

// A caller that gives up leaves the places of its namespace as they are.
func TestPlacesAreOneSetForANamespace(t *testing.T) {
	t.Parallel()
	p := newPlaces(2)
	leave := testkit.Value(p.enter(t.Context(), "c/a/x"))(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	own := p.namespaces["c/a"]
	if _, err := p.enter(ended, "c/a/y"); !errors.Is(err, context.Canceled) || own == nil || p.namespaces["c/a"] != own {
		t.Errorf("error %v, and %d namespaces", err, len(p.namespaces))
	}
	if leave(); len(p.namespaces) != 0 {
		t.Errorf("%d namespaces are kept", len(p.namespaces))
	}
}

func TestNewCompletesItsConfiguration(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	r := New(Config{Now: func() time.Time { return now }})
	if r.cfg.Logger == nil || !r.cfg.Now().Equal(now) {
		t.Errorf("%+v", r.cfg)
	}
}

// An anonymous request never gets the login of a caller.
func TestNoLoginForNoCaller(t *testing.T) {
	t.Parallel()
	c := &cloud{lasts: time.Hour}
	if login, err := newRemembered(c, true).Login(t.Context(), ""); !errors.Is(err, upstream.ErrNoCaller) || !login.Password.IsZero() || c.asked.Load() != 0 {
		t.Errorf("%v, error %v, asked %d times", login, err, c.asked.Load())
	}
}

// A login of some seconds is renewed before its end, too.
func TestALoginOfSecondsIsRenewed(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		c := &cloud{lasts: askAgain - time.Second}
		r := newRemembered(c, true)
		expect(t, r, "c/a/x", "c/a/x#1")
		time.Sleep(c.lasts - 100*time.Millisecond)
		expect(t, r, "c/a/x", "c/a/x#1")
		time.Sleep(time.Millisecond)
		expect(t, r, "c/a/x", "c/a/x#2")
	})
}

// A login without an end is used for ever, and may be as long as any.
func TestALoginWithoutAnEndIsNotRenewed(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		asked := 0
		password := strings.Repeat("a", maxPasswordBytes-len("robot"))
		r := New(Config{Upstream: "registry.example.com", Ask: func(context.Context, string) (upstream.Login, error) {
			asked++
			return upstream.Login{Username: "robot", Password: registryauth.NewSecret(password)}, nil
		}})
		for range 3 {
			expect(t, r, "c/a/x", password)
			time.Sleep(365 * 24 * time.Hour)
		}
		if asked != 1 {
			t.Errorf("asked %d times", asked)
		}
	})
}

// Texts of errors count: many callers may be refused.
func TestBytesOfAnError(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("a", 400)
	if got := (&known{err: errors.New(text)}).bytes() - (&known{}).bytes(); got < len(text) {
		t.Errorf("an error of %d bytes counts %d", len(text), got)
	}
}
