package chaostest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// fault is an event. Without an end it is over when it has begun.
type fault struct {
	kind, of   string
	detail     string   // for people
	where      *replica // nil: all
	begin, end func(t *testing.T)
}

func (f *fault) String() string {
	text := f.kind
	if f.where != nil {
		text += fmt.Sprintf(" of replica %d", f.where.number)
	}
	if f.detail != "" {
		text += " (" + f.detail + ")"
	}
	return text
}

// kind is a way to make a fault. Of each part that it names, one fault is there at a time.
type kind struct {
	name, of string
	fault    func(*world, *rand.Rand, *replica) *fault // nil: it cannot happen now
}

const (
	ofProcess  = "process"
	ofRedis    = "Redis"
	ofResolver = "resolver"
	ofAPI      = "API server"
)

var kinds = []kind{
	{"kill -9", ofProcess, (*world).kill},
	{"restart", ofProcess, (*world).restart},
	{"restart without Redis", ofProcess, (*world).restartAlone},
	{"other release", ofProcess, (*world).replaced},
	{"freeze", ofProcess, (*world).frozen},
	{"clock jump", "", (*world).clockJump},
	{"clock beyond all tokens", "", (*world).clockBeyond},
	{"full disk", "", (*world).fullDisk},
	{"Redis killed", ofRedis, (*world).redisKilled},
	{"Redis paused", ofRedis, (*world).redisPaused},
	{"Redis partitioned", ofRedis, (*world).redisPartitioned},
	{"Redis loses all", ofRedis, (*world).redisLoses},
	{"Redis is far", "", (*world).redisFar},
	{"Redis unreachable", "", (*world).redisRefused},
	{"the resolver knows no name", ofResolver, lying(unknown)},
	{"the resolver sends astray", ofResolver, lying(astray)},
	{"the resolver is silent", ofResolver, lying(silent)},
	{"the issuer's certificate has ended", "", (*world).issuerEnded},
	{"new key of the issuer", "", (*world).newKey},
	{"edit", "", (*world).edit},
	{"deny", "", (*world).deny},
	{"broken policy", "", (*world).broken},
	{"revocation", "", (*world).revoke},
	{"API server killed", ofAPI, (*world).apiKilled},
	{"API server hangs", ofAPI, (*world).apiHangs},
	{"API server is far", "", (*world).apiFar},
	{"API server partitioned", "", (*world).apiPartitioned},
	{"RepositoryAccess edited", "", (*world).accessEdited},
	{"pod replaced", "", (*world).podReplaced},
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

// next takes the first kind of the deck that can happen beside the active faults; nil: none can. Each kind comes once before
// any comes again.
func (w *world) next(random *rand.Rand, active []*fault) *fault {
	if len(w.deck) == 0 {
		w.deck = slices.Clone(kinds)
		random.Shuffle(len(w.deck), func(i, j int) { w.deck[i], w.deck[j] = w.deck[j], w.deck[i] })
	}
	for i, k := range w.deck {
		f := k.fault(w, random, w.replicas[random.IntN(len(w.replicas))])
		if f == nil {
			continue
		}
		f.kind, f.of = k.name, k.of
		if f.fits(active) {
			w.deck = slices.Delete(w.deck, i, i+1)
			return f
		}
	}
	return nil
}

func (f *fault) fits(active []*fault) bool {
	return !slices.ContainsFunc(active, func(a *fault) bool {
		same := a.where == f.where
		switch {
		case same && f.where != nil && a.kind == "freeze": // it cannot be told anything
			return true
		case same && f.of == ofProcess && strings.HasPrefix(a.kind, "clock "): // the next process may have another clock
			return true
		case same && strings.HasPrefix(f.kind, "clock ") && strings.HasPrefix(a.kind, "clock "):
			return true
		}
		return same && (a.kind == f.kind || f.of != "" && a.of == f.of)
	})
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
	return &fault{where: r, begin: func(t *testing.T) { w.end(t, r, true); w.start(t, r) }}
}

func (w *world) restart(_ *rand.Rand, r *replica) *fault {
	return &fault{where: r, begin: func(t *testing.T) { w.end(t, r, false); w.start(t, r) }}
}

// alone is how long a process has no Redis from its start on, at least: the load must meet it.
const alone = 6 * time.Second

// restartAlone revokes, and starts a process that finds no Redis. Where replays are only noted, it would grant all the same.
func (w *world) restartAlone(random *rand.Rand, _ *replica) *fault {
	r := w.replicas[auditing]
	kill := random.IntN(2) == 0
	revoke := w.revocationOf(namespaces[0], random.IntN(accounts), r) // they may pull by each policy
	if r.redisFaults > 0 {
		return nil // the revocation would not be confirmed
	}
	return &fault{
		where: r,
		begin: func(t *testing.T) {
			revoke.begin(t)
			w.change(r.loseRedis)
			r.way.Cut()
			w.end(t, r, kill)
			w.start(t, r)
			testenv.Poll(alone, func() bool { return false })
		},
		end: func(*testing.T) { r.way.Restore(); w.change(r.findRedis) },
	}
}

// replaced is an upgrade or the way back. The clock of one replica at least can jump.
func (w *world) replaced(random *rand.Rand, r *replica) *fault {
	kill := random.IntN(2) == 0
	if r.jumps && !slices.ContainsFunc(w.replicas, func(o *replica) bool { return o != r && o.jumps }) {
		r = w.replicas[(r.number+1)%len(w.replicas)]
	}
	return &fault{where: r, begin: func(t *testing.T) {
		w.end(t, r, kill)
		r.jumps = !r.jumps
		w.start(t, r)
	}}
}

func (w *world) frozen(_ *rand.Rand, r *replica) *fault {
	return &fault{
		where: r,
		begin: func(t *testing.T) {
			w.change(func() { r.frozen = append(r.frozen, span{from: time.Now()}); r.loseRedis(); r.loseAPI() })
			r.proxy.Freeze(t)
		},
		end: func(t *testing.T) {
			r.proxy.Thaw(t)
			w.change(func() { r.frozen[len(r.frozen)-1].to = time.Now(); r.findRedis(); r.findAPI() })
		},
	}
}

func (w *world) clockJump(random *rand.Rand, r *replica) *fault {
	return w.clock(r, int64(random.IntN(3600)-1800))
}

func (w *world) clockBeyond(_ *rand.Rand, r *replica) *fault {
	return w.clock(r, 2*int64(lifetime/time.Second))
}

// clock sets that of the replica, or of the next one that has a clock to set.
func (w *world) clock(r *replica, seconds int64) *fault {
	for !r.jumps {
		r = w.replicas[(r.number+1)%len(w.replicas)]
	}
	set := func(t *testing.T, seconds int64) {
		w.change(func() { r.clock.set(time.Duration(seconds) * time.Second) })
		programs.WriteClock(t, r.clocks, seconds)
	}
	return &fault{
		where: r, detail: fmt.Sprintf("%ds", seconds),
		// Meanwhile the API server's certificate is not valid.
		begin: func(t *testing.T) { w.change(r.loseAPI); set(t, seconds) },
		end:   func(t *testing.T) { set(t, 0); w.change(r.findAPI) },
	}
}

func (w *world) fullDisk(_ *rand.Rand, r *replica) *fault {
	filler := filepath.Join(r.disk, "filler")
	return &fault{
		where: r,
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

func (w *world) redisGone(begin, end func(*testing.T)) *fault {
	return &fault{
		begin: func(t *testing.T) { w.forRedis((*replica).loseRedis); begin(t) },
		end:   func(t *testing.T) { end(t); w.forRedis((*replica).findRedis) },
	}
}

func (w *world) redisKilled(*rand.Rand, *replica) *fault {
	return w.redisGone(func(t *testing.T) { w.server.Kill(t) }, func(t *testing.T) { w.server.Restart(t); w.server.AddUser(t, password) })
}

func (w *world) redisPaused(*rand.Rand, *replica) *fault {
	return w.redisGone(func(t *testing.T) { w.server.Freeze(t) }, func(t *testing.T) { w.server.Thaw(t) })
}

func (w *world) redisPartitioned(*rand.Rand, *replica) *fault {
	return w.redisGone(func(t *testing.T) { w.link.Cut(t) }, func(t *testing.T) { w.link.Restore(t) })
}

func (w *world) redisLoses(_ *rand.Rand, _ *replica) *fault {
	return &fault{begin: func(t *testing.T) {
		w.change(func() { w.redisLost = time.Now().Add(time.Minute) }) // until it is over
		w.server.Do(t, "flushall")
		w.change(func() { w.redisLost = time.Now() })
	}}
}

func (w *world) redisFar(random *rand.Rand, r *replica) *fault {
	delay := time.Duration(100+random.IntN(900)) * time.Millisecond
	return &fault{
		where: r, detail: delay.String(),
		begin: func(*testing.T) { w.change(r.loseRedis); r.way.Slow(delay) },
		end:   func(*testing.T) { r.way.Slow(0); w.change(r.findRedis) },
	}
}

func (w *world) redisRefused(_ *rand.Rand, r *replica) *fault {
	return &fault{
		where: r,
		begin: func(*testing.T) { w.change(r.loseRedis); r.way.Cut() },
		end:   func(*testing.T) { r.way.Restore(); w.change(r.findRedis) },
	}
}

func lying(lie int32) func(*world, *rand.Rand, *replica) *fault {
	return func(w *world, _ *rand.Rand, _ *replica) *fault {
		return w.issuerGone(func(*testing.T) { w.resolver.lie.Store(lie) }, func(*testing.T) { w.resolver.lie.Store(truth) })
	}
}

func (w *world) issuerEnded(*rand.Rand, *replica) *fault {
	return w.issuerGone(
		func(t *testing.T) {
			w.issuer.Present(t, w.ca.ServerUntil(t, time.Now().Add(-time.Second), "issuer", issuerHost))
		},
		func(t *testing.T) { w.issuer.Present(t, w.ca.Server(t, "issuer", issuerHost)) },
	)
}

func (w *world) issuerGone(begin, end func(*testing.T)) *fault {
	return &fault{
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

// newKey ends when the issuer withdraws the key of before.
func (w *world) newKey(*rand.Rand, *replica) *fault {
	rotate := func(t *testing.T) {
		w.change(func() {
			w.issuer.Rotate(t) // with the lock: the number is that of the key
			w.key++
			w.published[w.key] = time.Now()
			w.withdrawn[w.key-2] = time.Now()
		})
	}
	return &fault{begin: rotate, end: rotate}
}

// edit allows other namespaces, and denies none. The first one may always pull.
func (w *world) edit(random *rand.Rand, _ *replica) *fault {
	p := policy{allow: slices.DeleteFunc(slices.Clone(namespaces), func(n string) bool { return n != namespaces[0] && random.IntN(3) == 0 })}
	return w.written(p)
}

func (w *world) deny(random *rand.Rand, _ *replica) *fault {
	return w.written(policy{allow: namespaces, deny: []string{namespaces[1+random.IntN(len(namespaces)-1)]}})
}

func (w *world) written(p policy) *fault {
	return &fault{detail: fmt.Sprintf("allow %v, deny %v", p.allow, p.deny), begin: func(t *testing.T) {
		for _, r := range w.replicas {
			w.change(func() { r.policy.set(p) })
			r.proxy.WritePolicy(t, p.file())
		}
	}}
}

func (w *world) broken(random *rand.Rand, r *replica) *fault {
	text := []string{"", "rules: [", "apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\nrules:\n- {name: all, subject: [{}]}\n"}[random.IntN(3)]
	return &fault{
		where: r, detail: fmt.Sprintf("%q", text),
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
	return w.revocationOf(namespaces[random.IntN(len(namespaces))], random.IntN(accounts+len(w.revoked)), r)
}

func (w *world) revocationOf(namespace string, number int, r *replica) *fault {
	account := accountOf(namespace, number)
	return &fault{detail: account, begin: func(t *testing.T) {
		d := &revocation{account: account, namespace: namespace, number: number, tried: time.Now()}
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
