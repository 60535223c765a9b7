package audit

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/base/redact"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// history is an audit log that a test makes.
type history struct {
	events []*exchange.Event
}

func sumOf(text string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(text))) }

func (h *history) each(one func(*exchange.Event) error) error {
	for _, e := range h.events {
		if err := one(e); err != nil {
			return err
		}
	}
	return nil
}

func (h *history) add(e *exchange.Event) {
	e.ID, e.Status, e.Result = fmt.Sprint(len(h.events)), http.StatusOK, exchange.ResultGranted
	e.Time = noon.Add(time.Duration(len(h.events)) * time.Second)
	h.events = append(h.events, e)
}

func job(run string) *exchange.Event {
	return &exchange.Event{Service: "gateway", Identity: &exchange.Identity{Name: "github", Project: "7", Run: run}}
}

func pod(name string) *exchange.Event {
	return &exchange.Event{
		Service: "gateway", Cluster: "prod", Namespace: "team", ServiceAccount: &exchange.Object{Name: "web", UID: "uid-sa"},
		Pod: &exchange.Object{Name: name, UID: "uid-" + name}, Node: &exchange.Object{Name: "node-of-" + name},
	}
}

// manifest makes e a request for a manifest by the gateway.
func manifest(e *exchange.Event, method, repository, reference, sum, token string) *exchange.Event {
	e.Gateway = &exchange.GatewayRequest{Method: method, Kind: "manifest", Repository: repository, Reference: reference, Digest: sum, TokenID: token}
	return e
}

// opened makes e a request for a token.
func opened(e *exchange.Event, service, scope string) *exchange.Event {
	e.Service, e.Granted, e.IssuedID = service, []string{scope}, fmt.Sprint(service, scope, e.Pod, e.Identity)
	return e
}

func trace(t *testing.T, h *history, q TraceQuery) *Trace {
	t.Helper()
	return testkit.Value(NewTrace(q, h.each))(t)
}

func pushers(found *Trace) (all []string) {
	for _, p := range found.Pushes {
		all = append(all, strings.Join(append([]string{p.Run, p.Repository, p.Digest}, p.Tags...), " "))
	}
	slices.Sort(all)
	return all
}

func pullers(found *Trace) (all []string) {
	for _, p := range found.Pulls {
		all = append(all, strings.Join([]string{p.Pod, p.Repository, p.Digest}, " "))
	}
	slices.Sort(all)
	return all
}

func expect(t *testing.T, what string, got, want []string) {
	t.Helper()
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s: %d found, %d happened\n%q\n%q", what, len(got), len(want), got, want)
	}
}

// 50 builds push images of two architectures, some of them as a tag that moves or that another
// build sets again, and 2,000 pods pull them. Every trace says what really happened.
func TestTraceIsWhatHappened(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	h := &history{}
	type image struct{ repository, tag, index, platform, run string }
	type push struct{ run, repository, digest, tag string }
	var images []image
	var pushes []push
	pulls := map[string][]image{} // by pod
	put := func(run, repository, reference, sum string) {
		h.add(manifest(job(run), http.MethodPut, repository, reference, sum, "push-"+run))
		tag := reference
		if tag == sum {
			tag = ""
		}
		pushes = append(pushes, push{run, repository, sum, tag})
	}
	for i := range 50 {
		run := fmt.Sprint("run-", i)
		pushed := image{fmt.Sprint("ghcr.io/acme/app-", i%9), fmt.Sprint("v", i%4), sumOf("index of " + run), sumOf("platform of " + run), run}
		if i%10 == 9 { // another build's image, with a further tag
			old := images[random.IntN(len(images))]
			put(run, old.repository, "stable", old.index)
			old.tag = "stable"
			images = append(images, old)
		} else {
			put(run, pushed.repository, pushed.platform, pushed.platform)
			put(run, pushed.repository, pushed.tag, pushed.index)
			images = append(images, pushed)
		}
		for j := range 40 {
			name, from := fmt.Sprintf("pod-%d-%d", i, j), images[random.IntN(len(images))]
			// A tag that has moved since is pulled by its digest.
			reference := from.index
			for _, o := range slices.Backward(images) {
				if o.repository == from.repository && o.tag == from.tag {
					if o == from {
						reference = from.tag
					}
					break
				}
			}
			h.add(opened(pod(name), "gateway", "repository:"+from.repository+":pull"))
			h.add(manifest(pod(name), http.MethodHead, from.repository, reference, from.index, "pull-"+name))
			h.add(manifest(pod(name), http.MethodGet, from.repository, from.index, from.index, "pull-"+name))
			h.add(manifest(pod(name), http.MethodGet, from.repository, from.platform, from.platform, "pull-"+name))
			pulls[name] = append(pulls[name], from)
		}
	}
	want := func(chosen map[string]bool, repository string) (pushed, pulled []string) {
		for _, p := range pushes {
			if chosen[p.digest] && (repository == "" || repository == p.repository) {
				pushed = append(pushed, strings.TrimSpace(strings.Join([]string{p.run, p.repository, p.digest, p.tag}, " ")))
			}
		}
		for name, all := range pulls {
			for _, from := range all {
				for _, sum := range []string{from.index, from.platform} {
					if chosen[sum] && (repository == "" || repository == from.repository) {
						pulled = append(pulled, strings.Join([]string{name, from.repository, sum}, " "))
					}
				}
			}
		}
		return pushed, pulled
	}
	for i := range 50 {
		run := fmt.Sprint("run-", i)
		chosen := map[string]bool{}
		var own []string
		for _, p := range pushes {
			if p.run == run {
				chosen[p.digest] = true
				own = append(own, strings.TrimSpace(strings.Join([]string{p.run, p.repository, p.digest, p.tag}, " ")))
			}
		}
		found := trace(t, h, TraceQuery{Run: "github/" + run})
		_, pulled := want(chosen, "")
		expect(t, "pushes of "+run, pushers(found), own)
		expect(t, "pulls of what "+run+" pushed", pullers(found), pulled)
		if found.Inexact != 0 {
			t.Errorf("%s: %d are inexact", run, found.Inexact)
		}
	}
	for i, of := range images {
		if i%5 > 0 { // the rest is the same
			continue
		}
		for reference, has := range map[string]func(push) bool{
			"":                   func(push) bool { return true },
			"@" + of.index:       func(p push) bool { return p.digest == of.index },
			"@" + of.platform:    func(p push) bool { return p.digest == of.platform },
			":" + of.tag:         func(p push) bool { return p.tag == of.tag },
			":other@" + of.index: func(p push) bool { return p.digest == of.index },
		} {
			chosen := map[string]bool{}
			for _, p := range pushes {
				if p.repository == of.repository && has(p) {
					chosen[p.digest] = true
				}
			}
			pushed, pulled := want(chosen, of.repository)
			found := trace(t, h, testkit.Value(ParseReference(of.repository+reference))(t))
			expect(t, "pushes of "+of.repository+reference, pushers(found), pushed)
			expect(t, "pulls of "+of.repository+reference, pullers(found), pulled)
		}
	}
	for name, all := range pulls {
		chosen := map[string]bool{}
		var own []string
		for _, from := range all {
			for _, sum := range []string{from.index, from.platform} {
				chosen[sum] = true
				own = append(own, strings.Join([]string{name, from.repository, sum}, " "))
			}
		}
		pushed, _ := want(chosen, "")
		found := trace(t, h, TraceQuery{Pod: "prod/team/" + name})
		expect(t, "pulls of "+name, pullers(found), own)
		expect(t, "pushes of what "+name+" pulled", pushers(found), pushed)
		if name > "pod-1" { // the rest is the same
			break
		}
	}
}

// The token endpoint sees repositories and times alone. A pull may be of each push before it: a later
// push may have another tag, and the token of a run that only pulls may have the right to push. The
// token of a pull may also be older than the push.
func TestTraceWithoutDigests(t *testing.T) {
	t.Parallel()
	h := &history{}
	var after time.Duration
	open := func(e *exchange.Event, scope string) *exchange.Event {
		h.add(opened(e, "registry", scope))
		e.Time = noon.Add(after)
		return e
	}
	open(pod("early"), "repository:a:pull")
	after = time.Second
	open(pod("waiting"), "repository:a:pull")
	after += signing.MaxLifetime
	open(job("1"), "repository:a:pull,push")
	after += 2 * time.Hour
	open(pod("first"), "repository:a:pull")
	open(pod("other"), "repository:b:pull")
	after += 2 * time.Hour
	open(job("2"), "repository:a:push")
	after += 2 * time.Hour
	again := *open(pod("second"), "repository:a:pull")
	h.add(&again) // the same token, handed out again
	after += 2 * time.Hour
	open(pod("builder"), "repository:a:pull,push")
	open(pod("denied"), "repository:a:pull").Status = http.StatusForbidden
	open(job("1"), "repository:a:pull,push") // the same token
	h.add(opened(job("3"), "gateway", "repository:a:push"))
	h.add(manifest(job("4"), http.MethodPut, "c", "v1", sumOf("x"), "token"))
	for name, test := range map[string]struct {
		query          TraceQuery
		pushed, pulled []string
	}{
		"run 1":        {TraceQuery{Run: "github/1"}, []string{"1 a "}, []string{"waiting a ", " a ", "first a ", "second a ", "builder a "}},
		"run 2":        {TraceQuery{Run: "github/2"}, []string{"2 a "}, []string{"second a ", "builder a ", " a "}},
		"run of other": {TraceQuery{Run: "gitlab/1"}, nil, nil},
		"at a gateway": {TraceQuery{Run: "github/3"}, nil, nil},
		"early":        {TraceQuery{Pod: "uid-early"}, nil, []string{"early a "}},
		"waiting":      {TraceQuery{Pod: "uid-waiting"}, []string{"1 a "}, []string{"waiting a "}},
		"first":        {TraceQuery{Pod: "uid-first"}, []string{"1 a "}, []string{"first a "}},
		"second":       {TraceQuery{Pod: "prod/team/second"}, []string{"1 a ", "2 a "}, []string{"second a "}},
		"builder":      {TraceQuery{Pod: "uid-builder"}, []string{"1 a ", "2 a ", " a "}, []string{"builder a "}},
		"a":            {TraceQuery{Repository: "a"}, []string{"1 a ", "2 a ", " a "}, []string{"early a ", "waiting a ", " a ", "first a ", "second a ", "builder a "}},
		"a tag of a":   {TraceQuery{Repository: "a", Tag: "v1"}, []string{"1 a ", "2 a ", " a "}, []string{"early a ", "waiting a ", " a ", "first a ", "second a ", "builder a "}},
		"b":            {TraceQuery{Repository: "b"}, nil, []string{"other b "}},
	} {
		for _, order := range []string{"", ", backwards"} {
			found := trace(t, h, test.query)
			expect(t, "pushes of "+name+order, pushers(found), test.pushed)
			expect(t, "pulls of "+name+order, pullers(found), test.pulled)
			if found.Inexact != len(test.pushed)+len(test.pulled) {
				t.Errorf("%s%s: %d are inexact", name, order, found.Inexact)
			}
			slices.Reverse(h.events)
		}
	}
}

// Two registries may have repositories of the same name. Without a digest, the pulls of one are not those of
// the other. The same digest is the same image everywhere.
func TestTraceOfServices(t *testing.T) {
	t.Parallel()
	h := &history{}
	sum := sumOf("x")
	h.add(opened(job("1"), "registry", "repository:a:push"))
	h.add(opened(job("2"), "other", "repository:a:push"))
	h.add(opened(pod("web"), "registry", "repository:a:pull"))
	h.add(opened(pod("unrelated"), "other", "repository:a:pull"))
	h.add(manifest(job("3"), http.MethodPut, "up/a", "v1", sum, "push"))
	elsewhere := manifest(pod("elsewhere"), http.MethodGet, "up/a", "v1", sum, "pull")
	elsewhere.Service = "second-gateway"
	h.add(elsewhere)
	for name, test := range map[string]struct {
		query          TraceQuery
		pushed, pulled []string
	}{
		"run":                 {TraceQuery{Run: "github/1"}, []string{"1 a "}, []string{"web a "}},
		"pod":                 {TraceQuery{Pod: "uid-unrelated"}, []string{"2 a "}, []string{"unrelated a "}},
		"repository":          {TraceQuery{Repository: "a"}, []string{"1 a ", "2 a "}, []string{"web a ", "unrelated a "}},
		"repository, service": {TraceQuery{Repository: "a", Service: "other"}, []string{"2 a "}, []string{"unrelated a "}},
		"digest":              {TraceQuery{Run: "github/3"}, []string{"3 up/a " + sum + " v1"}, []string{"elsewhere up/a " + sum}},
		"digest, service":     {TraceQuery{Run: "github/3", Service: "gateway"}, []string{"3 up/a " + sum + " v1"}, nil},
	} {
		found := trace(t, h, test.query)
		expect(t, "pushes of "+name, pushers(found), test.pushed)
		expect(t, "pulls of "+name, pullers(found), test.pulled)
	}
}

// A push whose outcome is unknown is in a trace: the upstream may have stored the manifest.
func TestTraceOfUnknownOutcomes(t *testing.T) {
	t.Parallel()
	h := &history{}
	sum := sumOf("x")
	put := func(reference string, change func(*exchange.Event)) {
		e := manifest(job("1"), http.MethodPut, "a", reference, "", "token")
		e.Gateway.Received, e.Gateway.Digest = 2, sumOf(reference) // of what was sent
		h.add(e)
		change(e)
	}
	left := func(e *exchange.Event) { e.Status = 499 }
	failed := func(result exchange.Result, status, upstream int) func(*exchange.Event) {
		return func(e *exchange.Event) { e.Result, e.Status, e.Gateway.UpstreamStatus = result, status, upstream }
	}
	put("left", left)
	put("left-again", left)
	put(sum, func(e *exchange.Event) { left(e); e.Gateway.Digest = sum })
	put(sumOf("forged"), left) // of an image of others, of which nothing was sent
	put("cut", func(e *exchange.Event) { left(e); e.Gateway.Digest = "" })
	put("failing", failed(exchange.ResultUnavailable, 502, 500))
	put("late", failed(exchange.ResultUnavailable, 504, 0))
	put("revoked", failed(exchange.ResultRefused, 403, 0))
	put("broken", func(e *exchange.Event) { // the upstream had said 201
		failed(exchange.ResultUnavailable, 201, 201)(e)
		e.Gateway.Digest = sumOf("y")
	})
	put("invalid", failed(exchange.ResultGranted, 400, 400))
	put("denied", failed(exchange.ResultUnavailable, 502, 403))
	put("denied-and-left", failed(exchange.ResultGranted, 499, 403))
	put("not-asked", func(e *exchange.Event) {
		failed(exchange.ResultRefused, 403, 0)(e)
		e.Gateway.Received, e.Gateway.Digest = 0, ""
	})
	h.add(manifest(pod("web"), http.MethodGet, "b", sum, sum, ""))
	h.add(manifest(pod("other"), http.MethodGet, "b", sumOf("forged"), sumOf("forged"), ""))
	canceled := manifest(pod("canceled"), http.MethodGet, "a", sum, "", "")
	h.add(canceled)
	canceled.Status = 499
	found := trace(t, h, TraceQuery{Run: "github/1"})
	pushed := []string{"1 a " + sum, "1 a " + sumOf(sumOf("forged")), "1 a " + sumOf("y") + " broken"}
	for _, tag := range []string{"left", "left-again", "failing", "late", "revoked"} {
		pushed = append(pushed, "1 a "+sumOf(tag)+" "+tag)
	}
	expect(t, "pushes", pushers(found), pushed)
	expect(t, "pulls", pullers(found), []string{"web b " + sum})
	if found.Unknown != 7 || found.Inexact != 0 {
		t.Errorf("%d are unknown, and %d inexact", found.Unknown, found.Inexact)
	}
	for _, p := range found.Pushes {
		if isBroken := slices.Contains(p.Tags, "broken"); p.OutcomeUnknown == isBroken {
			t.Errorf("%+v", p)
		}
	}
	var table strings.Builder
	testkit.Must(t, found.Write(&table))
	if want := sum + " ?  "; !strings.Contains(table.String(), want) {
		t.Errorf("without %q:\n%s", want, table.String())
	}
	if all, _ := found.Targets(); !slices.Contains(all, Target{"run", "github/1"}) {
		t.Errorf("%v", all)
	}
}

// The audit log has no tag that looks like a token. It is found all the same.
func TestTraceOfAConcealedTag(t *testing.T) {
	t.Parallel()
	h := &history{}
	const tag = "eyJhbGciOiJSUzI1NiIs"
	sum := sumOf("x")
	logged := (*redact.Secrets)(nil).Name(tag)
	if strings.Contains(logged, tag) {
		t.Fatal(logged)
	}
	h.add(manifest(job("1"), http.MethodPut, "a", logged, sum, "token"))
	tagged := manifest(job("2"), http.MethodPut, "a", sum, sum, "token")
	tagged.Gateway.Tags = []string{logged}
	h.add(tagged)
	h.add(manifest(job("3"), http.MethodPut, "a", (*redact.Secrets)(nil).Name(tag+"x"), sumOf("y"), "token"))
	h.add(manifest(pod("web"), http.MethodGet, "a", logged, sum, ""))
	found := trace(t, h, TraceQuery{Repository: "a", Tag: tag})
	expect(t, "pushes", pushers(found), []string{"1 a " + sum + " " + logged, "2 a " + sum + " " + logged})
	expect(t, "pulls", pullers(found), []string{"web a " + sum})
}

// A redirect to a manifest is a pull of it.
func TestTraceOfRedirects(t *testing.T) {
	t.Parallel()
	h := &history{}
	sum := sumOf("x")
	h.add(manifest(job("1"), http.MethodPut, "a", "v1", sum, ""))
	for _, e := range []*exchange.Event{
		manifest(pod("by-tag"), http.MethodGet, "a", "v1", sum, ""),
		manifest(pod("by-digest"), http.MethodGet, "a", sum, "", ""), // a line of an older version
	} {
		h.add(e)
		e.Status = http.StatusTemporaryRedirect
	}
	expect(t, "pulls", pullers(trace(t, h, TraceQuery{Run: "github/1"})), []string{"by-tag a " + sum, "by-digest a " + sum})
}

// Where an upstream names no digest, the gateway's lines are in the traces that name them.
func TestTraceOfTagsWithoutDigests(t *testing.T) {
	t.Parallel()
	h := &history{}
	h.add(manifest(job("1"), http.MethodPut, "a", "v1", "", "push"))
	h.add(manifest(job("1"), http.MethodPut, "a", "v2", "", "push"))
	h.add(manifest(pod("web"), http.MethodHead, "a", "v1", "", "pull"))
	h.add(manifest(pod("web"), http.MethodGet, "a", "v1", "", "pull"))
	h.add(manifest(pod("web"), http.MethodGet, "a", "v2", "", "pull"))
	h.add(manifest(pod("other"), http.MethodGet, "b", "v1", "", "other"))
	h.add(opened(pod("asking"), "gateway", "repository:a:pull"))
	for name, test := range map[string]struct {
		query          TraceQuery
		pushed, pulled []string
	}{
		"run":        {TraceQuery{Run: "github/1"}, []string{"1 a  v1", "1 a  v2"}, nil},
		"other run":  {TraceQuery{Run: "github/2"}, nil, nil},
		"pod":        {TraceQuery{Pod: "uid-web"}, nil, []string{"web a ", "web a "}},
		"repository": {TraceQuery{Repository: "a"}, []string{"1 a  v1", "1 a  v2"}, []string{"web a ", "web a "}},
		"tag":        {TraceQuery{Repository: "a", Tag: "v1"}, []string{"1 a  v1"}, []string{"web a "}},
		"digest":     {TraceQuery{Repository: "a", Digest: sumOf("x")}, nil, nil},
	} {
		found := trace(t, h, test.query)
		expect(t, "pushes of "+name, pushers(found), test.pushed)
		expect(t, "pulls of "+name, pullers(found), test.pulled)
		if found.Inexact != len(test.pushed)+len(test.pulled) || found.Unknown != 0 {
			t.Errorf("%s: %d are inexact, %d unknown", name, found.Inexact, found.Unknown)
		}
	}
}

// A manifest that was not pulled is not in a trace.
func TestTraceLeavesOut(t *testing.T) {
	t.Parallel()
	h := &history{}
	sum := sumOf("x")
	for _, change := range []func(*exchange.Event){
		func(e *exchange.Event) { e.Status = http.StatusNotFound },
		func(e *exchange.Event) { e.Result = exchange.ResultUnavailable },
		func(e *exchange.Event) { e.Gateway.Method = http.MethodDelete },
		func(e *exchange.Event) { e.Gateway.Kind = "blob" },
		func(e *exchange.Event) { e.Gateway.Reference, e.Gateway.Digest = "v1", "" },
	} {
		e := manifest(pod("web"), http.MethodGet, "a", sum, sum, "")
		h.add(e)
		change(e)
	}
	if found := trace(t, h, TraceQuery{Repository: "a", Digest: sum}); len(found.Pulls)+len(found.Pushes) != 0 {
		t.Errorf("%+v", found)
	}
	broken := errors.New("broken")
	for n := range 2 {
		if _, err := NewTrace(TraceQuery{Repository: "a"}, func(func(*exchange.Event) error) error {
			if n--; n < 0 {
				return broken
			}
			return nil
		}); !errors.Is(err, broken) {
			t.Error(err)
		}
	}
}

func TestTraceTargets(t *testing.T) {
	t.Parallel()
	h := &history{}
	sum := sumOf("x")
	without := func(e *exchange.Event, change func(*exchange.Event)) *exchange.Event { change(e); return e }
	for _, e := range []*exchange.Event{job("1"), job("1"), job(""), without(job(""), func(e *exchange.Event) { e.Identity.Project = "" }), pod("builder"), without(pod("y"), func(e *exchange.Event) { e.Pod, e.ServiceAccount.Name = nil, "api" })} {
		h.add(manifest(e, http.MethodPut, "a", sum, sum, ""))
	}
	for _, e := range []*exchange.Event{pod("web"), pod("web"), without(pod("x"), func(e *exchange.Event) { e.Pod = nil }), job("2"),
		without(job(""), func(e *exchange.Event) { e.Identity.Project = "8" })} {
		h.add(manifest(e, http.MethodGet, "a", sum, sum, ""))
	}
	h.add(manifest(&exchange.Event{}, http.MethodGet, "a", sum, sum, "")) // anonymous
	got := fmt.Sprint(trace(t, h, TraceQuery{Repository: "a"}).Targets())
	if want := "[{run github/1} {project github/7} {pod-uid uid-builder} {service-account prod/team/api} {pod-uid uid-web} {service-account prod/team/web} {run github/2} {project github/8}] 2"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestTraceQueries(t *testing.T) {
	t.Parallel()
	sum := sumOf("x")
	for text, want := range map[string]TraceQuery{
		"a":                              {Repository: "a"},
		"a:v1":                           {Repository: "a", Tag: "v1"},
		"localhost:5000/a":               {Repository: "localhost:5000/a"},
		"localhost:5000/a:v1":            {Repository: "localhost:5000/a", Tag: "v1"},
		"a@" + sum:                       {Repository: "a", Digest: sum},
		"a:v1@" + sum:                    {Repository: "a", Tag: "v1", Digest: sum},
		"":                               {},
		":v1":                            {},
		"a:":                             {},
		"a@sha256:x":                     {},
		"a@" + strings.ToUpper(sum[:20]): {},
	} {
		got, err := ParseReference(text)
		if (err != nil) != (want == TraceQuery{}) || err == nil && got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, q := range []TraceQuery{{}, {Run: "github"}, {Run: "/1"}, {Run: "github/"}, {Pod: "a/b"}} {
		if _, err := NewTrace(q, (&history{}).each); err == nil {
			t.Errorf("%+v was accepted", q)
		}
	}
}

func FuzzReference(f *testing.F) {
	f.Add("a:v1")
	f.Add("a@" + sumOf("x"))
	f.Fuzz(func(t *testing.T, text string) {
		q, err := ParseReference(text)
		if err != nil {
			return
		}
		again := q.Repository
		if q.Tag != "" {
			again += ":" + q.Tag
		}
		if q.Digest != "" {
			again += "@" + q.Digest
		}
		if again != text {
			t.Errorf("%q became %q", text, again)
		}
	})
}
