package console

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"html/template"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/policy/reach"
	"github.com/pullpass/pullpass/internal/server/audit"
	"github.com/pullpass/pullpass/internal/server/explain"
)

// Prefix is the path of the console.
const Prefix = "/console/"

//go:embed templates static
var files embed.FS

// Config configures a Handler. Every field except Hosts must be set.
type Config struct {
	Log    *Log
	Known  func() explain.Known // the present state
	Health func() []Group       // the present state of the dependencies
	// Hosts are the names of an authenticating proxy for the console. Without any, only callers
	// from this machine are allowed, such as kubectl port-forward.
	Hosts  []string
	Logger *slog.Logger
}

// Group holds the dependencies of one kind.
type Group struct {
	Kind   string
	Checks []Check
}

// Check is the state of one dependency.
type Check struct {
	Name, Message string
	Healthy       bool
}

// Handler is the console. It serves GET and HEAD requests and changes nothing.
type Handler struct {
	Config
	pages  *template.Template
	static http.Handler
	// asking bounds the number of concurrent queries that need more than the memory of this
	// process.
	asking  chan struct{}
	shadows shadows
}

const (
	maxAsking = 4
	// askTimeout is shorter than the write timeout of the listener.
	askTimeout = 20 * time.Second
)

// New returns the console.
func New(c Config) (*Handler, error) {
	pages, err := template.New("").Funcs(template.FuncMap{"subject": reach.Text, "join": strings.Join}).ParseFS(files, "templates/*.html")
	if err != nil {
		return nil, err
	}
	static, err := fs.Sub(files, "static")
	if err != nil {
		return nil, err
	}
	return &Handler{Config: c, pages: pages, static: http.FileServerFS(static), asking: make(chan struct{}, maxAsking)}, nil
}

// contentPolicy lets the browser load only resources of the console. Inline scripts and styles, forms to
// other sites, and frames are forbidden. No script can turn a text into HTML.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; " +
	"require-trusted-types-for 'script'; trusted-types 'none'"

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", contentPolicy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
	if why := h.refusal(r); why != "" {
		http.Error(w, why, http.StatusForbidden)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		http.Error(w, "the page only shows", http.StatusMethodNotAllowed)
		return
	}
	switch path := strings.TrimPrefix(r.URL.Path, Prefix); path {
	case "":
		h.decisions(w, r)
	case "rows.json":
		h.rows(w, r)
	case "line":
		h.line(w, r)
	case "who":
		h.who(w, r)
	case "reach":
		h.reach(w, r)
	case "policy":
		h.policy(w, r)
	case "health":
		h.health(w, r)
	case "explain.json", "pod.json", "who.json", "reach.json":
		h.answer(w, r, strings.TrimSuffix(path, ".json"))
	case "style.css", "script.js", "icon.svg":
		r.URL.Path = "/" + path
		h.static.ServeHTTP(w, r)
	default:
		http.NotFound(w, r)
	}
}

// refusal says why a request is refused, or returns an empty text. A page of another site can
// resolve its own name to this machine (DNS rebinding): then Host is that name. And any client of
// the listener can send any Host: then the caller is not this machine.
func (h *Handler) refusal(r *http.Request) string {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	switch isNamed := slices.Contains(h.Hosts, host); {
	case isNamed:
	case !isLoopback(host):
		return "the page is at localhost, through kubectl port-forward, or at one of admin.consoleHosts"
	case !fromHere(r):
		return "the page is for callers from this machine, such as kubectl port-forward, or at one of admin.consoleHosts"
	}
	if origin := r.Header.Get("Origin"); origin != "" && origin != "http://"+r.Host && origin != "https://"+r.Host {
		return "the page answers no other page"
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		return "the page answers no other page: open it by itself"
	}
	return ""
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// fromHere reports whether the caller is a program of this machine that acts for itself. A local
// proxy, such as that of a service mesh, acts for other callers. It adds headers that say so, or
// calls from another address of the loopback network.
func fromHere(r *http.Request) bool {
	address, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !slices.Contains(here, address.Addr().Unmap()) {
		return false
	}
	return !slices.ContainsFunc(forwarding, func(name string) bool { return r.Header.Get(name) != "" })
}

var (
	here       = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	forwarding = []string{"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP"}
)

// page holds the fields that all pages share.
type page struct {
	Name, Title string
	Problem     string // why there is no result
	Data        any
}

func (h *Handler) write(w http.ResponseWriter, p page) {
	var out bytes.Buffer
	if err := h.pages.ExecuteTemplate(&out, p.Name+".html", p); err != nil {
		h.Logger.Error("console", "page", p.Name, "error", err)
		http.Error(w, "internal error", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(out.Bytes())
}

// found is a page of decisions.
type found struct {
	Query    query             `json:"-"`
	Rows     []row             `json:"rows"`
	Total    int               `json:"total"`
	Previous string            `json:"-"` // address of the newer page, or empty
	Next     string            `json:"-"` // address of the older page, or empty
	Results  []exchange.Result `json:"-"`
	Dropped  uint64            `json:"dropped"`
	Problem  string            `json:"problem,omitempty"` // why decisions of other replicas are missing
}

func (h *Handler) find(r *http.Request) found {
	q := readQuery(r.URL.Query())
	h.Log.fetch(r.Context())
	events := h.Log.newest(&q)
	start := min((q.Page-1)*pageRows, len(events))
	f := found{Query: q, Rows: []row{}, Total: len(events), Dropped: h.Log.dropped.Load() + h.Log.unsent.Load(), Results: exchange.Results()}
	for _, e := range events[start:min(start+pageRows, len(events))] {
		f.Rows = append(f.Rows, rowOf(e))
	}
	if q.Page > 1 {
		f.Previous = q.at(q.Page - 1)
	}
	if start+pageRows < len(events) {
		f.Next = q.at(q.Page + 1)
	}
	if problem := h.Log.failure.Load(); problem != nil {
		f.Problem = *problem
	}
	return f
}

func (h *Handler) decisions(w http.ResponseWriter, r *http.Request) {
	h.write(w, page{Name: "decisions", Title: "Decisions", Data: h.find(r)})
}

func (h *Handler) rows(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(h.find(r))
}

// ask runs a query unless too many are running.
func (h *Handler) ask(r *http.Request, question func(ctx context.Context) error) (problem string) {
	select {
	case h.asking <- struct{}{}:
		defer func() { <-h.asking }()
	default:
		return "too many questions at once; ask again"
	}
	ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
	defer cancel()
	if err := question(ctx); err != nil {
		return err.Error()
	}
	return ""
}

// line is one decision, with its result then and now.
type line struct {
	Row    row
	Event  string // as in the audit log
	Answer string // of explain
	Trace  string // of the image, if it is a request for a manifest
}

func (h *Handler) line(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("id")
	p := page{Name: "line", Title: "Decision"}
	event := h.Log.find(id)
	if event == nil {
		p.Problem = "this decision is not among those that are remembered; the audit log has it"
		w.WriteHeader(http.StatusNotFound)
		h.write(w, p)
		return
	}
	text, err := json.MarshalIndent(event, "", "  ")
	if err != nil {
		p.Problem = err.Error()
	}
	shown := line{Row: rowOf(event), Event: string(text)}
	p.Problem = h.ask(r, func(ctx context.Context) error {
		answer, err := h.Known().Again(ctx, event)
		if err != nil {
			return err
		}
		var out bytes.Buffer
		if err := explain.WriteText(&out, answer); err != nil {
			return err
		}
		shown.Answer = out.String()
		shown.Trace, err = h.trace(event)
		return err
	})
	p.Data = shown
	h.write(w, p)
}

// trace returns the remembered pushes and pulls of the manifest of a request.
func (h *Handler) trace(event *exchange.Event) (string, error) {
	if event.Gateway == nil || event.Gateway.Digest == "" {
		return "", nil
	}
	events := h.Log.newest(&query{})
	found, err := audit.NewTrace(audit.TraceQuery{Repository: event.Gateway.Repository, Digest: event.Gateway.Digest, Service: event.Service}, func(one func(*exchange.Event) error) error {
		for _, e := range events {
			if err := one(e); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	err = found.Write(&out)
	return out.String(), err
}

type whoPage struct {
	Action, Repository, Service string
	Actions, Services           []string
	Answer                      *reach.Who
	Most                        int // maximum number of ServiceAccounts shown for a cluster
}

const maxShown = 200

func (h *Handler) who(w http.ResponseWriter, r *http.Request) {
	values, known := r.URL.Query(), h.Known()
	shown := whoPage{Action: values.Get("action"), Repository: strings.TrimSpace(values.Get("repository")), Service: values.Get("service"), Actions: reach.Actions, Most: maxShown}
	for i := range known.Config.Registries {
		shown.Services = append(shown.Services, known.Config.Registries[i].Service)
	}
	if shown.Service == "" {
		shown.Service = shown.Services[0]
	}
	p := page{Name: "who", Title: "Who can"}
	if shown.Repository != "" {
		p.Problem = h.ask(r, func(ctx context.Context) (err error) {
			shown.Answer, err = known.Who(ctx, explain.WhoRequest{Action: shown.Action, Repository: shown.Repository, Service: shown.Service})
			if errors.Is(err, context.DeadlineExceeded) {
				err = errors.New("it took too long: ask pullpass who-can, which waits longer")
			}
			return err
		})
	}
	p.Data = &shown
	h.write(w, p)
}

type reachPage struct {
	Account string
	Answer  *reach.What
}

func (h *Handler) reach(w http.ResponseWriter, r *http.Request) {
	shown := reachPage{Account: strings.TrimSpace(r.URL.Query().Get("account"))}
	p := page{Name: "reach", Title: "What can be reached"}
	if shown.Account != "" {
		p.Problem = h.ask(r, func(ctx context.Context) (err error) {
			shown.Answer, err = h.Known().What(ctx, shown.Account)
			return err
		})
	}
	p.Data = &shown
	h.write(w, p)
}

type healthPage struct {
	Groups          []Group
	Plots           []plot
	Events          int
	Dropped, Unsent uint64
	Problem         string
}

func (h *Handler) health(w http.ResponseWriter, _ *http.Request) {
	shown := healthPage{Groups: h.Health(), Dropped: h.Log.dropped.Load(), Unsent: h.Log.unsent.Load()}
	h.Log.mu.Lock()
	buckets := h.Log.load.last(h.Log.config.Now())
	shown.Events = len(h.Log.known)
	h.Log.mu.Unlock()
	shown.Plots = plots(buckets)
	if problem := h.Log.failure.Load(); problem != nil {
		shown.Problem = *problem
	}
	h.write(w, page{Name: "health", Title: "Health", Data: shown})
}
