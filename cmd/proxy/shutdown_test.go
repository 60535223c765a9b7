package main

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// SIGTERM fails readiness first, and an open request still gets its answer.
func TestServeDrains(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	connection := p.dial(t)
	body := url.Values{"grant_type": {"password"}, "service": {"registry.example.com"}, "username": {"x"}, "password": {serviceAccountToken(t, "https://issuer.example.com")}}.Encode()
	_, err := fmt.Fprintf(connection, "POST /token HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", len(body))
	must(t, err)
	reader := bufio.NewReader(connection)
	if begun, err := http.ReadResponse(reader, nil); err != nil || begun.StatusCode != http.StatusContinue {
		t.Fatalf("the request did not begin: %v, %v", begun, err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- p.stop() }()
	eventually(t, "readyz says that the service drains", func() bool {
		status, body := p.fetch(t, "http://"+p.admin+"/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, `"draining":true`)
	})
	_, err = io.WriteString(connection, body)
	must(t, err)
	response, err := http.ReadResponse(reader, nil)
	must(t, err)
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("the open request got %s", response.Status)
	}
	if err := <-stopped; err != nil {
		t.Errorf("ended with %v", err)
	}
}

// Until load balancers have seen that readyz says no, they send requests here.
func TestServeGoesOnForTheShutdownDelay(t *testing.T) {
	t.Parallel()
	p := newTestService(t, "", nil)
	p.configure(t, "server: {", "server: {shutdownDelay: 17s, ")
	asked, passed := make(chan time.Duration, 1), make(chan time.Time)
	p.service.after = func(d time.Duration) <-chan time.Time { asked <- d; return passed }
	p.start(t)
	must(t, p.service.reloadConfig())
	pass := sync.OnceFunc(func() { close(passed) })
	t.Cleanup(pass)
	raw := serviceAccountToken(t, "https://issuer.example.com")
	client := func(protocols func(*http.Protocols)) *http.Client {
		transport := &http.Transport{TLSClientConfig: p.client.Transport.(*http.Transport).TLSClientConfig.Clone(), Protocols: &http.Protocols{}}
		protocols(transport.Protocols)
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport, Timeout: 10 * time.Second}
	}
	one, two := client(func(p *http.Protocols) { p.SetHTTP1(true) }), client(func(p *http.Protocols) { p.SetHTTP2(true) })
	for _, c := range []*http.Client{one, two} { // each has an idle connection from now on
		if status := p.statusFrom(t, c, raw); status != http.StatusOK {
			t.Fatalf("status %d", status)
		}
	}

	stopped := make(chan error, 1)
	go func() { stopped <- p.stop() }()
	if delay := <-asked; delay != 17*time.Second {
		t.Errorf("waits for %s", delay)
	}
	if p.ready(t) {
		t.Error("ready, and shutting down")
	}
	if status, _ := p.fetch(t, "http://"+p.admin+"/livez"); status != http.StatusOK {
		t.Errorf("/livez: %d", status)
	}
	for _, c := range []*http.Client{one, two} {
		for n := range 3 { // the first on the idle connection, which it ends, the others on new ones
			if status := p.statusFrom(t, c, raw); status != http.StatusOK {
				t.Errorf("request %d: status %d", n, status)
			}
		}
	}
	connection := p.dial(t)
	must(t, connection.(*tls.Conn).Handshake())
	_, err := io.WriteString(connection, "GET /token HTTP/1.1\r\nHost: localhost\r\n\r\n")
	must(t, err)
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	must(t, err)
	response.Body.Close()
	if !response.Close {
		t.Error("the answer does not end the connection")
	}

	pass()
	must(t, <-stopped)
	if status, _ := p.fetch(t, "https://"+p.address+"/certificates.pem"); status != 0 {
		t.Errorf("still listening: %d", status)
	}
}

// Whoever reads standard output may die; pulls go on, and the loss is counted.
func TestServeOutlivesTheReaderOfStandardOutput(t *testing.T) {
	t.Parallel()
	p := newTestService(t, "", nil)
	program, err := os.Executable()
	must(t, err)
	reader, writer, err := os.Pipe()
	must(t, err)
	serve := exec.CommandContext(t.Context(), program)
	serve.Args = []string{"pullpass", "serve", "--config", filepath.Join(p.dir, "pullpass.yaml")} // see TestMain
	serve.Stdout, serve.Stderr = writer, p.log
	must(t, serve.Start())
	must(t, writer.Close())
	must(t, reader.Close())
	eventually(t, "the service listens", func() bool {
		status, _ := p.fetch(t, "http://"+p.admin+"/livez")
		return status == http.StatusOK
	})
	for range 2 {
		if status := p.status(t, serviceAccountToken(t, "https://issuer.example.com")); status != http.StatusOK {
			t.Errorf("status %d", status)
		}
	}
	if _, metrics := p.fetch(t, "http://"+p.admin+"/metrics"); !strings.Contains(metrics, "pullpass_audit_failures_total 2\n") {
		t.Error("the metric does not count the audit events that were lost")
	}
	must(t, serve.Process.Signal(syscall.SIGTERM))
	if err := serve.Wait(); err != nil {
		t.Errorf("ended with %v\n%s", err, p.log)
	}
	if !strings.Contains(p.log.String(), "broken pipe") {
		t.Errorf("the log does not say why audit events were lost:\n%s", p.log)
	}
}

// Profiles tell what a process holds, so they are asked for, and never public.
func TestServeProfiles(t *testing.T) {
	t.Parallel()
	p := newTestService(t, "", nil)
	p.configure(t, "admin: {", "admin: {pprof: true, ")
	p.start(t)
	must(t, p.service.reloadConfig())
	for path, want := range map[string]string{
		"": "goroutine", "heap?debug=1": "heap profile", "goroutine?debug=1": "goroutine profile", "cmdline": "proxy", "profile?seconds=1": "", "trace?seconds=1": "",
	} {
		if status, body := p.fetch(t, "http://"+p.admin+"/debug/pprof/"+path); status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("/debug/pprof/%s: %d %.100q", path, status, body)
		}
		if status, _ := p.fetch(t, "https://"+p.address+"/debug/pprof/"+path); status != http.StatusNotFound {
			t.Errorf("public /debug/pprof/%s: %d", path, status)
		}
	}
}
