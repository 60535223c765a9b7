package chaostest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// fault is an event. Without an end it is over when it has begun.
type fault struct {
	kind       string
	where      *replica // nil: all
	begin, end func(t *testing.T)
}

func (f *fault) String() string {
	if f.where == nil {
		return f.kind
	}
	return fmt.Sprintf("%s of replica %d", f.kind, f.where.number)
}

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.event(format, args...)
}

func (w *world) endFault(t *testing.T, f *fault) {
	t.Helper()
	f.end(t)
	w.note("%s ended", f)
}

// change changes facts: before a fault begins, and after it ended.
func (w *world) change(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
}

// choose chooses a fault that can happen beside the active ones; nil: none this time.
func (w *world) choose(random *rand.Rand, active []*fault) *fault {
	r := w.replicas[random.IntN(len(w.replicas))]
	kinds := []func(*rand.Rand, *replica) *fault{
		w.kill, w.restart, w.replaced, w.frozen, w.clockJump, w.fullDisk,
		w.redisGone, w.redisGone, w.redisLoses, w.redisFar, w.redisRefused,
		w.issuerGone, w.newKey, w.edit, w.edit, w.broken, w.revoke, w.revoke,
	}
	f := kinds[random.IntN(len(kinds))](random, r)
	for _, a := range active {
		sameReplica := a.where == f.where
		isRedis := func(f *fault) bool {
			return slices.Contains([]string{"Redis killed", "Redis paused", "Redis partitioned", "Redis loses all"}, f.kind)
		}
		// A frozen process cannot be told anything, and Redis has one fault at a time, like the issuer.
		if a.kind == f.kind && sameReplica || sameReplica && a.kind == "freeze" || isRedis(a) && isRedis(f) || f.where == nil && a.kind == f.kind {
			return nil
		}
		// Nothing of a fault may outlive the process that it is of.
		if sameReplica && f.where != nil && slices.Contains([]string{"kill -9", "restart", "other release"}, f.kind) && slices.Contains([]string{"freeze", "clock jump"}, a.kind) {
			return nil
		}
	}
	return f
}

// end ends the process of a replica, by SIGTERM or by SIGKILL.
func (w *world) end(t *testing.T, r *replica, kill bool) {
	t.Helper()
	w.change(func() { r.alive.set(false) })
	if kill {
		r.proxy.Kill(t)
	} else {
		r.proxy.Stop(t)
	}
}

func (w *world) kill(_ *rand.Rand, r *replica) *fault {
	return &fault{kind: "kill -9", where: r, begin: func(t *testing.T) { w.end(t, r, true); w.start(t, r) }}
}

func (w *world) restart(_ *rand.Rand, r *replica) *fault {
	return &fault{kind: "restart", where: r, begin: func(t *testing.T) { w.end(t, r, false); w.start(t, r) }}
}

// replaced is an upgrade or the way back.
func (w *world) replaced(random *rand.Rand, r *replica) *fault {
	kill := random.IntN(2) == 0
	return &fault{kind: "other release", where: r, begin: func(t *testing.T) {
		w.end(t, r, kill)
		r.jumps = !r.jumps
		w.start(t, r)
	}}
}

func (w *world) frozen(_ *rand.Rand, r *replica) *fault {
	return &fault{
		kind: "freeze", where: r,
		begin: func(t *testing.T) {
			w.change(func() { r.frozen = append(r.frozen, span{from: time.Now()}); r.loseRedis() })
			r.proxy.Freeze(t)
		},
		end: func(t *testing.T) {
			r.proxy.Thaw(t)
			w.change(func() { r.frozen[len(r.frozen)-1].to = time.Now(); r.findRedis() })
		},
	}
}

func (w *world) clockJump(random *rand.Rand, r *replica) *fault {
	seconds := int64(random.IntN(3600) - 1800)
	if random.IntN(4) == 0 {
		seconds = 2 * int64(lifetime/time.Second) // every token is expired
	}
	set := func(t *testing.T, seconds int64) {
		w.change(func() {
			if r.jumps {
				r.clock.set(time.Duration(seconds) * time.Second)
			}
		})
		programs.WriteClock(t, r.clocks, seconds)
	}
	return &fault{
		kind: "clock jump", where: r,
		begin: func(t *testing.T) { set(t, seconds) },
		end:   func(t *testing.T) { set(t, 0) },
	}
}

func (w *world) fullDisk(_ *rand.Rand, r *replica) *fault {
	filler := filepath.Join(r.disk, "filler")
	return &fault{
		kind: "full disk", where: r,
		begin: func(t *testing.T) {
			if err := os.WriteFile(filler, make([]byte, diskSize), 0o600); !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("a file that fills the disk: %v, want ENOSPC", err)
			}
		},
		end: func(t *testing.T) { testenv.Must(t, os.Remove(filler)) },
	}
}

// rotateAudit keeps audit files from filling their disks.
func (w *world) rotateAudit(t *testing.T, active []*fault) {
	t.Helper()
	for _, r := range w.replicas {
		full := slices.ContainsFunc(active, func(f *fault) bool { return f.kind == "full disk" && f.where == r })
		if info, err := os.Stat(r.config.AuditFile); err == nil && !full && info.Size() > diskSize/4 {
			testenv.Must(t, os.Truncate(r.config.AuditFile, 0))
		}
	}
}

func (r *replica) loseRedis() {
	r.redisFaults++
	if r.redisFaults == 1 {
		r.redis.set(false)
	}
}

func (r *replica) findRedis() {
	r.redisFaults--
	if r.redisFaults == 0 {
		r.redis.set(true)
	}
}

func (w *world) forRedis(do func(*replica)) {
	w.change(func() {
		for _, r := range w.replicas {
			do(r)
		}
	})
}

func (w *world) redisGone(random *rand.Rand, _ *replica) *fault {
	f := []*fault{
		{kind: "Redis killed", begin: func(t *testing.T) { w.server.Kill(t) }, end: func(t *testing.T) { w.server.Restart(t); w.server.AddUser(t, password) }},
		{kind: "Redis paused", begin: func(t *testing.T) { w.server.Freeze(t) }, end: func(t *testing.T) { w.server.Thaw(t) }},
		{kind: "Redis partitioned", begin: func(t *testing.T) { w.link.Cut(t) }, end: func(t *testing.T) { w.link.Restore(t) }},
	}[random.IntN(3)]
	return &fault{
		kind:  f.kind,
		begin: func(t *testing.T) { w.forRedis((*replica).loseRedis); f.begin(t) },
		end:   func(t *testing.T) { f.end(t); w.forRedis((*replica).findRedis) },
	}
}

func (w *world) redisLoses(_ *rand.Rand, _ *replica) *fault {
	return &fault{kind: "Redis loses all", begin: func(t *testing.T) {
		w.change(func() { w.redisLost = time.Now().Add(time.Minute) }) // until it is over
		w.server.Do(t, "flushall")
		w.change(func() { w.redisLost = time.Now() })
	}}
}

func (w *world) redisFar(random *rand.Rand, r *replica) *fault {
	delay := time.Duration(100+random.IntN(900)) * time.Millisecond
	return &fault{
		kind: "Redis is far", where: r,
		begin: func(*testing.T) { w.change(r.loseRedis); r.way.Slow(delay) },
		end:   func(*testing.T) { r.way.Slow(0); w.change(r.findRedis) },
	}
}

func (w *world) redisRefused(_ *rand.Rand, r *replica) *fault {
	return &fault{
		kind: "Redis unreachable", where: r,
		begin: func(*testing.T) { w.change(r.loseRedis); r.way.Cut() },
		end:   func(*testing.T) { r.way.Restore(); w.change(r.findRedis) },
	}
}

// issuerGone is a resolver that lies, or a certificate that has ended.
func (w *world) issuerGone(random *rand.Rand, _ *replica) *fault {
	lie := random.IntN(4)
	begin, end := func(*testing.T) { w.resolver.lie.Store(int32(lie)) }, func(*testing.T) { w.resolver.lie.Store(truth) }
	kind := []string{"", "the resolver knows no name", "the resolver sends astray", "the resolver is silent"}[lie]
	if lie == truth {
		kind = "the issuer's certificate has ended"
		begin = func(t *testing.T) {
			w.issuer.Present(t, w.ca.ServerUntil(t, time.Now().Add(-time.Second), "issuer", issuerHost))
		}
		end = func(t *testing.T) { w.issuer.Present(t, w.ca.Server(t, "issuer", issuerHost)) }
	}
	return &fault{
		kind: kind,
		begin: func(t *testing.T) {
			w.change(func() {
				w.issuerFaults++
				w.issuerUp.set(false)
			})
			begin(t)
		},
		end: func(t *testing.T) {
			end(t)
			w.change(func() {
				w.issuerFaults--
				w.issuerUp.set(w.issuerFaults == 0)
			})
		},
	}
}

func (w *world) newKey(*rand.Rand, *replica) *fault {
	return &fault{kind: "new key of the issuer", begin: func(t *testing.T) {
		w.change(func() {
			w.issuer.Rotate(t) // with the lock: the number is that of the key
			w.key++
			w.published[w.key] = time.Now()
			w.withdrawn[w.key-2] = time.Now()
		})
	}}
}

func (w *world) edit(random *rand.Rand, _ *replica) *fault {
	p := policy{allow: slices.DeleteFunc(slices.Clone(namespaces[1:]), func(string) bool { return random.IntN(4) == 0 })}
	p.allow = append(p.allow, namespaces[0])
	if random.IntN(3) == 0 {
		p.deny = []string{namespaces[random.IntN(len(namespaces))]}
	}
	return &fault{kind: "edit", begin: func(t *testing.T) {
		for _, r := range w.replicas {
			w.change(func() { r.policy.set(p) })
			r.proxy.WritePolicy(t, p.file())
		}
	}}
}

func (w *world) broken(random *rand.Rand, r *replica) *fault {
	text := []string{"", "rules: [", "apiVersion: pullpass.dev/v1alpha1\nkind: AccessPolicy\nrules:\n- {name: all, subject: [{}]}\n"}[random.IntN(3)]
	return &fault{
		kind: "broken policy", where: r,
		begin: func(t *testing.T) {
			w.change(func() { r.spoilt = append(r.spoilt, span{from: time.Now()}) })
			r.proxy.WritePolicy(t, text)
		},
		end: func(t *testing.T) {
			r.proxy.WritePolicy(t, r.policy.now().file())
			w.change(func() {
				if n := len(r.spoilt); n > 0 { // else it has another process
					r.spoilt[n-1].to = time.Now()
				}
			})
		},
	}
}

func (w *world) revoke(random *rand.Rand, r *replica) *fault {
	account := fmt.Sprintf("%s/web-%d", namespaces[random.IntN(len(namespaces))], random.IntN(accounts+len(w.revoked)))
	return &fault{kind: "revocation", begin: func(t *testing.T) {
		d := &revocation{account: account, tried: time.Now()}
		w.change(func() { w.revoked = append(w.revoked, d) })
		_, err := r.proxy.TryCommand(t, "revoke", "--service-account", clusterName+"/"+account, "--reason", "a test", "--for", "4h")
		w.change(func() {
			if err == nil {
				d.confirmed = time.Now()
			} else if heldSince(r.redis, d.tried.Add(-settle), time.Now()) {
				t.Errorf("pullpass revoke fails while Redis is there: %v", err)
			}
		})
	}}
}
