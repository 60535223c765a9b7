package logins

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// cloud issues logins that are valid for an hour.
type cloud struct {
	asked   atomic.Int64
	takes   time.Duration
	lasts   time.Duration
	refuses error
	always  string // the password; empty: a different one each time
}

func (c *cloud) ask(ctx context.Context, caller string) (upstream.Login, error) {
	n := c.asked.Add(1)
	select {
	case <-ctx.Done():
		return upstream.Login{}, ctx.Err()
	case <-time.After(c.takes):
	}
	if c.refuses != nil {
		return upstream.Login{}, c.refuses
	}
	password := c.always
	if password == "" {
		password = fmt.Sprintf("%s#%d", caller, n)
	}
	return upstream.Login{Username: "robot", Password: registryauth.NewSecret(password), Expiry: time.Now().Add(c.lasts)}, nil
}

func expect(t *testing.T, r *Remembered, caller, want string) upstream.Login {
	t.Helper()
	login, err := r.Login(t.Context(), caller)
	if err != nil {
		t.Fatalf("%s: %v", caller, err)
	}
	if got := login.Password.Reveal(); got != want {
		t.Errorf("the login of %s is %s, want %s", caller, got, want)
	}
	return login
}

func newRemembered(c *cloud, perCaller bool) *Remembered {
	return New(Config{Upstream: "registry.example.com", Ask: c.ask, PerCaller: perCaller})
}

func TestCallersShareNoLogin(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		r := newRemembered(&cloud{lasts: time.Hour}, true)
		expect(t, r, "c/a/x", "c/a/x#1")
		expect(t, r, "c/b/x", "c/b/x#2")
		expect(t, r, "c/a/x", "c/a/x#1")
	})
}

func TestCallersShareTheGatewaysLogin(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		r := newRemembered(&cloud{lasts: time.Hour}, false)
		for _, caller := range []string{"c/a/x", "c/b/x", ""} {
			expect(t, r, caller, "#1")
		}
	})
}

func TestOneAskingAtATimeForACaller(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		c := &cloud{lasts: time.Hour, takes: time.Second}
		r := newRemembered(c, true)
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				if login, err := r.Login(t.Context(), fmt.Sprintf("c/a/%d", i%2)); err != nil || !strings.HasPrefix(login.Password.Reveal(), fmt.Sprintf("c/a/%d#", i%2)) {
					t.Errorf("%v, %v", login, err)
				}
			})
		}
		all.Wait()
		if n := c.asked.Load(); n != 2 {
			t.Errorf("asked %d times for 2 callers", n)
		}
	})
}

// A caller that looked before a request ended, and asks afterwards, gets the result of that
// request.
func TestALateAskingFindsWhatTheOneBeforeLeft(t *testing.T) {
	t.Parallel()
	c := &cloud{lasts: time.Hour}
	r := newRemembered(c, true)
	first := r.renew(t.Context(), "c/a/x", nil)
	if late := r.renew(t.Context(), "c/a/x", nil); late != first || c.asked.Load() != 1 {
		t.Errorf("asked %d times", c.asked.Load())
	}
	if next := r.renew(t.Context(), "c/a/x", first); next == first || c.asked.Load() != 2 {
		t.Errorf("asked %d times, after a renewal", c.asked.Load())
	}
}

// A caller that gives up does not cancel the request of those that still wait.
func TestAWaitEndsWithoutTheAsking(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		c := &cloud{lasts: time.Hour, takes: 2 * time.Second}
		r := newRemembered(c, true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.Login(ctx, "c/a/x"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want the end of the time", err)
		}
		time.Sleep(2 * time.Second)
		expect(t, r, "c/a/x", "c/a/x#1")
	})
}

func TestALoginIsRenewedBeforeItEndsAndNobodyWaits(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		c := &cloud{lasts: time.Hour}
		r := newRemembered(c, true)
		expect(t, r, "c/a/x", "c/a/x#1")
		time.Sleep(55*time.Minute - time.Second)
		expect(t, r, "c/a/x", "c/a/x#1")
		synctest.Wait()
		if n := c.asked.Load(); n != 1 {
			t.Errorf("renewed too early")
		}
		time.Sleep(time.Second)
		c.takes = 10 * time.Second
		began := time.Now()
		expect(t, r, "c/a/x", "c/a/x#1")
		if waited := time.Since(began); waited > 0 {
			t.Errorf("waited for %s", waited)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		expect(t, r, "c/a/x", "c/a/x#2")
		// An unused login is not renewed.
		time.Sleep(3 * time.Hour)
		c.takes = 0
		expect(t, r, "c/a/x", "c/a/x#3")
	})
}

func TestAShortLoginIsNotRenewedAllTheTime(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		c := &cloud{lasts: 5 * time.Minute}
		r := newRemembered(c, true)
		for range 29 { // of 9.6 s
			expect(t, r, "c/a/x", "c/a/x#1")
			synctest.Wait()
			time.Sleep(9600 * time.Millisecond)
		}
		if n := c.asked.Load(); n > 2 {
			t.Errorf("asked %d times in the life of one login", n)
		}
	})
}

func TestALoginThatHasEndedIsNeverGiven(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		r := newRemembered(&cloud{lasts: 2 * time.Second}, true)
		expect(t, r, "c/a/x", "c/a/x#1")
		time.Sleep(2 * time.Second)
		expect(t, r, "c/a/x", "c/a/x#2")
	})
}

func TestAFailingRenewalKeepsTheLogin(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		c := &cloud{lasts: time.Hour}
		var log bytes.Buffer
		r := New(Config{Upstream: "registry.example.com", Ask: c.ask, PerCaller: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		expect(t, r, "c/a/x", "c/a/x#1")
		c.refuses = errors.New("the cloud is down")
		time.Sleep(55 * time.Minute)
		for range 299 {
			expect(t, r, "c/a/x", "c/a/x#1")
			synctest.Wait()
			time.Sleep(time.Second)
		}
		if n := c.asked.Load(); n < 5 || n > 12 {
			t.Errorf("asked %d times in five minutes, want one each half", n)
		}
		time.Sleep(time.Second)
		if login, err := r.Login(t.Context(), "c/a/x"); err == nil || !strings.Contains(err.Error(), "a login for registry.example.com: the cloud is down") {
			t.Errorf("after its end: %v, %v", login, err)
		}
		if !strings.Contains(log.String(), "the cloud is down") || strings.Contains(log.String(), "c/a/x#1") {
			t.Errorf("log:\n%s", log.String())
		}
	})
}

func TestAFailureIsNotRepeatedAtOnce(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		c := &cloud{lasts: time.Hour, refuses: errors.New("no trust")}
		r := newRemembered(c, true)
		for range 10 {
			if login, err := r.Login(t.Context(), "c/a/x"); err == nil || !login.Password.IsZero() {
				t.Fatalf("%v, %v", login, err)
			}
		}
		if n := c.asked.Load(); n != 1 {
			t.Errorf("asked %d times at once", n)
		}
		c.refuses = nil
		expect(t, r, "c/b/x", "c/b/x#2") // a different caller is not delayed
		time.Sleep(askAgain)
		expect(t, r, "c/a/x", "c/a/x#3")
	})
}

func TestARejectedLoginIsReplaced(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		c := &cloud{lasts: time.Hour}
		r := newRemembered(c, true)
		other := expect(t, r, "c/b/x", "c/b/x#1")
		first := expect(t, r, "c/a/x", "c/a/x#2")
		time.Sleep(time.Minute)
		r.Reject(first)
		second := expect(t, r, "c/a/x", "c/a/x#3")
		r.Reject(first) // late: that login is no longer in use
		expect(t, r, "c/a/x", "c/a/x#3")
		// For a while there is no other than the new one.
		r.Reject(second)
		expect(t, r, "c/a/x", "c/a/x#3")
		time.Sleep(askAgain)
		expect(t, r, "c/a/x", "c/a/x#4")
		// A rejected login does not help if there is no other.
		time.Sleep(time.Minute)
		c.refuses = errors.New("no trust any more")
		r.Reject(other)
		if login, err := r.Login(t.Context(), "c/b/x"); err == nil || !login.Password.IsZero() {
			t.Errorf("%v, %v", login, err)
		}
	})
}

func TestACloudThatHasNoOtherLoginIsNotAskedAllTheTime(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		c := &cloud{lasts: time.Hour, always: "same"}
		r := newRemembered(c, false)
		r.Reject(expect(t, r, "", "same"))
		for range 100 {
			r.Reject(expect(t, r, "", "same"))
			time.Sleep(100 * time.Millisecond)
		}
		if n := c.asked.Load(); n > 3 {
			t.Errorf("asked %d times in ten seconds", n)
		}
	})
}

func TestASlowCloudIsGivenUp(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		r := newRemembered(&cloud{lasts: time.Hour, takes: time.Hour}, true)
		began := time.Now()
		_, err := r.Login(t.Context(), "c/a/x")
		if waited := time.Since(began); waited != askWithin || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "longer than 15s") {
			t.Errorf("after %s: %v", waited, err)
		}
	})
}

func TestManyCallersAreAskedForOneAfterTheOther(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		c := &cloud{lasts: time.Hour, takes: time.Second}
		r := newRemembered(c, true)
		began := time.Now()
		var all sync.WaitGroup
		for i := range 4 * maxAsking {
			all.Go(func() {
				if _, err := r.Login(t.Context(), fmt.Sprintf("c/%d/a", i)); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if took := time.Since(began); took != 4*time.Second {
			t.Errorf("it took %s, want 4s", took)
		}
	})
}

// If a cloud is slow for many callers of one namespace, other namespaces do not wait.
func TestOneNamespaceDoesNotTakeAllPlaces(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		c := &cloud{lasts: time.Hour}
		r := New(Config{Upstream: "registry.example.com", PerCaller: true, Ask: func(ctx context.Context, caller string) (upstream.Login, error) {
			if strings.HasPrefix(caller, "c/slow/") {
				<-ctx.Done()
				return upstream.Login{}, ctx.Err()
			}
			return c.ask(ctx, caller)
		}})
		var all sync.WaitGroup
		for i := range 4 * maxAsking {
			all.Go(func() { _, _ = r.Login(t.Context(), fmt.Sprintf("c/slow/%d", i)) })
		}
		synctest.Wait()
		began := time.Now()
		for i := range 100 {
			if _, err := r.Login(t.Context(), fmt.Sprintf("c/b/%d", i)); err != nil || time.Since(began) > 0 {
				t.Fatalf("%v after %s", err, time.Since(began))
			}
		}
		all.Wait()
		if len(r.places.namespaces) != 0 || len(r.places.all) != 0 {
			t.Errorf("%d places are not given back", len(r.places.all))
		}
	})
}

// If a cloud issues the same login until its expiry, it is not asked for each request after one
// rejection.
func TestALoginThatIsGivenAgainIsGood(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		c := &cloud{lasts: time.Hour, always: "same"}
		r := newRemembered(c, false)
		r.Reject(expect(t, r, "", "same"))
		for range 100 {
			time.Sleep(askAgain)
			expect(t, r, "", "same")
		}
		if n := c.asked.Load(); n != 2 {
			t.Errorf("asked %d times", n)
		}
	})
}

func TestWhatIsNoLogin(t *testing.T) {
	t.Parallel()
	for want, login := range map[string]upstream.Login{
		"has none":          {Username: "a"},
		"longer than 32768": {Password: registryauth.NewSecret(strings.Repeat("a", 40<<10))},
		"ended at 2001":     {Password: registryauth.NewSecret("secret"), Expiry: time.Unix(1e9, 0)},
	} {
		r := New(Config{Upstream: "a", Ask: func(context.Context, string) (upstream.Login, error) { return login, nil }})
		if got, err := r.Login(t.Context(), ""); err == nil || !strings.Contains(err.Error(), want) || !got.Password.IsZero() {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// A client that can create ServiceAccounts must not make memory grow, nor make the gateway forget
// the logins of other namespaces.
func TestWhatIsRememberedIsBounded(t *testing.T) {
	t.Parallel()
	c := &cloud{lasts: time.Hour, always: strings.Repeat("p", 3000)}
	r := newRemembered(c, true)
	login := func(caller string) {
		if _, err := r.Login(t.Context(), caller); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 50 {
		login(fmt.Sprintf("c/other/%d", i))
	}
	for i := range 5000 {
		login(fmt.Sprintf("c/a/%d", i))
		r.Reject(upstream.Login{Password: registryauth.NewSecret(fmt.Sprint(i))})
	}
	if n := r.known.Len(); n < 1000 || n > maxLoginBytes/3000 || r.rejected.Bytes() > maxRejectedBytes {
		t.Errorf("%d logins, and %d bytes of rejected ones", n, r.rejected.Bytes())
	}
	asked := c.asked.Load()
	for i := range 50 {
		login(fmt.Sprintf("c/other/%d", i))
	}
	if again := c.asked.Load() - asked; again != 0 {
		t.Errorf("%d of 50 logins of another namespace were forgotten", again)
	}
}

// A login may be forgotten between a look and its renewal.
func TestAForgottenLoginIsRenewed(t *testing.T) {
	t.Parallel()
	r := newRemembered(&cloud{lasts: time.Hour}, true)
	if got := r.renew(t.Context(), "c/a/b", &known{}); got == nil || got.login.Password.IsZero() {
		t.Errorf("%+v", got)
	}
}
