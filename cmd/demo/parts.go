package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	_ "github.com/distribution/distribution/v3/registry/auth/token" // the registry's check of our tokens
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/inmemory" // the registry's storage
)

// build compiles the two programs of the demo from this repository.
func build(ctx context.Context, dir string) (pullpass, plugin string, err error) {
	for _, p := range []struct {
		path *string
		name string
		from string
	}{
		{&pullpass, "pullpass", "./cmd/proxy"},
		{&plugin, "pullpass-credential-provider", "./cmd/credential-provider"},
	} {
		*p.path = filepath.Join(dir, p.name)
		out, err := exec.CommandContext(ctx, "go", "build", "-o", *p.path, p.from).CombinedOutput()
		if err != nil {
			return "", "", fmt.Errorf("go build %s: %w\n%s(run the demo in the root of the repository)", p.from, err, out)
		}
	}
	return pullpass, plugin, nil
}

// startRegistry runs distribution's registry in this process, with the auth
// section that pullpass registry-config printed.
func startRegistry(ctx context.Context, servers *pki, listener net.Listener, authConfig []byte) error {
	yaml := "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {inmemory: {}, delete: {enabled: true}}\n" +
		"http: {secret: secret-of-the-demo}\n" + string(authConfig)
	config, err := configuration.Parse(strings.NewReader(yaml))
	if err != nil {
		return fmt.Errorf("the registry does not take what registry-config printed: %w", err)
	}
	servers.serve(listener, handlers.NewApp(ctx, config))
	return nil
}

// proxy is the running pullpass serve.
type proxy struct {
	command *exec.Cmd
	stderr  lockedBuffer

	mu    sync.Mutex
	audit []map[string]any // parsed lines
	lines []string         // the same as written
	done  chan struct{}    // closed at the end of standard output
}

// startProxy starts pullpass serve and waits until it is ready.
func startProxy(ctx context.Context, binary, config, adminURL string) (*proxy, error) {
	p := &proxy{command: exec.CommandContext(ctx, binary, "serve", "--config", config), done: make(chan struct{})}
	p.command.Cancel = func() error { return p.command.Process.Signal(syscall.SIGTERM) }
	p.command.WaitDelay = 10 * time.Second
	p.command.Stderr = &p.stderr
	stdout, err := p.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.command.Start(); err != nil {
		return nil, err
	}
	go p.readAudit(stdout)
	client := &http.Client{Timeout: time.Second}
	err = eventually(10*time.Second, func() error {
		response, err := client.Get(adminURL + "/readyz")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			body, _ := io.ReadAll(response.Body) // best effort: the status says it
			return fmt.Errorf("readyz: %s: %s", response.Status, body)
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("pullpass serve does not get ready: %w\n%s", err, p.stderr.String()), p.stop())
	}
	return p, nil
}

func (p *proxy) readAudit(stdout io.Reader) {
	defer close(p.done)
	scanner := bufio.NewScanner(stdout)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		var event map[string]any
		if err := json.Unmarshal(scanner.Bytes(), &event); err != nil {
			event = map[string]any{"not JSON": scanner.Text()}
		}
		p.mu.Lock()
		p.audit = append(p.audit, event)
		p.lines = append(p.lines, scanner.Text())
		p.mu.Unlock()
	}
}

// last returns the newest audit line for which match holds.
func (p *proxy) last(match func(event map[string]any) bool) (line string, err error) {
	err = eventually(2*time.Second, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		for i := len(p.audit) - 1; i >= 0; i-- {
			if match(p.audit[i]) {
				line = p.lines[i]
				return nil
			}
		}
		return errors.New("no such audit line")
	})
	return line, err
}

// stop asks the proxy to end, as a pod's end does, and waits for it.
func (p *proxy) stop() error {
	if err := p.command.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	<-p.done
	return p.command.Wait()
}

// written returns all that the proxy wrote.
func (p *proxy) written() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n") + p.stderr.String()
}

// credential runs the plugin as the kubelet does: the request on standard
// input, the answer on standard output.
func credential(ctx context.Context, plugin, image, token string) (username, password string, err error) {
	request, err := json.Marshal(map[string]string{
		"apiVersion":          "credentialprovider.kubelet.k8s.io/v1",
		"kind":                "CredentialProviderRequest",
		"image":               image,
		"serviceAccountToken": token,
	})
	if err != nil {
		return "", "", err
	}
	command := exec.CommandContext(ctx, plugin)
	command.Stdin = bytes.NewReader(request)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return "", "", fmt.Errorf("the plugin failed: %w: %s", err, stderr.String())
	}
	var response struct {
		Auth map[string]struct{ Username, Password string } `json:"auth"`
	}
	if err := json.Unmarshal(out, &response); err != nil {
		return "", "", fmt.Errorf("the plugin's answer: %w", err)
	}
	host, _, _ := strings.Cut(image, "/")
	auth, ok := response.Auth[host]
	if !ok {
		return "", "", fmt.Errorf("the plugin's answer has no credential for %s", host)
	}
	return auth.Username, auth.Password, nil
}

// freeAddresses returns n loopback addresses without a listener.
func freeAddresses(n int) ([]string, error) {
	addresses := make([]string, n)
	for i := range addresses {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		addresses[i] = fmt.Sprintf("localhost:%d", l.Addr().(*net.TCPAddr).Port)
	}
	return addresses, nil
}

// eventually calls f until it succeeds, for at most limit.
func eventually(limit time.Duration, f func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := f()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// copyExample copies the files of the example into dir, with addresses
// replaced.
func copyExample(dir string, replace *strings.Replacer) error {
	for _, name := range []string{"pullpass.yaml", "policy.yaml", "serviceaccounts.yaml"} {
		data, err := os.ReadFile(filepath.Join("examples", name))
		if err != nil {
			return fmt.Errorf("%w (run the demo in the root of the repository)", err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(replace.Replace(string(data))), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// lockedBuffer collects what a process writes while others read it.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}
