package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	gatewayRequests = 6000      // for manifests and redirects, at each contender
	blobBytes       = 64 << 20  // of each blob
	gatewayBlobs    = 16        // a GiB
	streamBytes     = 256 << 20 // longer than a stream is looked at
	// mostStreamBytes is what a stream may hold of the gateway's memory.
	mostStreamBytes = 96 << 10
)

// nginxUpstream is a registry that only has to be read from, as fast as can be, and
// nginxGateway one that is put before it: it asks another server whether a request is
// allowed, as auth_request does, and passes it on.
const nginxUpstream = `daemon off; master_process off; pid %[1]s/upstream.pid; error_log %[1]s/logs/upstream.error error; worker_processes 1; worker_rlimit_nofile 16384;
events { worker_connections 8192; }
http {
  access_log off; sendfile on; keepalive_requests 1000000; default_type application/vnd.oci.image.manifest.v1+json;
  client_body_temp_path %[1]s/u1; proxy_temp_path %[1]s/u2; fastcgi_temp_path %[1]s/u3; uwsgi_temp_path %[1]s/u4; scgi_temp_path %[1]s/u5;
  server {
    listen %[2]s ssl sndbuf=32k; ssl_certificate %[1]s/tls.crt; ssl_certificate_key %[1]s/tls.key;
    location = /v2/ { return 200; }
    location /v2/acme/app/manifests/ { alias %[1]s/manifests/; }
    location /v2/acme/app/blobs/%[3]s { return 307 https://storage.example.com/blob?signature=0123456789; }
    location /v2/acme/app/blobs/%[4]s { alias %[1]s/blob; default_type application/octet-stream; }
    location /v2/acme/app/blobs/%[5]s { alias %[1]s/stream; default_type application/octet-stream; }
  }
}
`

const nginxGateway = `daemon off; master_process off; pid %[1]s/gateway.pid; error_log %[1]s/logs/gateway.error error; worker_processes 1; worker_rlimit_nofile 16384;
events { worker_connections 8192; }
http {
  access_log %[1]s/logs/gateway.access; keepalive_requests 1000000;
  client_body_temp_path %[1]s/g1; proxy_temp_path %[1]s/g2; fastcgi_temp_path %[1]s/g3; uwsgi_temp_path %[1]s/g4; scgi_temp_path %[1]s/g5;
  upstream registry { server %[3]s; keepalive 64; keepalive_requests 1000000; }
  upstream authority { server %[4]s; keepalive 64; keepalive_requests 1000000; }
  proxy_http_version 1.1; proxy_max_temp_file_size 0;
  server {
    listen %[2]s ssl; ssl_certificate %[1]s/tls.crt; ssl_certificate_key %[1]s/tls.key;
    location /v2/ghcr.io/ {
      auth_request /authority;
      proxy_pass https://registry/v2/; proxy_set_header Connection ""; proxy_set_header Authorization "Basic YWNtZS1yb2JvdDpwYXNzd29yZA=="; proxy_redirect off;
      proxy_ssl_verify on; proxy_ssl_trusted_certificate %[1]s/ca.crt; proxy_ssl_name localhost; proxy_ssl_session_reuse on;
    }
    location = /authority { internal; proxy_pass http://authority/; proxy_pass_request_body off; proxy_set_header Connection ""; proxy_set_header Content-Length ""; }
  }
  server { listen %[4]s; location / { return 204; } }
}
`

// The digests of the blobs.
var (
	redirectedBlob = "sha256:" + strings.Repeat("a", 64)
	servedBlob     = "sha256:" + strings.Repeat("b", 64)
	streamedBlob   = "sha256:" + strings.Repeat("c", 64)
)

// gatewayed is a gateway, or something in its place.
type gatewayed struct {
	process *process
	url     string
	cpu     float64
	elapsed time.Duration
}

// gateway measures the CPU of a request at the gateway as ratio to nginx's, which asks another server whether it is allowed and
// passes it on, and to that of Go's own proxy, which asks no other server: a manifest, a redirect, a GiB of blobs; by TLS on both sides, one core each, in turns. Then it opens streams,
// half of which stall, and judges how much memory each holds.
func gateway(ctx context.Context, o options, stderr io.Writer) (results []result, err error) {
	// All streams come from one address, which may have half of those for which there is memory.
	s, err := openGatewaySite(ctx, o, variant{oneCore: true, perServiceAccount: 100_000, env: []string{"GOMEMLIMIT=4GiB"}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	token, err := s.gatewayToken(ctx)
	if err != nil {
		return nil, err
	}
	ours := &gatewayed{process: s.pullpass, url: "https://" + s.gatewayAddress}
	theirs := &gatewayed{process: s.processes[len(s.processes)-1], url: "https://" + s.nginxAddress}
	addresses, err := freeAddresses(1)
	if err != nil {
		return nil, err
	}
	if err := s.start(ctx, listening(addresses[0]), filepath.Join(o.programs, "bareproxy"), "-listen", addresses[0], "-upstream", "https://"+s.registryAddress,
		"-ca", s.file("ca.crt"), "-tls-cert", s.file("tls.crt"), "-tls-key", s.file("tls.key")); err != nil {
		return nil, err
	}
	floor := &gatewayed{process: s.processes[len(s.processes)-1], url: "https://" + addresses[0]}
	client := s.gatewayClient()
	defer client.CloseIdleConnections()
	for _, kind := range []struct {
		name, path string
		status, n  int
	}{
		{"manifest", "/manifests/v1", http.StatusOK, gatewayRequests},
		{"redirect", "/blobs/" + redirectedBlob, http.StatusTemporaryRedirect, gatewayRequests},
		{"a GiB of blobs", "/blobs/" + servedBlob, http.StatusOK, gatewayBlobs},
	} {
		for _, c := range []*gatewayed{ours, theirs, floor} {
			c.cpu, c.elapsed = 0, 0
			if err := c.ask(ctx, client, token, kind.path, kind.status, min(kind.n, 64)); err != nil { // connections, and what is asked once
				return nil, err
			}
			c.cpu, c.elapsed = 0, 0
		}
		slice := max(kind.n/12, 1)
		for range kind.n / slice {
			for _, c := range []*gatewayed{ours, theirs, floor} {
				if err := c.ask(ctx, client, token, kind.path, kind.status, slice); err != nil {
					return nil, err
				}
			}
		}
		r := result{name: "gateway: " + kind.name, exchanges: float64(kind.n), seconds: ours.elapsed.Seconds(), cpu: ours.cpu}
		r.note = fmt.Sprintf("CPU %.2f × nginx, which has %.3f ms for each, and %.2f × Go's bare proxy", ours.cpu/theirs.cpu, theirs.cpu*1000/float64(kind.n), ours.cpu/floor.cpu)
		results = append(results, r)
	}
	streams, err := s.streams(ctx, ours, token)
	results = append(results, streams...)
	for _, r := range results {
		fmt.Fprintf(stderr, "  %s: %s\n", r.name, r.note)
	}
	return results, err
}

// gatewaySite is a site whose Pullpass has a gateway, and nginx as its registry and as another gateway before that.
type gatewaySite struct {
	*site
	gatewayAddress, registryAddress, nginxAddress string
}

func openGatewaySite(ctx context.Context, o options, v variant) (*gatewaySite, error) {
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		return nil, errors.New("nginx is not installed: as root on Debian, .ci/install loadtest does that")
	}
	addresses, err := freeAddresses(8)
	if err != nil {
		return nil, err
	}
	registry, other, authority, own := addresses[4], addresses[5], addresses[6], addresses[7] // a site takes the first four
	v.gateway = fmt.Sprintf("- {service: gateway.example.com, issuer: pullpass.example.com, tokenLifetime: 1h}\n"+
		"gateway: {address: %q, url: \"https://%s\", service: gateway.example.com}\nupstreams:\n- {name: ghcr.io, url: \"https://%s\", caFile: ca.crt}\n", own, own, registry)
	s, err := openSite(ctx, o, v)
	if err != nil {
		return nil, err
	}
	if err := s.startNginx(ctx, nginx, registry, other, authority); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return &gatewaySite{site: s, gatewayAddress: own, registryAddress: registry, nginxAddress: other}, nil
}

// startNginx starts the upstream, and then what is compared.
func (s *site) startNginx(ctx context.Context, nginx, registry, other, authority string) error {
	manifest := `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","layers":[` + strings.Repeat(`{"digest":"`+servedBlob+`","size":1},`, 8) + `{}]}`
	if err := os.Mkdir(s.file("manifests"), 0o755); err != nil {
		return err
	}
	blob := make([]byte, blobBytes)
	for i := range blob {
		blob[i] = byte(i * 7)
	}
	if err := errors.Join(
		os.WriteFile(s.file("manifests/v1"), []byte(manifest), 0o644),
		os.WriteFile(s.file("blob"), blob, 0o644),
		os.WriteFile(s.file("stream"), nil, 0o644), os.Truncate(s.file("stream"), streamBytes),
		os.WriteFile(s.file("upstream.conf"), fmt.Appendf(nil, nginxUpstream, s.dir, numeric(registry), redirectedBlob, servedBlob, streamedBlob), 0o644),
		os.WriteFile(s.file("gateway.conf"), fmt.Appendf(nil, nginxGateway, s.dir, numeric(other), numeric(registry), numeric(authority)), 0o644),
	); err != nil {
		return err
	}
	if err := s.start(ctx, listening(registry), nginx, "-c", s.file("upstream.conf"), "-p", s.dir); err != nil {
		return err
	}
	return s.start(ctx, listening(other), nginx, "-c", s.file("gateway.conf"), "-p", s.dir)
}

// numeric is for nginx, which would listen on all addresses of a name.
func numeric(address string) string { return strings.Replace(address, "localhost", "127.0.0.1", 1) }

func (s *site) gatewayClient() *http.Client {
	t := s.client.Transport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost, t.DisableCompression = comparedClients, true
	t.TLSClientConfig.NextProtos = []string{"http/1.1"}
	t.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// gatewayToken is what a node has for the image that all ask for.
func (s *site) gatewayToken(ctx context.Context) (string, error) {
	text, err := s.ask(ctx, http.MethodGet, s.issuer+"/tokens?from=0&count=1")
	if err != nil {
		return "", err
	}
	var tokens []struct{ Token string }
	if err := json.Unmarshal(text, &tokens); err != nil {
		return "", err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.tokens+"/token?"+url.Values{"service": {"gateway.example.com"}, "scope": {"repository:ghcr.io/acme/app:pull"}}.Encode(), nil)
	if err != nil {
		return "", err
	}
	request.SetBasicAuth("x", tokens[0].Token)
	response, err := s.client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var answer struct{ Token string }
	err = json.NewDecoder(response.Body).Decode(&answer)
	if err == nil && answer.Token == "" {
		err = fmt.Errorf("no token: %s", response.Status)
	}
	return answer.Token, err
}

// ask sends n requests, some at a time.
func (c *gatewayed) ask(ctx context.Context, client *http.Client, token, path string, status, n int) error {
	before, err := c.process.usage()
	if err != nil {
		return err
	}
	began := time.Now()
	var group errgroup.Group
	group.SetLimit(comparedClients)
	for range n {
		group.Go(func() error {
			response, err := c.get(ctx, client, token, path)
			if err != nil {
				return err
			}
			defer response.Body.Close()
			if response.StatusCode != status {
				return fmt.Errorf("%s%s: %s", c.url, path, response.Status)
			}
			_, err = io.Copy(io.Discard, response.Body)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	after, err := c.process.usage()
	c.cpu, c.elapsed = c.cpu+after.cpu-before.cpu, c.elapsed+time.Since(began)
	return err
}

func (c *gatewayed) get(ctx context.Context, client *http.Client, token, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/v2/ghcr.io/acme/app"+path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	return client.Do(request)
}

// streams opens blobs and reads half of them slowly, the others not at all. Memory is what the system has given to the process.
func (s *site) streams(ctx context.Context, c *gatewayed, token string) (results []result, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	client := s.gatewayClient()
	defer client.CloseIdleConnections()
	// The kernel would keep megabytes of each stream that stalls, and has too few for all.
	client.Transport.(*http.Transport).DialContext = (&net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 32<<10) })
	}}).DialContext
	start, err := s.sample(ctx, time.Now())
	if err != nil {
		return nil, err
	}
	var bodies []io.ReadCloser
	defer func() {
		for _, body := range bodies {
			_ = body.Close()
		}
	}()
	buffer := make([]byte, 32<<10)
	before, beforeCount := start, 0
	for _, n := range []int{100, 1000} {
		for len(bodies) < n {
			response, err := c.get(ctx, client, token, "/blobs/"+streamedBlob)
			if err != nil {
				return nil, err
			}
			bodies = append(bodies, response.Body)
		}
		for range 20 { // half of them move
			for i, body := range bodies {
				if i%2 == 0 {
					if _, err := io.ReadFull(body, buffer); err != nil {
						return nil, err
					}
				}
			}
		}
		now, err := s.sample(ctx, time.Now())
		if err != nil {
			return nil, err
		}
		// Garbage of earlier requests is in the first figure, so a stream has what the last ones have added.
		each := (now.resident - before.resident) / float64(n-beforeCount)
		before, beforeCount = now, n
		r := result{name: fmt.Sprintf("gateway: %d streams", n), exchanges: float64(n), seconds: 1, peak: now.resident}
		r.note = fmt.Sprintf("%.0f KiB for each stream that was added", each/1024)
		if each > mostStreamBytes {
			r.faults = append(r.faults, fmt.Sprintf("a stream holds %.0f KiB, and may hold %d", each/1024, mostStreamBytes/1024))
		}
		results = append(results, r)
	}
	return results, nil
}
