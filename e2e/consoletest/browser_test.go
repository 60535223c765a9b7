package consoletest

import (
	"context"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/pullpass/pullpass/e2e/testenv"
)

// The limits are for a machine with much else to do.
const (
	browserLimit = 5 * time.Minute
	waitLimit    = time.Minute
)

// browser is a Chromium that notes where it asks, and of what it complains.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu         sync.Mutex
	asked      []string // URLs
	complaints []string
}

func openBrowser(t *testing.T) *browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("%v: as root on Debian, .ci/install e2e installs it", err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.UserDataDir(t.TempDir()), chromedp.WindowSize(1280, 640),
		chromedp.NoSandbox, // the tests are root's, and the page is ours
		chromedp.WSURLReadTimeout(browserLimit))
	limited, cancelLimit := context.WithTimeout(t.Context(), browserLimit)
	t.Cleanup(cancelLimit)
	allocator, cancel := chromedp.NewExecAllocator(limited, options...)
	t.Cleanup(cancel)
	b := &browser{t: t}
	b.ctx, cancel = chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	t.Cleanup(func() { _ = chromedp.Cancel(b.ctx) }) // and waits until it has ended
	testenv.Must(t, chromedp.Listen(b.ctx, b.note))
	call(b, network.Enable, network.EnableParams{})
	call(b, log.Enable, cdp.Empty{})
	// The page gets an event for each violation of its policy.
	call(b, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{
		Source: `window.forbidden = []; document.addEventListener("securitypolicyviolation", e => window.forbidden.push(e.violatedDirective + " " + e.blockedURI));`,
	})
	return b
}

func (b *browser) note(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.asked = append(b.asked, e.Request.URL)
	case *log.EventEntryAdded:
		b.complaints = append(b.complaints, e.Entry.Text+" "+e.Entry.URL)
	case *runtime.EventExceptionThrown:
		b.complaints = append(b.complaints, e.ExceptionDetails.Text)
	case *page.EventJavascriptDialogOpening:
		b.complaints = append(b.complaints, "dialog: "+e.Message)
	}
}

func call[P, R any](b *browser, command cdp.Command[P, R], params P) {
	b.t.Helper()
	if _, err := chromedp.Call(b.ctx, command, params); err != nil {
		b.t.Fatal(err)
	}
}

func (b *browser) run(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	testenv.Must(b.t, chromedp.Do(b.ctx, actions...))
}

// open goes to a page and waits for its content.
func (b *browser) open(address, selector string) {
	b.t.Helper()
	b.run(chromedp.Navigate(address), chromedp.WaitVisible(chromedp.CSS(selector)))
}

// ask evaluates an expression.
func ask[T any](b *browser, expression string) T {
	b.t.Helper()
	answer, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return answer
}

// until waits for an expression to be true. The policy of the page lets no script be made of a text, so that it has to be asked again.
func (b *browser) until(what, expression string) {
	b.t.Helper()
	var holds bool
	var err error // the page is just being left
	if !testenv.Poll(waitLimit, func() bool {
		holds, err = chromedp.Run(b.ctx, chromedp.Evaluate[bool](expression))
		return err == nil && holds
	}) {
		b.t.Fatalf("timed out: %s: %v\n%s", what, err, ask[string](b, `document.body.innerText`))
	}
}

func (b *browser) press(keys string) { b.t.Helper(); b.run(chromedp.KeyEvent(keys)) }

// focused says what has the focus.
func (b *browser) focused() string {
	b.t.Helper()
	return ask[string](b, `(e => [e.tagName, e.name || e.id || e.className, (e.getAttribute("aria-label") || e.textContent || "").trim()].filter(s => s).join(" "))(document.activeElement)`)
}

// prefer sets what the user has chosen for all pages.
func (b *browser) prefer(scheme string) {
	b.t.Helper()
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
}

func (b *browser) picture() []byte {
	b.t.Helper()
	png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	testenv.Must(b.t, err)
	return png
}

// checkForbidden looks whether the page that is open tried what it must not.
func (b *browser) checkForbidden() {
	b.t.Helper()
	if forbidden := ask[[]string](b, `window.forbidden`); len(forbidden) > 0 {
		b.t.Errorf("the policy of the page forbade %q", forbidden)
	}
	if scripts := ask[int](b, `document.querySelectorAll("main script, main img, main iframe, main style, [style], [onclick], [onerror]").length`); scripts != 0 {
		b.t.Errorf("%d elements of the page are not its own", scripts)
	}
}

// checkEnd looks at all that was asked and said.
func (b *browser) checkEnd(host string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.asked) < 10 {
		b.t.Errorf("only %d requests were seen", len(b.asked))
	}
	for _, address := range b.asked {
		if u, err := url.Parse(address); err != nil || u.Host != host && u.Scheme != "about" {
			b.t.Errorf("the page asked %s", address)
		}
	}
	for _, complaint := range b.complaints {
		if !strings.Contains(complaint, "/console/line?id=%22") { // which is not there
			b.t.Errorf("the browser says: %s", complaint)
		}
	}
}
