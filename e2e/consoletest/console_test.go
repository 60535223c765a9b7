package consoletest

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/issuer"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

var pictures = flag.Bool("pictures", false, "write the pictures of the page that the documents show")

const (
	service = "registry.example.com"
	policy  = `apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own-namespace
  subjects: [{namespaces: ["team-*"]}]
  allow: [{repositories: ["{namespace}/**"], actions: [pull]}]
- name: asked-for
  subjects: [{namespaces: ["team-*"]}]
  annotation: pullpass.dev/repositories
  allow: [{repositories: ["shared/**"], actions: [pull]}]
deny:
- name: quarantine
  subjects: [{namespaces: [team-bad]}]
`
	evil     = `"><img src=x onerror="window.evil=1"><script>window.evil=1</script>`
	accounts = `apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: ServiceAccount, metadata: {name: web, namespace: team-a, uid: uid-of-web, annotations: {pullpass.dev/repositories: "shared/base:pull"}}}
- {apiVersion: v1, kind: ServiceAccount, metadata: {name: api, namespace: team-b, uid: uid-of-api, annotations: {pullpass.dev/repositories: '` + evil + `'}}}
`
)

// site is a Pullpass with its page, and a client that requests tokens.
type site struct {
	proxy  *pullpass.Proxy
	issuer *issuer.Issuer
	client *http.Client
	page   string
}

func start(t *testing.T) *site {
	t.Helper()
	ca := certs.NewCA(t, "ca")
	manifest := filepath.Join(t.TempDir(), "accounts.yaml")
	testenv.WriteFile(t, manifest, accounts)
	s := &site{issuer: issuer.Start(t, ca)}
	s.proxy = pullpass.Start(t, ca, pullpass.Config{
		Clusters: []pullpass.Cluster{{Name: "prod-eu", Issuer: s.issuer.URL, Audiences: []string{service}, Discovery: pullpass.Discovery{CAFile: ca.File},
			Kubernetes: pullpass.Kubernetes{ManifestFiles: []string{manifest}}}},
		Policy: policy, Service: service, Console: true,
	})
	s.client = &http.Client{Transport: ca.Transport(t)}
	s.page = "http://" + s.proxy.AdminAddress() + "/console/"
	return s
}

// pull asks for a token as a client of that name does.
func (s *site) pull(t *testing.T, client, namespace, account string, scopes ...string) {
	t.Helper()
	token := s.issuer.Token(t, service, namespace, account)
	s.proxy.NeverLog(token)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.proxy.URL+"/token?"+url.Values{"service": {service}, "scope": scopes}.Encode(), nil)
	testenv.Must(t, err)
	request.SetBasicAuth("serviceaccount", token)
	request.Header.Set("User-Agent", client)
	response := testenv.Value(s.client.Do(request))(t)
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		t.Fatal(err)
	}
}

// TestPageInABrowser acts as a user does: look, search, ask why, by mouse and by keyboard. The page sends no request to other servers, and
// it shows text of clients only as text.
func TestPageInABrowser(t *testing.T) {
	s := start(t)
	s.pull(t, "containerd/v2.1.4", "team-a", "web", "repository:team-a/web:pull")
	s.pull(t, "containerd/v2.1.4", "team-a", "web", "repository:shared/base:pull")
	s.pull(t, "containerd/v2.1.4", "team-b", "api", "repository:team-a/web:pull")
	s.pull(t, "containerd/v2.1.4", "team-bad", "job", "repository:team-bad/job:pull")
	s.pull(t, evil, "team-b", "api", "repository:team-b/api:pull", "repository:shared/base:pull")

	b := openBrowser(t)
	b.open(s.page, "#rows")
	b.until("five decisions are shown, by themselves", `document.querySelectorAll("#rows tr").length === 5`)
	if shown := ask[string](b, `document.getElementById("rows").innerText`); !strings.Contains(shown, "<img src=x onerror=") || !strings.Contains(shown, "prod-eu/team-a/web pod app-1") {
		t.Errorf("shown is %q", shown)
	}
	b.checkForbidden()

	// A new row comes by itself, screen readers announce it, and the focus stays.
	b.run(chromedp.Focus(chromedp.CSS("#rows tr:last-child a")))
	before := b.focused()
	s.pull(t, evil, "team-a", "web", "repository:team-a/live:pull")
	b.until("a new decision is shown", `document.querySelector("#rows tr").innerText.includes("team-a/live")`)
	if status := ask[string](b, `document.querySelector("[role=status][aria-live=polite]").innerText`); !strings.HasPrefix(status, "6 decisions; 1 new") {
		t.Errorf("who hears is told %q", status)
	}
	if after := b.focused(); after != before || !strings.HasPrefix(after, "A explain the decision of ") {
		t.Errorf("the focus went from %q to %q", before, after)
	}
	b.checkForbidden()

	// Search, by keyboard alone.
	b.run(chromedp.Focus(chromedp.CSS(`input[name=account]`)))
	b.press("team-bad" + kb.Enter)
	b.until("the search shows one", `location.search.includes("account=team-bad") && document.querySelectorAll("#rows tr").length === 1`)
	if shown := ask[string](b, `document.querySelector("#rows tr").innerText`); !strings.Contains(shown, "refused 403") || !strings.Contains(shown, "quarantine") {
		t.Errorf("found is %q", shown)
	}

	// One click says why, then and now.
	b.run(chromedp.Click(chromedp.CSS("#rows tr a")), chromedp.WaitVisible(chromedp.CSS("pre")))
	if why := ask[string](b, `document.querySelector("main").innerText`); !strings.Contains(why, "quarantine matches by subjects[0]") || !strings.Contains(why, "Then, and now") {
		t.Errorf("why: %q", why)
	}
	b.checkForbidden()

	t.Run("keyboard", func(t *testing.T) { checkKeyboard(t, b, s) })
	for target, want := range map[string]string{
		"who?action=pull&repository=team-a%2Fweb":                  "1 of 2",
		"who?action=pull&repository=" + url.QueryEscape(evil):      "is not the name of a repository",
		"reach?account=prod-eu%2Fteam-a%2Fweb":                     "shared/base: pull",
		"reach?account=prod-eu%2Fteam-b%2Fapi":                     "the annotation counts for nothing",
		"policy":                                                   "get no token, even if a rule allows access",
		"health":                                                   "4 granted, 2 refused, 0 failed",
		"line?id=" + url.QueryEscape(evil):                         "not among those that are remembered",
		"?repository=" + url.QueryEscape(evil) + "&result=granted": "0 decisions",
	} {
		b.open(s.page+target, "h1")
		if shown := ask[string](b, `document.body.innerText`); !strings.Contains(shown, want) {
			t.Errorf("%s: without %q: %s", target, want, shown)
		}
		b.checkForbidden()
	}
	if ask[bool](b, `"evil" in window`) {
		t.Error("a script from a request was run")
	}
	b.checkEnd(s.proxy.AdminAddress())
}

// checkKeyboard goes through the page as a user without a mouse.
func checkKeyboard(t *testing.T, b *browser, s *site) {
	b.open(s.page, "#rows tr a")
	b.run(chromedp.Click(chromedp.CSS("#live"))) // so that rows stay where they are
	b.open(s.page+"?result=refused", "#rows tr a")
	b.press(kb.Tab)
	if first := b.focused(); first != "A skip Skip to the content" {
		t.Errorf("first is %q", first)
	}
	var seen []string
	for range 40 {
		b.press(kb.Tab)
		seen = append(seen, b.focused())
		if strings.HasPrefix(seen[len(seen)-1], "A explain the decision of ") {
			break
		}
	}
	all := strings.Join(seen, "; ")
	for _, want := range []string{"A Decisions", "A Who can", "A Reach", "A Policy", "A Health", "INPUT pod", "INPUT account", "INPUT repository", "INPUT reason", "SELECT result", "BUTTON Search", "INPUT live", "DIV wide Decisions, scrollable", "A explain the decision of"} {
		if !strings.Contains(all, want) {
			t.Errorf("without %q: %s", want, all)
		}
	}
	// Each has a label, and the focus is visible.
	if unnamed := ask[int](b, `[...document.querySelectorAll("input, select")].filter(e => !e.labels.length).length`); unnamed != 0 {
		t.Errorf("%d fields have no label", unnamed)
	}
	if outline := ask[string](b, `getComputedStyle(document.activeElement).outlineStyle`); outline != "solid" {
		t.Errorf("the outline of the focused element is %q", outline)
	}
	if heads := ask[int](b, `document.querySelectorAll("th[scope=col]").length`); heads != 6 {
		t.Errorf("%d columns have a heading", heads)
	}
	b.press(kb.Enter)
	b.run(chromedp.WaitVisible(chromedp.CSS("pre")))
	if title := ask[string](b, `document.title`); title != "Decision – Pullpass" {
		t.Errorf("Enter leads to %q", title)
	}
}

// TestPageIsLightOrDark also makes the pictures of docs/how-to/console.md.
func TestPageIsLightOrDark(t *testing.T) {
	s := start(t)
	for i := range 6 {
		s.pull(t, "containerd/v2.1.4", "team-a", "web", fmt.Sprintf("repository:team-a/web-%d:pull", i))
	}
	s.pull(t, "containerd/v2.1.4", "team-b", "api", "repository:team-a/web:pull")
	s.pull(t, "docker/28.3.2", "team-a", "web", "repository:shared/base:pull")
	s.pull(t, "containerd/v2.1.4", "team-bad", "job", "repository:team-bad/job:pull")
	b := openBrowser(t)
	seen := map[string][]byte{}
	look := func(picture, scheme string) {
		seen[picture+scheme] = b.picture()
		if least := leastContrast(b); least < 4.5 { // WCAG 2.2, 1.4.3
			t.Errorf("%s%s: some text has a contrast of %.1f", picture, scheme, least)
		}
		if *pictures {
			testenv.Must(t, os.WriteFile("../../docs/how-to/"+picture+scheme+".png", seen[picture+scheme], 0o644))
		}
	}
	for _, scheme := range []string{"light", "dark"} {
		b.prefer(scheme)
		b.open(s.page, "#rows")
		b.until("the decisions are shown", `document.querySelectorAll("#rows tr").length === 9`)
		b.open(s.page, "#rows")
		look("console-", scheme)
		b.open(s.page+"policy", "table")
		// For the picture: the file of a test has a long name.
		ask[int](b, `[...document.querySelectorAll("td:last-child")].map(e => e.textContent = e.textContent.replace(/^.*[/]/, "/etc/pullpass/")).length`)
		look("console-policy-", scheme)
	}
	if bytes.Equal(seen["console-light"], seen["console-dark"]) {
		t.Error("light and dark look the same")
	}
}

// leastContrast returns the least contrast of a text with what is behind it.
func leastContrast(b *browser) float64 {
	return ask[float64](b, `(() => {
		const parse = c => { const m = c.match(/[\d.]+/g).map(Number); return m.length > 3 && m[3] === 0 ? null : m.slice(0, 3); };
		const light = c => { const [r, g, b] = c.map(v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
		const behind = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c) return c; } return [255, 255, 255]; };
		let least = 21;
		for (const e of document.querySelectorAll("body *")) {
			if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
			const [a, z] = [light(parse(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
			least = Math.min(least, (a + 0.05) / (z + 0.05));
		}
		return least;
	})()`)
}
