package exchange_test

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The memory of issued tokens is bounded in bytes, for any requests. Forgotten tokens are signed
// again.
func TestIssuedTokensKeepToTheirBytes(t *testing.T) {
	t.Parallel()
	const most = 64 << 10
	r := newRig(t, func(c *rigConfig) { c.cacheBytes = most })
	token := r.token(t, nil)
	short := func(i int) string { return fmt.Sprintf("repository:team-a/%d:pull", i) }
	long := func(i int) string {
		name := strings.Repeat("a", 200)
		return fmt.Sprintf("repository:team-a/%s%03d:pull repository:team-a/%s%03d:pull", name, i, name, 1000+i)
	}
	for _, scope := range []func(int) string{short, long} {
		for i := range 60 {
			r.do(t, get(token, scope(i)))
			if bytes := r.exchanger.IssuedBytes(); bytes > most {
				t.Fatalf("%d bytes", bytes)
			}
		}
		if r.exchanger.Issued() < 10 {
			t.Errorf("only %d tokens are remembered", r.exchanger.Issued())
		}
		requests := len(r.recorded())
		if r.do(t, get(token, scope(59))); !r.lastEvent(t, requests+1).Reused {
			t.Error("the last token is not remembered")
		}
		if r.do(t, get(token, scope(0))); r.lastEvent(t, requests+2).Reused {
			t.Error("the first of many tokens is remembered")
		}
	}
}

// Not parallel, because it measures the memory of the whole process. Only the counted parts of a
// request stay in memory.
func TestIssuedTokensHoldNoRequest(t *testing.T) {
	const most = 1 << 20
	r := newRig(t, func(c *rigConfig) { c.cacheBytes, c.recorder = most, encodingRecorder{} })
	token := r.token(t, nil)
	r.do(t, get(token))
	before := testkit.Heap()
	for i := range 1000 {
		request := get(token, fmt.Sprintf("repository:team-a/%d:pull", i))
		request.URL.RawQuery = strings.ReplaceAll(request.URL.RawQuery, "%3A", ":") + "&unknown=" + strings.Repeat("x", 8<<10)
		w := httptest.NewRecorder()
		if r.handler.ServeHTTP(w, request); w.Code != 200 {
			t.Fatalf("status %d: %s", w.Code, w.Body)
		}
	}
	if used := int(testkit.Heap()) - int(before); used > 2*most || r.exchanger.IssuedBytes() < most/2 {
		t.Errorf("%d bytes are in use, %d are counted", used, r.exchanger.IssuedBytes())
	}
	runtime.KeepAlive(r)
}

// A reused token has the same scopes in every form.
func TestReuseSaysTheSameScopes(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	token := r.token(t, nil)
	var answers [2]struct{ Token, Scope string }
	for i := range answers {
		w := httptest.NewRecorder()
		r.handler.ServeHTTP(w, post(token, "repository:team-a/web:push,pull", "repository:other/x:pull", "repository:team-a/app:pull"))
		testkit.Must(t, json.Unmarshal(w.Body.Bytes(), &answers[i]))
	}
	if answers[0] != answers[1] || answers[0].Scope != "repository:team-a/app:pull repository:team-a/web:pull" || !r.lastEvent(t, 2).Reused {
		t.Errorf("answers %+v", answers)
	}
}

// When a wrong clock is set back, a token from before is not given again: registries refuse it, because it begins in the future.
func TestTokenOfTheFutureIsNotReused(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	token := r.token(t, nil)
	r.advance(30 * time.Minute)
	r.do(t, get(token))
	r.advance(-30 * time.Minute)
	if r.do(t, get(token)); r.lastEvent(t, 2).Reused {
		t.Error("the token of half an hour later is given again")
	}
	if r.do(t, get(token)); !r.lastEvent(t, 3).Reused {
		t.Error("the token of now is not given again")
	}
}
