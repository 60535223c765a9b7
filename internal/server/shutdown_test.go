package server

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The signal reaches the file, and ends nothing.
func TestServeReopensTheAuditFileAtSIGHUP(t *testing.T) {
	t.Parallel()
	p := startServiceWith(t, "audit: {file: audit.log}", nil)
	file := filepath.Join(p.Dir, "audit.log")
	p.Status(t, "no token")
	testkit.Must(t, os.Rename(file, file+".1"))
	testkit.Must(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	testkit.Eventually(t, "there is a new file", func() bool {
		_, err := os.Stat(file)
		return err == nil
	})
	p.Status(t, "no token")
	testkit.Must(t, p.stop())
	for _, name := range []string{file, file + ".1"} {
		data := testkit.Value(os.ReadFile(name))(t)
		if got := proxytest.EventIDs(t, data); len(got) != 1 {
			t.Errorf("%s has %d lines, want 1", name, len(got))
		}
	}
	if p.Stdout.String() != "" {
		t.Errorf("standard output: %s", p.Stdout)
	}
}

// SIGTERM fails readiness first, and an open request still gets its answer.
func TestServeDrains(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	connection := p.Dial(t)
	body := url.Values{"grant_type": {"password"}, "service": {"registry.example.com"}, "username": {"x"}, "password": {kubetest.Token(t, "https://issuer.example.com")}}.Encode()
	_, err := fmt.Fprintf(connection, "POST /token HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", len(body))
	testkit.Must(t, err)
	reader := bufio.NewReader(connection)
	if begun, err := http.ReadResponse(reader, nil); err != nil || begun.StatusCode != http.StatusContinue {
		t.Fatalf("the request did not begin: %v, %v", begun, err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- p.stop() }()
	testkit.Eventually(t, "readyz says that the service drains", func() bool {
		status, body := p.Fetch(t, "http://"+p.Admin+"/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, `"draining":true`)
	})
	_, err = io.WriteString(connection, body)
	testkit.Must(t, err)
	response, err := http.ReadResponse(reader, nil)
	testkit.Must(t, err)
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("the open request got %s", response.Status)
	}
	if err := <-stopped; err != nil {
		t.Errorf("ended with %v", err)
	}
	if log := p.Log.String(); strings.Contains(log, `"level":"WARN"`) || strings.Contains(log, `"level":"ERROR"`) {
		t.Errorf("all has ended in time, and the log says %s", log)
	}
}

// Until load balancers have seen that readyz says no, they send requests here.
func TestServeGoesOnForTheShutdownDelay(t *testing.T) {
	t.Parallel()
	p := newTestService(t, "", nil)
	p.Configure(t, "server: {", "server: {shutdownDelay: 17s, ")
	asked, passed := make(chan time.Duration, 1), make(chan time.Time)
	p.service.after = func(d time.Duration) <-chan time.Time { asked <- d; return passed }
	p.start(t)
	testkit.Must(t, p.service.reloadConfig())
	pass := sync.OnceFunc(func() { close(passed) })
	t.Cleanup(pass)
	raw := kubetest.Token(t, "https://issuer.example.com")
	transport := &http.Transport{TLSClientConfig: p.Client.Transport.(*http.Transport).TLSClientConfig.Clone()}
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	if status := p.StatusFrom(t, client, raw); status != http.StatusOK { // there is an idle connection from now on
		t.Fatalf("status %d", status)
	}

	stopped := make(chan error, 1)
	go func() { stopped <- p.stop() }()
	if delay := <-asked; delay != 17*time.Second {
		t.Errorf("waits for %s", delay)
	}
	if p.Ready(t) {
		t.Error("ready, and shutting down")
	}
	if status, _ := p.Fetch(t, "http://"+p.Admin+"/livez"); status != http.StatusOK {
		t.Errorf("/livez: %d", status)
	}
	for n := range 3 { // the first on the idle connection, which it ends, the others on new ones
		if status := p.StatusFrom(t, client, raw); status != http.StatusOK {
			t.Errorf("request %d: status %d", n, status)
		}
	}
	connection := p.Dial(t)
	testkit.Must(t, connection.(*tls.Conn).Handshake())
	testkit.Value(io.WriteString(connection, "GET /token HTTP/1.1\r\nHost: localhost\r\n\r\n"))(t)
	response := testkit.Value(http.ReadResponse(bufio.NewReader(connection), nil))(t)
	response.Body.Close()
	if !response.Close {
		t.Error("the answer does not end the connection")
	}

	pass()
	testkit.Must(t, <-stopped)
	if status, _ := p.Fetch(t, "https://"+p.Address+"/certificates.pem"); status != 0 {
		t.Errorf("still listening: %d", status)
	}
}

// Profiles tell what a process holds, so they are asked for, and never public.
func TestServeProfiles(t *testing.T) {
	t.Parallel()
	p := newTestService(t, "", nil)
	p.Configure(t, "admin: {", "admin: {pprof: true, ")
	p.start(t)
	testkit.Must(t, p.service.reloadConfig())
	for path, want := range map[string]string{
		"": "goroutine", "heap?debug=1": "heap profile", "goroutine?debug=1": "goroutine profile", "cmdline": "server.test", "profile?seconds=1": "", "trace?seconds=0.01": "",
	} {
		if status, body := p.Fetch(t, "http://"+p.Admin+"/debug/pprof/"+path); status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("/debug/pprof/%s: %d %.100q", path, status, body)
		}
		if status, _ := p.Fetch(t, "https://"+p.Address+"/debug/pprof/"+path); status != http.StatusNotFound {
			t.Errorf("public /debug/pprof/%s: %d", path, status)
		}
	}
}
