package oidc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// forged returns tokens with distinct key ids that the issuer does not publish.
func forged(t *testing.T, text string, n int) []string {
	t.Helper()
	genuine := keys().rsa.sign(t, text)
	rest := genuine[strings.IndexByte(genuine, '.'):]
	tokens := make([]string, n)
	for i := range tokens {
		tokens[i] = encode(fmt.Sprintf(`{"alg":"RS256","kid":"forged-%d"}`, i)) + rest
	}
	return tokens
}

// Mistake: a fetch for every unknown kid, so that anybody can make the proxy
// flood the API server (go-oidc: 50 tokens, 50 fetches).
func TestForgedKeyIDsCauseOneFetchPerInterval(t *testing.T) {
	t.Parallel()
	s := newIssuerServer(t, keys().rsa)
	f := newServedFixture(t, s, func(d *Discovery) { d.JWKSURL = s.URL + keysPath })
	tokens := forged(t, payload(t, "kubelet", issuerURL, s.URL), 10_000)
	flood := func(tokens []string) {
		var callers sync.WaitGroup
		for n := range 8 {
			callers.Go(func() {
				for i := n; i < len(tokens); i += 8 {
					var failure *Error
					if _, err := f.Verify(t.Context(), presented(tokens[i])); !errors.As(err, &failure) || failure.Reason != refusal.TokenUnknownKey {
						t.Errorf("forged token: %v", err)
						return
					}
				}
			})
		}
		callers.Wait()
	}
	flood(tokens)
	if n := s.keyReads.Load(); n != 1 {
		t.Fatalf("%d forged tokens caused %d fetches", len(tokens), n)
	}
	f.clock.Advance(demandInterval - time.Millisecond)
	flood(tokens[:1000])
	if n := s.keyReads.Load(); n != 1 {
		t.Fatalf("a fetch within the interval: %d", n)
	}
	f.clock.Advance(demandJitter + time.Millisecond)
	flood(tokens[:1000])
	if n := s.keyReads.Load(); n != 2 {
		t.Fatalf("%d fetches in two intervals", n)
	}
	f.clock.Advance(demandInterval + demandJitter)
	accept(t, f.Verifier, s.token(t, keys().rsa)) // others are served meanwhile, without a fetch
	if n := s.keyReads.Load(); n != 2 {
		t.Fatalf("a known key caused fetch %d", n)
	}
}

func TestConcurrentCallersShareAFetch(t *testing.T) {
	t.Parallel()
	s := newIssuerServer(t, keys().rsa)
	release := make(chan struct{})
	good := keySetJSON(t, keys().rsa)
	s.handle(keysPath, func(w http.ResponseWriter, _ *http.Request) {
		<-release
		w.Write(good)
	})
	f := newServedFixture(t, s, nil)
	raw := s.token(t, keys().rsa)
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			if _, err := f.Verify(t.Context(), presented(raw)); err != nil {
				t.Error(err)
			}
		})
	}
	// A caller that leaves must not take the fetch with it.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	failure := refuseContext(t, ctx, f.Verifier, raw, refusal.IssuerUnavailable, "")
	if !errors.Is(failure, context.Canceled) {
		t.Errorf("cause %v", failure.Err)
	}
	close(release)
	callers.Wait()
	if n := s.keyReads.Load(); n != 1 {
		t.Errorf("%d fetches", n)
	}
}

// A new signing key is published before it is used, but a token can be faster
// than the background refresh.
func TestNewKeyIsFetchedWhenATokenNeedsIt(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.publish(t, keys().rsa)
	accept(t, f.Verifier, keys().rsa.sign(t, payload(t, "kubelet")))
	f.publish(t, keys().rsa, keys().rsa2)
	next := keys().rsa2.sign(t, payload(t, "kubelet"))
	failure := refuse(t, f.Verifier, next, refusal.TokenUnknownKey, "if the issuer has just changed its key, try again in some seconds")
	if failure.Err != nil {
		t.Errorf("cause %v", failure.Err)
	}
	f.clock.Advance(demandInterval + demandJitter)
	recorder := tracetest.NewSpanRecorder()
	ctx, _ := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test").Start(t.Context(), "verify")
	for range 2 { // the second one waits for nothing
		if _, err := f.Verify(ctx, presented(next)); err != nil {
			t.Fatal(err)
		}
	}
	if ended := recorder.Ended(); len(ended) != 1 || ended[0].Name() != "wait for keys" {
		t.Errorf("spans %v", ended)
	}
}

// Mistake: a withdrawn key lives on in a cache of verified tokens.
func TestWithdrawnKeyStopsWorkingAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.publish(t, keys().rsa, keys().rsa2)
	raw := keys().rsa.sign(t, payload(t, "kubelet"))
	accept(t, f.Verifier, raw)
	accept(t, f.Verifier, raw)

	f.publish(t, keys().rsa2)
	f.refresh(t)
	refuse(t, f.Verifier, raw, refusal.TokenUnknownKey, "")

	f.publish(t, keys().rsa2, keys().rsa)
	f.refresh(t)
	accept(t, f.Verifier, raw)

	// Another key under the old name.
	other := keys().rsa2
	other.id = "rsa"
	f.publish(t, other)
	f.refresh(t)
	refuse(t, f.Verifier, raw, refusal.TokenSignature, "")
}

// refresh does what the background refresh does.
func (f *fixture) refresh(t *testing.T) {
	t.Helper()
	testkit.Must(t, f.issuers[0].keys.refresh(t.Context()))
}

func (f *fixture) failRefresh(t *testing.T) {
	t.Helper()
	if err := f.issuers[0].keys.refresh(t.Context()); err == nil {
		t.Fatal("the fetch did not fail")
	}
}

func TestFailuresKeepTheLastGoodKeysUntilTheirAge(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Issuers[0].MaxKeyAge = 30 * time.Minute })
	remembered, fresh := keys().rsa.sign(t, payload(t, "kubelet")), keys().ec256.sign(t, payload(t, "kubelet"))
	accept(t, f.Verifier, remembered)
	fetchedAt := f.clock.Now()

	testkit.Put(t, f.file, "half a fi")
	f.clock.Advance(29 * time.Minute)
	f.failRefresh(t)
	accept(t, f.Verifier, remembered)
	accept(t, f.Verifier, fresh)
	status := f.Status()[0]
	if status.Keys != 4 || !status.FetchedAt.Equal(fetchedAt) || status.Failures != 1 || !strings.Contains(status.LastFailure, "not a JWK set") {
		t.Errorf("status %+v", status)
	}
	// A key that is not there cannot be told from one that is new.
	failure := refuse(t, f.Verifier, keys().rsa2.sign(t, payload(t, "kubelet")), refusal.IssuerUnavailable, "try again later")
	if !strings.Contains(fmt.Sprint(failure.Err), "not a JWK set") {
		t.Errorf("cause %v", failure.Err)
	}

	f.clock.Advance(time.Minute) // 30 minutes: the limit itself is within
	accept(t, f.Verifier, remembered)
	f.clock.Advance(time.Second)
	refuse(t, f.Verifier, remembered, refusal.IssuerUnavailable, "")
	refuse(t, f.Verifier, fresh, refusal.IssuerUnavailable, "")
	if n := f.Status()[0].Keys; n != 0 {
		t.Errorf("%d keys are believed", n)
	}

	f.publish(t, keys().rsa)
	f.clock.Advance(demandInterval + demandJitter)
	accept(t, f.Verifier, remembered)
	if status := f.Status()[0]; status.LastFailure != "" || status.Keys != 1 {
		t.Errorf("status after recovery %+v", status)
	}
}

// Without a background refresh, keys become too old although nothing failed.
func TestKeysThatNobodyRefreshes(t *testing.T) {
	t.Parallel()
	r := &keyring{
		maxAge: time.Minute, log: slog.New(slog.DiscardHandler),
		fetch: func(context.Context) (map[string]*key, error) { return map[string]*key{"a": {id: "a"}}, nil },
	}
	c := testkit.NewClock(issuedAt)
	r.now = c.Now
	testkit.Must(t, r.refresh(t.Context()))
	r.pause = time.Hour // no fetch on demand
	c.Advance(2 * time.Minute)
	k, reason, err := r.find(t.Context(), "a")
	if k != nil || reason != refusal.IssuerUnavailable || err == nil || !strings.Contains(err.Error(), "discovery.maxKeyAge") {
		t.Errorf("got %v, %s, %v", k, reason, err)
	}
}

// A clock that is set back must not stop fetches until it has caught up.
func TestClockThatIsSetBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.publish(t, keys().rsa)
	accept(t, f.Verifier, keys().rsa.sign(t, payload(t, "kubelet")))
	f.publish(t, keys().rsa2)
	f.clock.Advance(-time.Minute)
	accept(t, f.Verifier, keys().rsa2.sign(t, payload(t, "kubelet")))
}

// Mistake: one issuer that hangs holds up the tokens of all.
func TestHangingIssuerDelaysItsOwnTokensOnly(t *testing.T) {
	t.Parallel()
	hanging := newIssuerServer(t)
	release := make(chan struct{})
	hanging.handle(wellKnownPath, func(http.ResponseWriter, *http.Request) { <-release })
	f := newFixture(t, func(c *Config) {
		second := validIssuer("")
		second.Cluster, second.URL, second.Discovery = "hanging", hanging.URL, Discovery{CAFile: hanging.caFile}
		c.Issuers = append([]Issuer{second}, c.Issuers...)
	})
	ctx, cancel := context.WithCancel(t.Context())
	stuck := make(chan error)
	go func() {
		_, err := f.Verify(ctx, presented(hanging.token(t, keys().rsa)))
		stuck <- err
	}()
	ended := make(chan struct{})
	go func() { f.Run(ctx); close(ended) }()
	accept(t, f.Verifier, keys().rsa.sign(t, payload(t, "kubelet")))
	for f.Status()[1].Fetches == 0 {
		select {
		case <-t.Context().Done():
			t.Fatal("Run does not fetch")
		case <-time.After(time.Millisecond):
		}
	}
	cancel()
	if err := <-stuck; !errors.Is(err, ErrUnavailable) {
		t.Errorf("token of the hanging issuer: %v", err)
	}
	<-ended
	close(release)
}

// hangingKeyring asks an issuer that does not answer.
func hangingKeyring() *keyring {
	return &keyring{
		maxAge: time.Hour, now: time.Now, log: slog.New(slog.DiscardHandler),
		fetch: func(ctx context.Context) (map[string]*key, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
	}
}

// A token waits at most maxWait for a fetch, however long that takes. A fetch takes at most
// fetchTimeout.
func TestWaitForAFetchIsBounded(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		r := hangingKeyring()
		begin := time.Now()
		_, reason, err := r.find(t.Context(), "a")
		if waited := time.Since(begin); waited != maxWait || reason != refusal.IssuerUnavailable || err == nil || err.Error() != "the keys are still being fetched" {
			t.Errorf("waited %s for %s: %v", waited, reason, err)
		}
		err = r.refresh(t.Context())
		if took := time.Since(begin); took != fetchTimeout || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the fetch took %s: %v", took, err)
		}
		if status := r.status(); status.Fetches != 1 || status.Failures != 1 {
			t.Errorf("status %+v", status)
		}
	})
}

// A flood of forged tokens must not take all of the server's places while the
// issuer that they name hangs.
func TestFewTokensWaitForAHangingIssuer(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		r := hangingKeyring()
		var atOnce, waited atomic.Int64
		begin := time.Now()
		var callers sync.WaitGroup
		for range 2 * MaxWaiting {
			callers.Go(func() {
				_, reason, _ := r.find(t.Context(), "forged")
				switch took := time.Since(begin); {
				case reason != refusal.IssuerUnavailable:
					t.Errorf("reason %s", reason)
				case took == 0:
					atOnce.Add(1)
				case took == maxWait:
					waited.Add(1)
				default:
					t.Errorf("answered after %s", took)
				}
			})
		}
		callers.Wait()
		if atOnce.Load() != MaxWaiting || waited.Load() != MaxWaiting {
			t.Errorf("%d were answered at once and %d waited, want %d each", atOnce.Load(), waited.Load(), MaxWaiting)
		}
		if n := r.waiting.Load(); n != 0 {
			t.Errorf("%d wait for ever", n)
		}
		time.Sleep(fetchTimeout) // the fetch ends
	})
}

func TestBackgroundRefresh(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		var gaps []time.Duration
		last := time.Now()
		outage := errors.New("down")
		r := &keyring{interval: networkInterval, maxAge: time.Hour, now: time.Now, log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(t.Context())
		r.fetch = func(context.Context) (map[string]*key, error) {
			gaps = append(gaps, time.Since(last))
			last = time.Now()
			switch n := len(gaps); {
			case n == 16:
				cancel()
				return nil, nil
			case n > 2 && n < 14 || n == 15:
				return nil, outage
			}
			return map[string]*key{}, nil
		}
		r.run(ctx)
		want := []time.Duration{0} // longest gap before each fetch: the first is at once
		want = append(want, networkInterval, networkInterval)
		for wait := firstRetry; wait < networkInterval; wait *= 2 {
			want = append(want, wait)
		}
		want = append(want, networkInterval, networkInterval, networkInterval) // two failures more, a success
		want = append(want, firstRetry)                                        // a new failure is retried soon
		if len(gaps) != len(want) {
			t.Fatalf("fetched after %v, want about %v", gaps, want)
		}
		for n, gap := range gaps {
			if gap > want[n] || gap < want[n]*4/5 {
				t.Errorf("fetch %d after %s, want %s or up to a fifth less", n, gap, want[n])
			}
		}
	})
}

// Run keeps the keys of a file current without any token.
func TestRunReadsTheFileAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "jwks.json")
	first, second := keySetJSON(t, keys().rsa), keySetJSON(t, keys().rsa, keys().rsa2)
	synctest.Test(t, func(t *testing.T) {
		v := testkit.Value(New(Config{Issuers: []Issuer{validIssuer(file)}}))(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { v.Run(ctx); close(ended) }()

		time.Sleep(time.Millisecond) // at once
		if s := v.Status()[0]; s.Fetches != 1 || s.Failures != 1 || s.Keys != 0 {
			t.Errorf("without a file: %+v", s)
		}
		// As Kubernetes swaps a mount: a link to a directory changes.
		for n, content := range [][]byte{first, second} {
			version := filepath.Join(dir, fmt.Sprint("v", n))
			testkit.Must(t, errors.Join(os.Mkdir(version, 0o700), os.WriteFile(filepath.Join(version, "jwks.json"), content, 0o600)))
			os.Remove(file)
			testkit.Must(t, os.Symlink(filepath.Join(version, "jwks.json"), file))
			time.Sleep(fileInterval)
			if s := v.Status()[0]; s.Keys != n+1 || s.LastFailure != "" {
				t.Errorf("version %d: %+v", n, s)
			}
		}
		cancel()
		<-ended
	})
}

func TestFailuresAreLoggedOncePerChange(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.refresh(t)
	testkit.Must(t, os.Remove(f.file))
	for range 3 {
		f.failRefresh(t)
	}
	testkit.Put(t, f.file, "{}")
	for range 3 {
		f.failRefresh(t)
	}
	f.publish(t, keys().rsa)
	f.refresh(t)
	f.refresh(t)
	var got []string
	for line := range strings.Lines(f.log.String()) {
		_, line, _ = strings.Cut(line, "level=")
		level, _, _ := strings.Cut(line, " ")
		got = append(got, level)
		if !strings.Contains(line, "cluster=prod-eu issuer=https://issuer.example") {
			t.Errorf("no cluster in %q", line)
		}
	}
	if want := "DEBUG WARN WARN INFO DEBUG"; strings.Join(got, " ") != want {
		t.Errorf("logged %q, want %q:\n%s", got, want, f.log)
	}
}

// The port of our own side differs at every try.
func TestSameNetworkFailureReadsTheSame(t *testing.T) {
	t.Parallel()
	s := newIssuerServer(t, keys().rsa)
	s.handle(wellKnownPath, func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		tcp := conn.(*tls.Conn).NetConn().(*net.TCPConn)
		tcp.SetLinger(0) // close with a reset, whose error names both ports
		tcp.Close()
	})
	f := newServedFixture(t, s, nil)
	for range 3 {
		f.failRefresh(t)
	}
	if n := strings.Count(f.log.String(), "level=WARN"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, f.log)
	}
}

func TestJitterIsWithinItsLimit(t *testing.T) {
	t.Parallel()
	for range 1000 {
		if j := jitter(5); j < 0 || j >= 5 {
			t.Fatalf("jitter %d", j)
		}
	}
	if j := jitter(0); j != 0 {
		t.Errorf("jitter %d of 0", j)
	}
}
