// Command demo shows the whole flow on one machine: a cluster's issuer, a real
// registry, pullpass serve as its own process, the kubelet's plugin, pulls and
// pushes. It ends with a table, and with exit code 1 if anything differs from
// what it should be.
//
// docker-compose.yaml shows the same with containers. The parts that it needs
// of the demo are commands: init, serve and token.
package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/sirupsen/logrus"
)

const (
	service  = "registry.example.com" // as in examples/pullpass.yaml
	audience = "registry.example.com"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "\ndemo: %v\n", err)
		stop()
		os.Exit(1)
	}
}

// demo is the machine on which the story plays.
type demo struct {
	out      io.Writer
	dir      string
	pullpass string // the binary
	plugin   string
	config   string
	registry string // host:port
	token    string // host:port of Pullpass
	servers  *pki
	cluster  *cluster
	proxy    *proxy
	steps    []step
	secrets  []string // every token that was in play, to look for in all output
}

// step is one line of the summary.
type step struct {
	what, want, got string
	ok              bool
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) > 0 {
		return runPart(ctx, args, out)
	}
	dir, err := os.MkdirTemp("", "pullpass-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	logrus.SetOutput(io.Discard) // the registry's own log

	d := &demo{out: out, dir: dir, config: filepath.Join(dir, "pullpass.yaml")}
	if err := d.setUp(ctx); err != nil {
		return err
	}
	stopped := false
	defer func() {
		if !stopped {
			_ = d.proxy.stop()
		}
	}()
	if err := d.tell(ctx); err != nil {
		return err
	}
	stopped = true
	d.check("pullpass serve ends on SIGTERM", "exit 0", d.proxy.stop(), "")
	d.checkNoLeak()
	return d.summary()
}

func (d *demo) setUp(ctx context.Context) error {
	d.title("Set-up")
	var err error
	d.say("Building pullpass and the kubelet's plugin …")
	if d.pullpass, d.plugin, err = build(ctx, d.dir); err != nil {
		return err
	}
	addresses, err := freeAddresses(4)
	if err != nil {
		return err
	}
	issuer, admin := "https://"+addresses[2], addresses[3]
	d.registry, d.token = addresses[0], addresses[1]
	err = copyExample(d.dir, strings.NewReplacer(
		"https://localhost:6443", issuer, "localhost:5444", d.token, "127.0.0.1:9090", admin))
	if err != nil {
		return err
	}
	if d.servers, err = newPKI(d.dir); err != nil {
		return err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	if d.cluster, err = newCluster(issuer, key); err != nil {
		return err
	}
	issuerListener, err := net.Listen("tcp", addresses[2])
	if err != nil {
		return err
	}
	d.servers.serve(issuerListener, d.cluster)
	d.say("A cluster's issuer publishes its keys at %s", issuer)

	if err := d.show(ctx, "check", "--config", d.config); err != nil {
		return err
	}
	if err := d.show(ctx, "keys", "init", "--config", d.config); err != nil {
		return err
	}
	trust := filepath.Join(d.dir, "registry-trust.pem")
	auth, err := d.command(ctx, "registry-config", "--config", d.config, "--service", service, "--for", "distribution",
		"--realm", "https://"+d.token+"/token", "--trust-file", trust)
	if err != nil {
		return err
	}
	d.say("The registry gets this, once; key rotations never touch it again:\n%s", indent(string(auth)))
	registryListener, err := net.Listen("tcp", d.registry)
	if err != nil {
		return err
	}
	if err := startRegistry(ctx, d.servers, registryListener, auth); err != nil {
		return err
	}
	if d.proxy, err = startProxy(ctx, d.pullpass, d.config, "http://"+admin); err != nil {
		return err
	}
	d.say("Registry: https://%s   Pullpass: https://%s/token", d.registry, d.token)
	return nil
}

// command runs pullpass and returns its standard output.
func (d *demo) command(ctx context.Context, args ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, d.pullpass, args...)
	var stderr strings.Builder
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return out, fmt.Errorf("pullpass %s: %w\n%s%s", strings.Join(args, " "), err, out, stderr.String())
	}
	return out, nil
}

// show runs pullpass and shows the command and its output.
func (d *demo) show(ctx context.Context, args ...string) error {
	out, err := d.command(ctx, args...)
	if err != nil {
		return err
	}
	d.say("$ pullpass %s\n%s", strings.ReplaceAll(strings.Join(args, " "), d.dir+string(filepath.Separator), ""), indent(string(out)))
	return nil
}

func (d *demo) title(format string, args ...any) { fmt.Fprintf(d.out, "\n== "+format+"\n", args...) }

func (d *demo) say(format string, args ...any) {
	fmt.Fprintln(d.out, strings.TrimRight(fmt.Sprintf("   "+format, args...), "\n"))
}

func indent(s string) string {
	return "     | " + strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n     | ")
}

// check notes a step that must succeed (refusal empty), or must fail with an
// error that holds refusal.
func (d *demo) check(what, want string, err error, refusal string) {
	s := step{what: what, want: want, got: "done"}
	switch {
	case err == nil:
		s.ok = refusal == ""
	default:
		s.got = oneLine(err.Error())
		s.ok = refusal != "" && strings.Contains(err.Error(), refusal)
	}
	switch {
	case !s.ok:
		d.say("DIFFERS: %s — %s is wanted, and it is: %s", what, want, s.got)
	case err != nil:
		d.say("ok: %s — %s, as it should be:\n%s", what, want, indent(s.got))
	default:
		d.say("ok: %s — %s", what, want)
	}
	d.steps = append(d.steps, s)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// checkNoLeak looks for every token in everything that Pullpass wrote.
func (d *demo) checkNoLeak() {
	written := d.proxy.written()
	var err error
	for _, secret := range d.secrets {
		// The signature alone would be a leak of nothing; header and claims are looked for as well.
		for _, part := range strings.Split(secret, ".")[1:] {
			if strings.Contains(written, part) {
				err = fmt.Errorf("a token stands in the log of pullpass")
			}
		}
	}
	d.check(fmt.Sprintf("none of %d tokens in what Pullpass wrote", len(d.secrets)), "nothing", err, "")
}

func (d *demo) summary() error {
	d.title("Summary")
	w := tabwriter.NewWriter(d.out, 0, 0, 2, ' ', 0)
	differ := 0
	for _, s := range d.steps {
		mark := "ok"
		if !s.ok {
			mark = "DIFFERS: " + s.got
			differ++
		}
		fmt.Fprintf(w, "   %s\t%s\t%s\n", s.what, s.want, mark)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if differ > 0 {
		return fmt.Errorf("%d of %d steps differ", differ, len(d.steps))
	}
	fmt.Fprintf(d.out, "\n   All %d steps as they should be.\n", len(d.steps))
	return nil
}
