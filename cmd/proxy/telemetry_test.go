package main

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/server/telemetry"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const (
	callersTrace = "0af7651916cd43dd8448eb211c80319c"
	callersSpan  = "b7ad6b7169203331"
	sampled      = "00-" + callersTrace + "-" + callersSpan + "-01"
	notSampled   = "00-" + callersTrace + "-" + callersSpan + "-00"
)

// process runs serve in a process of its own, because the SDK reads the
// environment, and returns what ends it.
func process(t *testing.T, p *proxytest.Proxy, env ...string) (stop func() error) {
	t.Helper()
	_, stop = startProcess(t, p, env...)
	testkit.Eventually(t, "the service gets ready", func() bool { return p.Ready(t) })
	return stop
}

// startProcess is process for those who do not wait.
func startProcess(t *testing.T, p *proxytest.Proxy, env ...string) (serve *exec.Cmd, stop func() error) {
	t.Helper()
	program := testkit.Value(os.Executable())(t)
	serve = exec.Command(program)
	serve.Args = []string{"pullpass", "serve", "--config", filepath.Join(p.Dir, "pullpass.yaml")} // see TestMain
	serve.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	serve.Stdout, serve.Stderr = p.Stdout, p.Log
	testkit.Must(t, serve.Start())
	stop = sync.OnceValue(func() error {
		_ = serve.Process.Signal(syscall.SIGTERM)
		return serve.Wait()
	})
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("ended with %v\n%s", err, p.Log)
		}
	})
	return serve, stop
}

// One exchange is one trace, which goes on from the caller's, and the audit line
// leads to it and back.
func TestTelemetry(t *testing.T) {
	t.Parallel()
	for protocol, start := range map[string]func(*testing.T) *collector{telemetry.ProtocolGRPC: startGRPCCollector, telemetry.ProtocolHTTP: startHTTPCollector} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			c := start(t)
			p := proxytest.New(t, "  kubernetes: {manifestFiles: [serviceaccounts.yaml]}\n", nil)
			stop := process(t, p, "OTEL_EXPORTER_OTLP_ENDPOINT="+c.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL="+protocol,
				"OTEL_RESOURCE_ATTRIBUTES=k8s.namespace.name=pullpass-system")
			raw := kubetest.Token(t, "https://issuer.example.com")
			request := p.Post(t, raw)
			request.Header.Set("X-Forwarded-For", "192.0.2.1") // of an untrusted proxy
			request.Header.Set("User-Agent", strings.Repeat("a", 10_000))
			if status := p.Ask(t, sampled, request); status != http.StatusOK {
				t.Fatalf("status %d", status)
			}
			testkit.Must(t, stop()) // at once: waiting spans are sent now
			spans := c.trace(callersTrace)
			if got, want := spanNames(spans), "POST /auth/token, decide, issue, kube, state, verify"; got != want {
				t.Fatalf("spans %s, want %s", got, want)
			}
			root := spans["POST /auth/token"]
			for name, span := range spans {
				want := hex.EncodeToString(root.SpanId)
				if span == root {
					want = callersSpan
				}
				if got := hex.EncodeToString(span.ParentSpanId); got != want {
					t.Errorf("%s is below %s, want %s", name, got, want)
				}
				if span.StartTimeUnixNano < root.StartTimeUnixNano || span.EndTimeUnixNano > root.EndTimeUnixNano || len(span.Events) > 0 {
					t.Errorf("%s: %v", name, span)
				}
			}
			event := p.LastEvent(t)
			got := attributes(root.Attributes)
			for name, want := range map[string]string{
				"pullpass.request_id": event.ID, "pullpass.result": "granted", "pullpass.reason": "", "pullpass.cluster": "prod",
				"pullpass.service": "registry.example.com", "pullpass.grant_type": "password",
				"client.address": "127.0.0.1", "http.route": "/auth/token", "user_agent.original": strings.Repeat("a", 1<<10),
			} {
				if got[name] != want {
					t.Errorf("%s is %q, want %q", name, got[name], want)
				}
			}
			if event.TraceID != callersTrace {
				t.Errorf("the audit line is of trace %q", event.TraceID)
			}
			for name, want := range map[string]string{"service.name": "pullpass", "service.version": programVersion(), "k8s.namespace.name": "pullpass-system"} {
				if c.about[name] != want {
					t.Errorf("%s is %q, want %q", name, c.about[name], want)
				}
			}
			if c.about["service.instance.id"] == "" {
				t.Error("replicas cannot be told apart")
			}
			exchanges := c.metric("pullpass_exchanges_total").GetSum()
			if points := exchanges.GetDataPoints(); len(points) != 1 || points[0].GetAsDouble() != 1 || !exchanges.IsMonotonic || attributes(points[0].Attributes)["grant_type"] != "password" {
				t.Errorf("exchanges %v", exchanges)
			}
			duration := c.metric("pullpass_exchange_duration_seconds").GetExponentialHistogram().GetDataPoints()
			if len(duration) != 1 || duration[0].Count != 1 || duration[0].GetSum() <= 0 {
				t.Errorf("durations %v", duration)
			}
			if c.metric("pullpass_telemetry_failures_total").GetSum().GetDataPoints()[0].GetAsDouble() != 0 || c.metric("go_goroutines") == nil {
				t.Error("metrics are missing")
			}
			c.expectNothingOf(t, raw)
		})
	}
}

// Whatever form a credential comes in, and wherever it is by mistake.
func TestTelemetryHoldsNoSecret(t *testing.T) {
	t.Parallel()
	c := startHTTPCollector(t)
	p := proxytest.New(t, "limits: {perServiceAccount: {rate: 10000, burst: 10000}, perAddress: {rate: 10000, burst: 10000}}\n", nil)
	stop := process(t, p, "OTEL_EXPORTER_OTLP_ENDPOINT="+c.endpoint)
	raw, service := kubetest.Token(t, "https://issuer.example.com"), "registry.example.com"
	forge := func(token string) string { return token[:len(token)-20] + strings.Repeat("A", 20) }
	forged := forge(raw)
	with := func(request *http.Request, header, value string) *http.Request {
		request.Header.Set(header, value)
		return request
	}
	basic := base64.StdEncoding.EncodeToString([]byte("serviceaccount:" + raw))
	for name, request := range map[string]*http.Request{
		"Basic":            with(p.Get(t, url.Values{"service": {service}}), "Authorization", "Basic "+basic),
		"Bearer":           with(p.Get(t, url.Values{"service": {service}}), "Authorization", "Bearer "+raw),
		"forged":           with(p.Get(t, url.Values{"service": {service}}), "Authorization", "Bearer "+forged),
		"form":             p.Post(t, raw),
		"account":          p.Get(t, url.Values{"service": {service}, "account": {raw}, "client_id": {raw}}),
		"query":            p.Get(t, url.Values{"service": {service}, "password": {raw}, "token": {raw}}),
		"service":          p.Get(t, url.Values{"service": {raw}}),
		"scope":            with(p.Get(t, url.Values{"service": {service}, "scope": {"repository:" + raw + ":pull"}}), "Authorization", "Bearer "+raw),
		"malformed":        with(p.Get(t, url.Values{"service": {service}, "scope": {raw}}), "Authorization", "Bearer "+raw),
		"password in URL":  p.Get(t, url.Values{"service": {service}, "account": {"a"}}),
		"cookie":           with(p.Get(t, url.Values{"service": {service}}), "Cookie", "token="+raw),
		"unknown location": with(p.Get(t, url.Values{"service": {service}}), "X-Token", raw),
		"baggage":          with(p.Get(t, url.Values{"service": {service}}), "Baggage", "token="+raw),
	} {
		if name == "password in URL" {
			request.URL.User = url.UserPassword("serviceaccount", raw)
		}
		p.Ask(t, sampled, request)
	}
	// In fields that are written down. A piece from the middle shows by nothing but
	// the credential beside it what it is.
	piece := raw[len(raw)/2:][:40]
	for _, text := range []string{raw, basic, piece, basic[200:240], "containerd/v2 " + raw} {
		for name, put := range map[string]func(*http.Request){
			"host":             func(r *http.Request) { r.Host = strings.ReplaceAll(text, " ", "-") },
			"host and port":    func(r *http.Request) { r.Host = strings.ReplaceAll(text, " ", "-") + ":443" },
			"agent":            func(r *http.Request) { r.Header.Set("User-Agent", text) },
			"after long agent": func(r *http.Request) { r.Header.Set("User-Agent", strings.Repeat("a ", 120)+text) },
			"forwarded for":    func(r *http.Request) { r.Header.Set("X-Forwarded-For", text) },
			"state":            func(r *http.Request) { r.Header.Set("Tracestate", "vendor="+strings.TrimRight(text, "=")) },
			"second state":     func(r *http.Request) { r.Header["Tracestate"] = []string{"a=b", "vendor=" + text} },
			"method":           func(r *http.Request) { r.Method = strings.ReplaceAll(text, " ", "-") },
			"service":          func(r *http.Request) { r.URL.RawQuery = url.Values{"service": {text}}.Encode() },
			"client":           func(r *http.Request) { r.URL.RawQuery += "&" + url.Values{"client_id": {text}}.Encode() },
			"account":          func(r *http.Request) { r.URL.RawQuery += "&" + url.Values{"account": {text}}.Encode() },
			"scope name": func(r *http.Request) {
				r.URL.RawQuery += "&" + url.Values{"scope": {"repository:" + text + ":pull"}}.Encode()
			},
			"scope host": func(r *http.Request) {
				r.URL.RawQuery += "&" + url.Values{"scope": {"repository:" + text + ".a/b:pull"}}.Encode()
			},
			"scope action": func(r *http.Request) { r.URL.RawQuery += "&" + url.Values{"scope": {"repository:a:" + text}}.Encode() },
		} {
			for _, authorization := range []string{"Bearer " + raw, "Basic " + basic, "Bearer " + forged} {
				if name == "method" && strings.Contains(text, "/") || text == basic[200:240] && authorization != "Basic "+basic {
					continue // no method, and nothing that shows what it is
				}
				request := with(p.Get(t, url.Values{"service": {service}}), "Authorization", authorization)
				put(request)
				request.Header.Set("Traceparent", sampled)
				response, err := p.Client.Do(request)
				if err != nil {
					t.Errorf("%s: %v", name, err)
					continue
				}
				if response.StatusCode != http.StatusOK { // clients write that to logs as well
					_, err = io.Copy(p.Log, response.Body)
					testkit.Must(t, err)
				}
				testkit.Must(t, response.Body.Close())
			}
		}
		for name, change := range map[string]func(*http.Request, url.Values){
			"agent": func(r *http.Request, _ url.Values) { r.Header.Set("User-Agent", text) },
			"host":  func(r *http.Request, _ url.Values) { r.Host = strings.ReplaceAll(text, " ", "-") },
			"state": func(r *http.Request, _ url.Values) {
				r.Header.Set("Tracestate", "vendor="+strings.TrimRight(text, "="))
			},
			"client": func(_ *http.Request, form url.Values) { form.Set("client_id", text) },
			"user":   func(_ *http.Request, form url.Values) { form.Set("username", text) },
		} {
			form := url.Values{"grant_type": {"password"}, "service": {service}, "username": {"x"}, "password": {raw}}
			request := p.Post(t, raw)
			change(request, form)
			if text == basic[200:240] {
				continue // nothing shows what it is: a form has no such thing
			}
			request.Body, request.ContentLength = io.NopCloser(strings.NewReader(form.Encode())), int64(len(form.Encode()))
			if status := p.Ask(t, sampled, request); status != http.StatusOK && len(text) < 100 {
				t.Errorf("%s: status %d", name, status)
			}
		}
	}
	// A part that would look like none if it were cut before, beside no credential.
	signature := raw[strings.LastIndexByte(raw, '.')+1:]
	p.Ask(t, sampled, with(p.Get(t, url.Values{"service": {service}}), "User-Agent", strings.Repeat("a ", 110)+signature))
	// In what a token says of itself: short ones, which would be quoted whole.
	for _, inner := range []string{raw[:200], raw[len(raw)-80:]} {
		for _, claim := range []string{"iss", "sub", "jti"} {
			claims := kubetest.TokenClaims("https://issuer.example.com")
			claims[claim] = inner
			p.Ask(t, sampled, with(p.Get(t, url.Values{"service": {service}}), "Authorization", "Bearer "+forge(kubetest.SignToken(t, claims))))
		}
		for _, header := range []string{`{"alg":"ES256","kid":"` + inner + `"}`, `{"alg":"` + inner + `"}`, `{"alg":"ES256","` + inner + `":"x"}`} {
			parts := strings.Split(raw, ".")
			parts[0] = base64.RawURLEncoding.EncodeToString([]byte(header))
			p.Ask(t, sampled, with(p.Get(t, url.Values{"service": {service}}), "Authorization", "Bearer "+strings.Join(parts, ".")))
		}
	}
	// A path without an endpoint is not traced at all.
	p.Fetch(t, "https://"+p.Address+"/token/"+raw)
	testkit.Must(t, stop())
	if got := c.metric("pullpass_exchanges_total").GetSum().GetDataPoints(); len(got) < 4 {
		t.Errorf("only %d kinds of exchanges: %v", len(got), got)
	}
	if got := spanNames(c.trace(callersTrace)); !strings.Contains(got, "GET /token") || !strings.Contains(got, "POST /auth/token") {
		t.Errorf("spans %s", got)
	}
	c.expectNothingOf(t, raw, forged, basic, url.QueryEscape(raw))
	testkit.ExpectNoPiece(t, "the log, or an answer,", p.Log.String(), raw, forged, basic)
	testkit.ExpectNoPiece(t, "the audit log", p.Stdout.String(), raw, forged, basic)
	if !strings.Contains(p.Stdout.String(), "[looks like a token, ") {
		t.Error("nothing was kept out")
	}
}

// OTEL_TRACES_SAMPLER decides what is sent. The audit line names the caller's
// trace all the same: others have their spans of it.
func TestTelemetrySampling(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, traceparent string
		env               []string
		want              bool
	}{
		{"by default the caller decides: yes", sampled, nil, true},
		{"by default the caller decides: no", notSampled, nil, false},
		{"always", notSampled, []string{"OTEL_TRACES_SAMPLER=always_on"}, true},
		{"never", sampled, []string{"OTEL_TRACES_SAMPLER=always_off"}, false},
		{"no traces, but metrics", sampled, []string{"OTEL_TRACES_EXPORTER=none"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := startHTTPCollector(t)
			p := proxytest.New(t, "", nil)
			stop := process(t, p, append(test.env, "OTEL_EXPORTER_OTLP_ENDPOINT="+c.endpoint)...)
			if status := p.Ask(t, test.traceparent, p.Post(t, kubetest.Token(t, "https://issuer.example.com"))); status != http.StatusOK {
				t.Fatalf("status %d", status)
			}
			testkit.Must(t, stop())
			if spans := c.trace(callersTrace); len(spans) > 0 != test.want {
				t.Errorf("spans %s", spanNames(spans))
			}
			if c.metric("pullpass_exchanges_total") == nil {
				t.Error("no metrics")
			}
			if want := !strings.Contains(strings.Join(test.env, " "), "none"); p.LastEvent(t).TraceID == callersTrace != want {
				t.Errorf("the audit line is of trace %q", p.LastEvent(t).TraceID)
			}
		})
	}
}

// A collector that takes connections and never answers, or none at all, delays
// neither an answer nor for long the end.
func TestTelemetryWithoutACollector(t *testing.T) {
	t.Parallel()
	silent := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { silent.Close() })
	for name, endpoint := range map[string]string{"hangs": "http://" + silent.Addr().String(), "down": "http://" + testkit.FreeAddress(t)} {
		for _, protocol := range []string{telemetry.ProtocolGRPC, telemetry.ProtocolHTTP} {
			t.Run(name+" "+protocol, func(t *testing.T) {
				t.Parallel()
				p := proxytest.New(t, "", nil)
				stop := process(t, p, "OTEL_EXPORTER_OTLP_ENDPOINT="+endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL="+protocol, "OTEL_EXPORTER_OTLP_TIMEOUT=60000",
					"OTEL_BSP_MAX_QUEUE_SIZE=8", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=4", "OTEL_BSP_SCHEDULE_DELAY=10", "OTEL_METRIC_EXPORT_INTERVAL=10")
				raw := kubetest.Token(t, "https://issuer.example.com")
				for range 30 { // 150 spans
					if status := p.Ask(t, sampled, p.Post(t, raw)); status != http.StatusOK {
						t.Fatalf("status %d", status)
					}
				}
				begin := time.Now()
				testkit.Must(t, stop())
				if took := time.Since(begin); took > 20*time.Second { // an export alone may take 30, and 60
					t.Errorf("it took %s to end", took)
				}
				if n := strings.Count(p.Log.String(), "telemetry is not delivered"); n != 1 {
					t.Errorf("%d complaints:\n%s", n, p.Log)
				}
			})
		}
	}
}

func TestTelemetryFailuresAreCounted(t *testing.T) {
	t.Parallel()
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, strings.Repeat("no ", 1000), http.StatusForbidden)
	}))
	t.Cleanup(refuses.Close)
	p := proxytest.New(t, "", nil)
	process(t, p, "OTEL_EXPORTER_OTLP_ENDPOINT="+refuses.URL, "OTEL_METRIC_EXPORT_INTERVAL=10", "OTEL_EXPORTER_OTLP_HEADERS=api-key=secret")
	testkit.Eventually(t, "failures are counted", func() bool {
		_, metrics := p.Fetch(t, "http://"+p.Admin+"/metrics")
		return strings.Contains(metrics, "pullpass_telemetry_failures_total ") && !strings.Contains(metrics, "pullpass_telemetry_failures_total 0\n") &&
			strings.Contains(p.Log.String(), "not delivered") // which follows, by another way
	})
	if log := p.Log.String(); !strings.Contains(log, "403 Forbidden") || strings.Count(log, "not delivered") != 1 || strings.Contains(log, "secret") || len(log) > 4000 {
		t.Errorf("log:\n%s", log)
	}
}

// A collector's redirect to another host must not lead the credential there.
func TestTelemetryFollowsNoRedirect(t *testing.T) {
	t.Parallel()
	var followed atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed.Add(1) }))
	t.Cleanup(elsewhere.Close)
	var traces, metrics atomic.Int64
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/traces") {
			traces.Add(1)
		} else {
			metrics.Add(1)
		}
		http.Redirect(w, r, elsewhere.URL+"/signed", http.StatusTemporaryRedirect)
	}))
	t.Cleanup(collector.Close)
	p := proxytest.New(t, "", nil)
	stop := process(t, p, "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL, "OTEL_METRIC_EXPORT_INTERVAL=10", "OTEL_BSP_SCHEDULE_DELAY=10", "OTEL_EXPORTER_OTLP_HEADERS=api-key=secret")
	p.Ask(t, sampled, p.Post(t, kubetest.Token(t, "https://issuer.example.com")))
	testkit.Eventually(t, "both are sent", func() bool { return traces.Load() > 0 && metrics.Load() > 0 })
	testkit.Must(t, stop())
	if followed.Load() > 0 || !strings.Contains(p.Log.String(), "it redirects") {
		t.Errorf("followed %d times, log:\n%s", followed.Load(), p.Log)
	}
}

// A variable that cannot be used is said at the start, and never its value if
// that may be a secret: the SDK would go on with a default.
func TestTelemetryRefusesBadVariables(t *testing.T) {
	t.Parallel()
	p := proxytest.New(t, "", nil)
	for variable, want := range map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=collector:4317":                       "OTEL_EXPORTER_OTLP_ENDPOINT is not a URL",
		"OTEL_EXPORTER_OTLP_ENDPOINT=https://user:secret@collector:4318":   "OTEL_EXPORTER_OTLP_ENDPOINT is not a URL",
		"OTEL_EXPORTER_OTLP_ENDPOINT=https://user:secret@collector:x":      "OTEL_EXPORTER_OTLP_ENDPOINT is not a URL",
		"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=unix:/run/collector":          "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT is not a URL",
		"OTEL_TRACES_EXPORTER=console":                                     `OTEL_TRACES_EXPORTER is "console"; there are otlp and none`,
		"OTEL_METRICS_EXPORTER=prometheus":                                 `OTEL_METRICS_EXPORTER is "prometheus"; there are otlp and none`,
		"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_PROTOCOL=http/json":  `OTEL_EXPORTER_OTLP_PROTOCOL is "http/json"; there are grpc and http/protobuf`,
		"OTEL_TRACES_EXPORTER=otlp OTEL_TRACES_SAMPLER=sometimes":          "unsupported sampler: sometimes",
		"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_CERTIFICATE=missing": "open missing: no such file or directory",
		"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_HEADERS=secret":      "parse headers: missing '=",
		"OTEL_TRACES_EXPORTER=otlp OTEL_BSP_MAX_QUEUE_SIZE=-1":             `OTEL_BSP_MAX_QUEUE_SIZE is "-1"; write a number from 1 to 1000000`,
		"OTEL_TRACES_EXPORTER=otlp OTEL_BSP_MAX_QUEUE_SIZE=9999999999999":  `OTEL_BSP_MAX_QUEUE_SIZE is "9999999999999"; write`,
		"OTEL_TRACES_EXPORTER=otlp OTEL_BSP_SCHEDULE_DELAY=5s":             `OTEL_BSP_SCHEDULE_DELAY is "5s"; write`,
		"OTEL_TRACES_EXPORTER=otlp OTEL_BSP_EXPORT_TIMEOUT=0":              `OTEL_BSP_EXPORT_TIMEOUT is "0"; write`,
		"OTEL_TRACES_EXPORTER=otlp OTEL_BSP_MAX_EXPORT_BATCH_SIZE=1e3":     `OTEL_BSP_MAX_EXPORT_BATCH_SIZE is "1e3"; write`,
		"OTEL_TRACES_EXPORTER=otlp OTEL_RESOURCE_ATTRIBUTES=odd":           "missing value: [odd]",
	} {
		patience, cancel := context.WithTimeout(t.Context(), time.Minute) // it serves if it accepts the variable
		serve := exec.CommandContext(patience, os.Args[0])
		serve.Args = []string{"pullpass", "serve", "--config", filepath.Join(p.Dir, "pullpass.yaml")}
		serve.Env = strings.Fields(variable)
		out, err := serve.CombinedOutput()
		cancel()
		if err == nil || serve.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), want) || strings.Contains(string(out), "secret") {
			t.Errorf("%s: %v, want %s\n%s", variable, err, want, out)
		}
	}
}

// Without a collector, requests do not even pass a middleware.
func TestTelemetryOff(t *testing.T) {
	t.Parallel()
	for _, env := range [][]string{
		nil,
		{"OTEL_SERVICE_NAME=pullpass"},
		{"OTEL_SDK_DISABLED=true", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"},
		{"OTEL_TRACES_EXPORTER=none", "OTEL_METRICS_EXPORTER=none", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"},
	} {
		p := proxytest.New(t, "", nil)
		stop := process(t, p, env...)
		if status := p.Ask(t, sampled, p.Post(t, kubetest.Token(t, "https://issuer.example.com"))); status != http.StatusOK {
			t.Fatalf("status %d", status)
		}
		if _, metrics := p.Fetch(t, "http://"+p.Admin+"/metrics"); strings.Contains(metrics, "pullpass_telemetry_failures_total") {
			t.Errorf("%s: metrics tell of a collector", env)
		}
		testkit.Must(t, stop())
		if id := p.LastEvent(t).TraceID; id != "" {
			t.Errorf("%s: the audit line is of trace %s", env, id)
		}
		if log := p.Log.String(); strings.Contains(log, "telemetry") {
			t.Errorf("%s:\n%s", env, log)
		}
	}
}
