package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/state"
	"github.com/pullpass/pullpass/internal/state/statetest"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/registrytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const streamHolders = `apiVersion: v1
kind: ServiceAccount
metadata: {name: web, namespace: team-a, uid: uid-1}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: api, namespace: team-a, uid: uid-of-api}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: web, namespace: team-b, uid: uid-b}
`

// endlessBlobs has a registry answer for blobs as long as anybody reads.
func endlessBlobs(registry *registrytest.Server) {
	registry.Answer(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		for piece := strings.Repeat("x", 32<<10); ; {
			if _, err := io.WriteString(w, piece); err != nil {
				return true
			}
		}
	})
}

// readSlowly asks for a blob from an address, and takes nothing of it until the gateway
// ends the connection.
func (g *gatewayed) readSlowly(ctx context.Context, address, token string) {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	raw, err := dialer.DialContext(ctx, "tcp", strings.TrimPrefix(g.url, "https://"))
	if err != nil {
		return
	}
	defer raw.Close()
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	defer stop()
	_ = raw.(*net.TCPConn).SetReadBuffer(4 << 10)
	c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true})
	_, err = fmt.Fprintf(c, "GET /v2/ghcr.io/acme/app/blobs/%s HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer %s\r\n\r\n", registrytest.DigestOf(nil), token)
	if err != nil {
		return
	}
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || response.StatusCode != http.StatusOK {
		return
	}
	for err == nil { // a byte now and then: it is slow, and does not stand still
		select {
		case <-ctx.Done():
			return
		case <-time.After(100 * time.Millisecond):
			_, err = response.Body.Read(make([]byte, 1))
		}
	}
}

// One holder reads slowly, takes all places for streams from many addresses, and reconnects. Others
// are still served.
func TestOneHolderDoesNotTakeAllStreams(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	image := registry.Put(t, "acme/app", "v1", []byte("layer"))
	const places = 16
	g := startGatewayWith(t, upstreamEntry("ghcr.io", registry, ""), map[string]string{"serviceaccounts.yaml": streamHolders}, "", 8*places*streamBytes)
	if got := g.service.streams.most; got != places {
		t.Fatalf("%d places", got)
	}
	endlessBlobs(registry)
	const scope = "repository:ghcr.io/acme/app:pull"
	token := g.token(t, kubetest.Token(t, "https://issuer.example.com"), scope)
	ctx, stop := context.WithCancel(t.Context())
	var attackers sync.WaitGroup
	defer attackers.Wait()
	defer stop()
	for _, address := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.4"} {
		for range places / 2 {
			attackers.Go(func() {
				for ctx.Err() == nil {
					g.readSlowly(ctx, address, token)
					select {
					case <-ctx.Done():
					case <-time.After(500 * time.Millisecond):
					}
				}
			})
		}
	}
	testkit.Eventually(t, "one holder has all places", func() bool { return g.service.gatewayMemory.Load().Streams >= places-places/8 })

	g.Client.Timeout = 30 * time.Second // of a machine that does much else; a slow stream lasts for as long as its reader likes
	ofTeamB := kubetest.TokenClaims("https://issuer.example.com")
	ofTeamB["sub"], ofTeamB["jti"] = "system:serviceaccount:team-b:web", "id-b"
	kubernetes := ofTeamB["kubernetes.io"].(map[string]any)
	kubernetes["namespace"], kubernetes["serviceaccount"] = "team-b", map[string]string{"name": "web", "uid": "uid-b"}
	for name, raw := range map[string]string{"another ServiceAccount": kubetest.PodToken(t, "api"), "another namespace": kubetest.SignToken(t, ofTeamB)} {
		other := g.token(t, raw, scope)
		for range 3 {
			if status, body := g.get(t, "/v2/ghcr.io/acme/app/manifests/v1", other); status != http.StatusOK || body != image.Manifest {
				t.Errorf("%s: %d %s", name, status, body)
			}
		}
	}
	testkit.Eventually(t, "an event says who had too many", func() bool { return strings.Contains(g.Stdout.String(), `"limited_holder"`) })
}

// Only the streams of a revoked holder end soon.
func TestStreamsOfARevokedHolderEnd(t *testing.T) {
	t.Parallel()
	redis := statetest.Redis(t)
	registry := registrytest.NewRegistry(t, "")
	g := startGatewayWith(t, upstreamEntry("ghcr.io", registry, ""), map[string]string{"serviceaccounts.yaml": streamHolders}, "state: {redis: {addresses: ["+fmt.Sprintf("%q", redis.Address())+"]}}\n", memoryLimit())
	const scope = "repository:ghcr.io/acme/app:pull"
	testkit.Eventually(t, "revocations are known", func() bool { return g.Ready(t) })
	tokens := map[string]string{"web": g.token(t, kubetest.Token(t, "https://issuer.example.com"), scope), "api": g.token(t, kubetest.PodToken(t, "api"), scope)}
	endlessBlobs(registry)
	ctx, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	defer readers.Wait()
	defer stop()
	for _, token := range tokens {
		readers.Go(func() { g.readSlowly(ctx, "127.0.0.2", token) })
	}
	testkit.Eventually(t, "both read", func() bool { return g.service.gatewayMemory.Load().Streams == 2 })
	now := time.Now()
	testkit.Eventually(t, "it is revoked", func() bool { // Redis has half a second, which is short on a busy machine
		return g.service.shared.List.Add(t.Context(), state.Revocation{
			Target: state.Target{Kind: state.TargetServiceAccount, Cluster: "prod", Namespace: "team-a", Name: "web"}, By: "root", Reason: "stolen", Since: now, Until: now.Add(time.Hour),
		}) == nil
	})
	// Of the kernel's queue, a client may still take what is there.
	testkit.Eventually(t, "one has ended", func() bool { return g.service.gatewayMemory.Load().Streams == 1 })
	if e := g.LastEvent(t); e.Reason != "revoked" || e.ServiceAccount.Name != "web" || e.Status != http.StatusOK || e.Revocation == nil || e.Revocation.By != "root" {
		t.Errorf("%+v", e)
	}
}
