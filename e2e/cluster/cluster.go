// Package cluster runs the control plane of a Kubernetes cluster on loopback: etcd, kube-apiserver and, where a test requests
// them, controllers. Package node runs nodes. The cluster has no scheduler, and no network of pods.
package cluster

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/relay"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// startLimit is for each program. kube-apiserver needs 3 s on a machine that is not busy.
const startLimit = 2 * time.Minute

// Cluster is a running control plane. Its methods fail the test on every error.
type Cluster struct {
	// Issuer is the issuer of the ServiceAccount tokens, the first API audience, and the address of the API server.
	Issuer string
	// CA signed the API server's certificate.
	CA *certs.CA
	// Admin is the client certificate of the administrator.
	Admin certs.Pair

	address   string // host:port of the API server
	etcd      string // URL
	store     *process.Process
	dir       string
	options   Options
	admin     *http.Client
	others    *http.Client // without a certificate
	apiserver *process.Process
	serving   certs.Pair
	signing   certs.RSAKey
	trusted   []certs.RSAKey
}

// Options are what a control plane may have that others have not.
type Options struct {
	OldEtcd      bool   // programs.OldEtcd
	NoWatchCache bool   // watches read from etcd itself
	AuditUser    string // whose requests Requests has; empty: no user's
}

// Start runs a control plane whose ServiceAccount tokens are signed with key. Anonymous callers are let through to the
// discovery documents only, and are not authorized to read them until OpenDiscovery.
func Start(t testing.TB, key certs.RSAKey) *Cluster {
	t.Helper()
	return StartWith(t, key, Options{})
}

// StartWith is Start with options.
func StartWith(t testing.TB, key certs.RSAKey, options Options) *Cluster {
	t.Helper()
	c := &Cluster{
		CA: certs.NewCA(t, "cluster-ca"), address: process.FreeAddress(t), dir: t.TempDir(), options: options,
		signing: key, trusted: []certs.RSAKey{key},
	}
	c.Issuer = "https://" + c.address
	c.serving = c.CA.Server(t, "kube-apiserver", isolate.ServiceAddress)
	c.Admin = c.CA.Client(t, "admin", "system:masters")
	c.admin = &http.Client{Transport: c.CA.Transport(t, c.Admin.TLS(t)), Timeout: 30 * time.Second}
	c.others = &http.Client{Transport: c.CA.Transport(t), Timeout: 3 * time.Minute}
	c.startEtcd(t)
	c.startAPIServer(t)
	return c
}

// RestartAPIServer stops the API server and runs it again at the same address. It signs with signing and accepts what the
// trusted keys signed; the published key set holds the trusted keys.
func (c *Cluster) RestartAPIServer(t testing.TB, signing certs.RSAKey, trusted ...certs.RSAKey) {
	t.Helper()
	c.disconnect() // the API server waits for its connections to end
	if err := c.apiserver.Stop(); err != nil {
		t.Fatalf("stop kube-apiserver: %v", err)
	}
	c.SetKeys(signing, trusted...)
	c.startAPIServer(t)
}

// Crash ends the API server at once and breaks all its connections. Recover runs it again at the same address.
func (c *Cluster) Crash(t testing.TB) {
	t.Helper()
	c.apiserver.Kill(t)
	c.disconnect()
}

func (c *Cluster) disconnect() {
	c.admin.CloseIdleConnections()
	c.others.CloseIdleConnections()
}

// SetKeys changes the keys of the API server from its next start on, as RestartAPIServer does.
func (c *Cluster) SetKeys(signing certs.RSAKey, trusted ...certs.RSAKey) {
	c.signing, c.trusted = signing, trusted
}

// Recover ends what Crash began.
func (c *Cluster) Recover(t testing.TB) {
	t.Helper()
	c.startAPIServer(t)
}

// Hang stops all responses of the API server, with its connections open, until Resume.
func (c *Cluster) Hang(t testing.TB) { t.Helper(); c.apiserver.Freeze(t) }

// Resume ends what Hang began.
func (c *Cluster) Resume(t testing.TB) { t.Helper(); c.apiserver.Thaw(t) }

func (c *Cluster) startEtcd(t testing.TB) {
	t.Helper()
	c.etcd = "http://" + process.FreeAddress(t)
	peers := "http://" + process.FreeAddress(t)
	program := programs.Etcd
	if c.options.OldEtcd {
		program = programs.OldEtcd
	}
	c.store = process.Start(t, exec.Command(program(t),
		"--name=e2e",
		"--data-dir="+c.data(),
		"--listen-client-urls="+c.etcd, "--advertise-client-urls="+c.etcd,
		"--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers,
		"--initial-cluster=e2e="+peers,
		"--unsafe-no-fsync", // the data ends with the test
	))
	c.store.Await(t, startLimit, func(ctx context.Context) error {
		return getOK(ctx, http.DefaultClient, c.etcd+"/health")
	})
}

// authentication lets anonymous callers reach the discovery documents and the health checks, nothing else.
const authentication = `apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions:
  - path: /.well-known/openid-configuration
  - path: /openid/v1/jwks
  - path: /livez
  - path: /readyz
`

func (c *Cluster) startAPIServer(t testing.TB) {
	t.Helper()
	config := filepath.Join(c.dir, "authentication.yaml")
	testenv.WriteFile(t, config, authentication)
	args := []string{
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port=" + c.address[strings.LastIndex(c.address, ":")+1:],
		"--etcd-servers=" + c.etcd,
		"--endpoint-reconciler-type=none", // the kubernetes Service would need an address that is not loopback
		"--tls-cert-file=" + c.serving.CertFile, "--tls-private-key-file=" + c.serving.KeyFile, "--client-ca-file=" + c.CA.File,
		"--service-account-issuer=" + c.Issuer, "--service-account-jwks-uri=" + c.Issuer + "/openid/v1/jwks", "--api-audiences=" + c.Issuer,
		"--service-account-signing-key-file=" + c.signing.PrivateFile,
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--authentication-config=" + config,
		"--service-cluster-ip-range=10.96.0.0/24,fd00:96::/112",
		// For the logs of pods, and commands in them.
		"--kubelet-preferred-address-types=InternalIP", "--kubelet-client-certificate=" + c.Admin.CertFile, "--kubelet-client-key=" + c.Admin.KeyFile,
		"--cert-dir=" + filepath.Join(c.dir, "apiserver"),
		"--allow-privileged=true", // as kubeadm has it
		"--profiling=false", "--v=1",
		"--watch-cache=" + strconv.FormatBool(!c.options.NoWatchCache),
	}
	if c.options.AuditUser != "" {
		args = append(args, c.auditFlags(t)...)
	}
	for _, key := range c.trusted {
		args = append(args, "--service-account-key-file="+key.PublicFile)
	}
	c.apiserver = process.Start(t, exec.Command(programs.KubeAPIServer(t), args...))
	apiserver := c.apiserver
	t.Cleanup(func() { c.capture(); apiserver.Kill(t) }) // SIGTERM would wait for watches of programs that end later
	c.apiserver.Await(t, startLimit, func(ctx context.Context) error {
		return getOK(ctx, c.admin, c.Issuer+"/readyz")
	})
}

// StartTokenController runs the controller of the kube-controller-manager that signs legacy token Secrets, with key.
func (c *Cluster) StartTokenController(t testing.TB, key certs.RSAKey) {
	t.Helper()
	c.startControllers(t, key, "serviceaccount-token-controller")
}

// StartQuotaController runs the controller that counts what a ResourceQuota bounds: without it, the API server refuses nothing.
func (c *Cluster) StartQuotaController(t testing.TB) {
	t.Helper()
	c.startControllers(t, c.signing, "resourcequota-controller")
}

// StartControllers runs what a cluster with nodes needs: the token controller, those that give each namespace its
// ServiceAccount default, and the CA that its pods trust, and more.
func (c *Cluster) StartControllers(t testing.TB, key certs.RSAKey, more ...string) {
	t.Helper()
	c.startControllers(t, key, append(more, "serviceaccount-token-controller", "serviceaccount-controller", "root-ca-certificate-publisher-controller")...)
}

// StartScheduler runs the scheduler.
func (c *Cluster) StartScheduler(t testing.TB) {
	t.Helper()
	cert := c.CA.Client(t, "system:kube-scheduler")
	kubeconfig := filepath.Join(c.dir, "scheduler.kubeconfig")
	c.Kubeconfig(t, kubeconfig, cert.CertFile, cert.KeyFile)
	scheduler := process.Start(t, exec.Command(programs.KubeScheduler(t), "--kubeconfig="+kubeconfig, "--leader-elect=false", "--secure-port=0"))
	t.Cleanup(func() { scheduler.Kill(t) }) // without leader election, it ends with an error in any case
}

// ServePods lets pods reach the API server at the address that they are told, that of the Service kubernetes. The tests have to
// run inside namespaces of package isolate, and no kube-proxy runs there.
func (c *Cluster) ServePods(t testing.TB) {
	t.Helper()
	relay.Start(t, isolate.ServiceAddress+":443", c.address)
}

func (c *Cluster) startControllers(t testing.TB, key certs.RSAKey, names ...string) {
	t.Helper()
	cert := c.CA.Client(t, "system:kube-controller-manager")
	kubeconfig := filepath.Join(c.dir, "controller-manager.kubeconfig")
	c.Kubeconfig(t, kubeconfig, cert.CertFile, cert.KeyFile)
	process.Start(t, exec.Command(programs.KubeControllerManager(t),
		"--kubeconfig="+kubeconfig,
		"--controllers="+strings.Join(names, ","),
		"--use-service-account-credentials=true",
		"--service-account-private-key-file="+key.PrivateFile,
		"--root-ca-file="+c.CA.File,
		"--leader-elect=false",
		"--secure-port=0",
		"--kube-api-qps=500", "--kube-api-burst=1000", // 20 a second is the default, and the tests wait
	))
}

func getOK(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	return nil
}
