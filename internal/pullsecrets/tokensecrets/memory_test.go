package tokensecrets

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Without the policy, the controller cannot recognize Secrets of others. It does nothing before the
// policy exists.
func TestNothingIsDoneWithoutThePolicy(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.api.Fail("create secrets", nil)
		r.api.Fail("put secrets", nil)
		var log strings.Builder
		r.log = slog.New(slog.NewTextHandler(&log, nil))
		foreign := ours("uid-web")
		delete(foreign["metadata"].(kubetest.Object), "labels")
		r.api.Put("secrets", foreign)
		stop := r.leads(t)
		time.Sleep(time.Minute)
		if o := r.api.Object("secrets", "team-a", NamePrefix+"web"); o["data"] != "somebody's" || r.Counts() != (Counts{}) || r.Ready() == nil {
			t.Errorf("it is now %v, counts %+v", o, r.Counts())
		}
		r.api.Remove("secrets", "team-a", NamePrefix+"web")
		enforce(r.api)
		time.Sleep(10 * time.Second)
		if claims, _ := r.secret(t, "team-a", "web"); claims == nil {
			t.Error("there is no token with the policy")
		}
		stop()
		if !strings.Contains(log.String(), "no admission policy bounds this controller") {
			t.Errorf("log %s", log.String())
		}
	})
}

// An API server's error that is not from the policy does not show whether the policy exists.
func TestWhetherThePolicyIsThereIsNotKnown(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.api.Fail("create secrets", kubetest.Status(http.StatusForbidden, "Forbidden", "no right"))
		stop := r.leads(t)
		if r.Counts() != (Counts{}) || r.api.Count("put secrets") != 0 {
			t.Errorf("counts %+v", r.Counts())
		}
		stop()
	})
}

// A new leader knows the tokens of the previous one. It trusts neither the text of a Secret nor
// implausible records.
func TestMemory(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(o kubetest.Object)
		renewed uint64
	}{
		"as it was":             {func(kubetest.Object) {}, 0},
		"labels of Helm":        {func(o kubetest.Object) { o["metadata"].(kubetest.Object)["labels"] = kubetest.Object{"a": "b"} }, 0},
		"none":                  {func(o kubetest.Object) { delete(o, "data") }, 1},
		"damaged":               {func(o kubetest.Object) { o["data"] = kubetest.Object{memoryKey: "{"} }, 1},
		"of a key that is none": {stored(`"k":0`, `"k":1`), 1},
		"of a key before all":   {stored(`"k":0`, `"k":-1`), 1},
		"from the future":       {stored(`"i":9`, `"i":99`), 1},
		"that lives for ever":   {stored(`"s":3600`, `"s":99999999`), 1},
		"that never lived":      {stored(`"s":3600`, `"s":-3600`), 1},
		"that is expired":       {stored(`"s":3600`, `"s":1`), 1},
		"of other settings":     {stored(`"content":"`, `"content":"x`), 1},
		"of another version":    {stored(`"v":"`, `"v":"9`), 1},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, r *rig) {
				r.leads(t)()
				o := r.api.Object("configmaps", "pullpass", memoryName)
				if text := fmt.Sprint(o["data"]); strings.Contains(text, "eyJ") || !strings.Contains(text, `"i":9`) {
					t.Errorf("stored is %s", text)
				}
				test.change(o)
				r.api.Put("configmaps", o)
				next := newRig(t, r.api, "replica-2")
				defer next.leads(t)()
				if n := next.Counts().Renewed; n != test.renewed {
					t.Errorf("%d renewals, want %d", n, test.renewed)
				}
				if name == "labels of Helm" && r.api.Object("configmaps", "pullpass", memoryName)["metadata"].(kubetest.Object)["labels"].(kubetest.Object)["a"] != "b" {
					t.Error("the labels are gone")
				}
			})
		})
	}
}

// stored replaces text in the memory.
func stored(old, with string) func(kubetest.Object) {
	return func(o kubetest.Object) {
		o["data"] = kubetest.Object{memoryKey: strings.Replace(o["data"].(kubetest.Object)[memoryKey].(string), old, with, 1)}
	}
}

// A leader that is killed leaves its records of some seconds before.
func TestMemoryIsStoredMeanwhile(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		defer r.leads(t)()
		time.Sleep(5 * time.Second)
		if o := r.api.Object("configmaps", "pullpass", memoryName); o["data"] == nil {
			t.Error("nothing is stored")
		}
		if n := r.api.Count("put configmaps"); n != 1 {
			t.Errorf("it was stored %d times", n)
		}
	})
}

// Without the ConfigMap or the right to it, tokens are still maintained.
func TestMemoryIsMissing(t *testing.T) {
	for name, change := range map[string]func(*kubetest.Server){
		"missing": func(api *kubetest.Server) { api.Remove("configmaps", "pullpass", memoryName) },
		"forbidden": func(api *kubetest.Server) {
			api.Fail("get configmaps", kubetest.Status(http.StatusForbidden, "Forbidden", "no right"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, r *rig) {
				change(r.api)
				defer r.leads(t)()
				time.Sleep(time.Hour)
				if n := r.Counts().Renewed; n != 2 {
					t.Errorf("%d renewals in an hour", n)
				}
			})
		})
	}
}

// A memory without data is not damaged. A damaged one is, even if its content is that of these settings.
func TestWhatIsDamaged(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		content := r.secrets.content()
		for text, damaged := range map[string]bool{"": false, "{": true, `{"content":"` + content + `","keys":1}`: true} {
			o := object("pullpass", memoryName, "uid-memory", "")
			o["data"] = kubetest.Object{memoryKey: text}
			r.api.Put("configmaps", o)
			if err := r.memory.load(t.Context(), content); errors.Is(err, errDamaged) != damaged || (err == nil) == damaged {
				t.Errorf("%q: error %v", text, err)
			}
		}
	})
}

// A memory that cannot be stored is stored a minute later, and the log says so. The ConfigMap is read first: others may have written into it.
func TestMemoryCannotBeStoredNow(t *testing.T) {
	for _, request := range []string{"get configmaps", "put configmaps"} {
		t.Run(request, func(t *testing.T) {
			in(t, func(t *testing.T, r *rig) {
				var log strings.Builder
				r.log = slog.New(slog.NewTextHandler(&log, nil))
				stop := r.leads(t)
				r.api.Count("")
				r.memory.note("uid", noted{keyID: "k1", issued: time.Now(), expires: time.Now().Add(lifetime)})
				r.api.Fail(request, kubetest.Status(http.StatusInternalServerError, "InternalError", "etcd"))
				time.Sleep(30 * time.Second)
				if gets, puts := r.api.Count("get configmaps"), r.api.Count("put configmaps"); gets != 1 || request == "get configmaps" && puts != 0 {
					t.Errorf("it was read %d times and written %d times", gets, puts)
				}
				r.api.Fail(request, nil)
				time.Sleep(time.Minute)
				if n := r.api.Count("put configmaps"); n != 1 {
					t.Errorf("it was stored %d times", n)
				}
				stop()
				if n := strings.Count(log.String(), "what is known of tokens is not stored"); n != 1 {
					t.Errorf("log: %s", log.String())
				}
			})
		})
	}
}

// Records of expired tokens are dropped.
func TestMemoryForgetsExpiredTokens(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		now := time.Now()
		r.memory.note("old", noted{keyID: "k1", issued: now.Add(-lifetime), expires: now})
		r.memory.note("new", noted{keyID: "k1", issued: now, expires: now.Add(lifetime)})
		testkit.Value(r.memory.store(t.Context(), r.secrets.content()))(t)
		if text := fmt.Sprint(r.api.Object("configmaps", "pullpass", memoryName)["data"]); strings.Contains(text, `"old"`) || !strings.Contains(text, `"new"`) || len(r.memory.tokens) != 1 {
			t.Errorf("stored is %s", text)
		}
	})
}

// If the API server does not answer, the memory is read later, and no token is renewed because of
// that.
func TestMemoryCannotBeReadNow(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.leads(t)()
		r.api.Fail("get configmaps", kubetest.Status(http.StatusInternalServerError, "InternalError", "etcd"))
		next := newRig(t, r.api, "replica-2")
		defer next.leads(t)()
		time.Sleep(time.Minute)
		r.api.Fail("get configmaps", nil)
		time.Sleep(time.Minute)
		if n := next.Counts().Renewed; n != 0 || next.Status().Kept != 1 {
			t.Errorf("%d renewals", n)
		}
	})
}

// The memory is bounded. The next leader renews the other tokens.
func TestMemoryIsBounded(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		for i := range maxRemembered + 100 {
			r.memory.note(types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i)), noted{keyID: strings.Repeat("k", 43), issued: time.Now(), expires: time.Now().Add(lifetime), version: "12345678901234567890"})
		}
		size, err := r.memory.store(t.Context(), r.secrets.content())
		if err != nil || size > 1<<20 {
			t.Errorf("%d bytes, error %v", size, err)
		}
		if err := r.memory.load(t.Context(), r.secrets.content()); err != nil || len(r.memory.tokens) != maxRemembered {
			t.Errorf("%d tokens, error %v", len(r.memory.tokens), err)
		}
	})
}
