package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pullpass/pullpass/internal/base/filewatch"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
)

// The names of the file groups in the log, in metrics and in /readyz.
const (
	configGroup      = "config"
	policyGroup      = "policy"
	trialGroup       = "policy-trial"
	manifestsGroup   = "manifests"
	tlsGroup         = "tls"
	upstreamsGroup   = "upstreams"
	passwordsGroup   = "upstream-passwords"
	assertionsGroup  = "assertions"
	kubeconfigGroup  = "kubeconfig/"   // followed by the cluster
	signingKeysGroup = "signing-keys/" // followed by the service
)

// watched returns the files of a generation that are read again when they change.
func (s *Server) watched(g *generation) []filewatch.Group {
	groups := []filewatch.Group{
		// With the policy, because an invalid one keeps a new configuration back.
		{Name: configGroup, Paths: slices.Concat([]string{g.cfg.File}, g.cfg.PolicyFiles), Reload: s.reloadConfig},
		// With the configuration, because a changed one keeps the rules of a new policy back.
		{Name: policyGroup, Paths: slices.Concat([]string{g.cfg.File}, g.cfg.PolicyFiles), Reload: s.reloadPolicy},
	}
	if files := g.cfg.PolicyTrial.Files; len(files) > 0 {
		groups = append(groups, filewatch.Group{Name: trialGroup, Paths: files, Reload: s.reloadTrial})
	}
	var manifests []string
	for i := range g.cfg.Clusters {
		c := &g.cfg.Clusters[i]
		manifests = append(manifests, c.Kubernetes.ManifestFiles...)
		if file := c.Kubernetes.KubeconfigFile; file != "" {
			groups = append(groups, filewatch.Group{Name: kubeconfigGroup + c.Name, Paths: []string{file}, Reload: func() error { return s.reloadKubeconfig(c.Name) }})
		}
	}
	if len(manifests) > 0 {
		groups = append(groups, filewatch.Group{Name: manifestsGroup, Paths: manifests, Part: g.objects.Manifests, Reload: g.objects.Manifests.Reload})
	}
	for _, r := range g.cfg.Registries {
		keys := g.keys[r.Service]
		groups = append(groups, filewatch.Group{Name: signingKeysGroup + r.Service, Paths: r.Signing.Paths(), Part: keys, Reload: keys.Reload})
	}
	if a := g.cfg.Assertions; a != nil {
		groups = append(groups, filewatch.Group{Name: assertionsGroup, Paths: config.NonEmpty(a.KeyFile, a.ManagedDir), Part: g.assertions, Reload: g.assertions.Reload})
	}
	if paths := upstreamPaths(g.cfg); len(paths) > 0 {
		groups = append(groups, filewatch.Group{Name: upstreamsGroup, Paths: paths, Reload: s.reloadUpstreams})
	}
	if paths := passwordPaths(g.cfg); len(paths) > 0 { // apart, because a CA must not wait for a password
		groups = append(groups, filewatch.Group{Name: passwordsGroup, Paths: paths, Reload: func() error { return checkPasswords(s.current.Load().cfg) }})
	}
	if g.tls != nil {
		groups = append(groups, filewatch.Group{Name: tlsGroup, Paths: tlsPaths(g.cfg), Reload: s.reloadTLS})
	}
	return groups
}

// reload is one change of the serving state, from reading to completion. It belongs to the
// goroutine that reconciles.
type reload struct {
	// read opens the present contents of the files, and uses no network. It returns the change to
	// the parts, or nil if nothing has changed.
	read func(now *generation) (change, error)
	// exclusive reloads replace parts with background work. The next reload of the same kind is
	// read when this one has ended.
	exclusive bool
	// isStale reports whether a newer content is there. nil: never. It ends a wait for annotations.
	isStale func() bool
	ended   chan error // holds one value

	keys     []string  // annotations that it waits for
	until    time.Time // how long
	change   change
	before   *setup.Objects // those that served when it was last prepared
	prepared error
}

// change computes the next parts from the present ones. A policy or a certificate may have been
// reloaded since the change was read. The change must not undo that.
type change interface {
	parts(now parts) (parts, error)
	// prepare waits until the new parts are ready. It changes nothing.
	prepare(ctx context.Context) error
}

// newParts is the change to parts that were opened for a new configuration or kubeconfig.
type newParts struct {
	server       *Server
	before, next parts
}

// parts reads the other files again: they may have been reloaded since, by the settings before.
func (c newParts) parts(now parts) (parts, error) {
	next := c.next
	// The policy that is there now may belong to yet another configuration.
	if next.cfg != c.before.cfg && !isFile(next.cfg) {
		return parts{}, errChangedAgain
	}
	var err error
	if next.policy == c.before.policy {
		next.policy, next.pending = now.policy, now.pending
	} else if next.policy, err = setup.LoadPolicy(next.cfg); err != nil {
		return parts{}, err
	}
	if next.trial == c.before.trial {
		next.trial = now.trial
	} else if next.trial, err = setup.LoadTrial(next.cfg); err != nil {
		c.server.logger.Error("the policy trial is not judged", "error", err)
	}
	if next.tls == c.before.tls {
		next.tls = now.tls
	} else if next.tls != nil {
		if next.tls, err = openTLS(next.cfg, time.Now()); err != nil {
			return parts{}, err
		}
	}
	kept := next
	kept.upstreams = maps.Clone(next.upstreams)
	for name, u := range kept.upstreams {
		if u == c.before.upstreams[name] && now.upstreams[name] != nil {
			kept.upstreams[name] = now.upstreams[name]
		}
	}
	next.upstreams, err = openUpstreams(next.cfg, c.server.version, next.assertions, c.server.logger, kept)
	return next, err
}

var errStale = errors.New("the policy was changed again while it waited for annotations, and is read again")

var errChangedAgain = errors.New("the configuration was changed again while it got ready, and is read again")

// isFile reports whether a configuration is what its file has now.
func isFile(cfg *config.Config) bool {
	file, err := config.Load(cfg.File)
	return err == nil && reflect.DeepEqual(file, cfg)
}

func (c newParts) prepare(ctx context.Context) error {
	return c.next.settle(ctx, c.before)
}

// newPart is a change that needs no preparation.
type newPart func(now parts) (parts, error)

func (c newPart) parts(now parts) (parts, error) { return c(now) }

func (c newPart) prepare(context.Context) error { return nil }

// reload passes a reload to the reconciler and returns its result.
func (s *Server) reload(r *reload) error {
	r.ended = make(chan error, 1)
	select {
	case s.reloads <- r:
	case <-s.background.Done():
		return s.background.Err()
	}
	select {
	case err := <-r.ended:
		return err
	case <-s.background.Done():
		return s.background.Err()
	}
}

// reloadConfig replaces the present configuration by that of the file. On an error, nothing
// changes.
func (s *Server) reloadConfig() error {
	return s.reload(&reload{exclusive: true, read: func(now *generation) (change, error) {
		cfg, err := config.Load(now.cfg.File)
		if err != nil {
			return nil, err
		}
		if err := cfg.CheckListeners(s.insecureHTTP); err != nil {
			return nil, err
		}
		if reflect.DeepEqual(cfg, now.cfg) {
			return nil, nil
		}
		next, err := open(cfg, s.insecureHTTP, s.version, s.logger, now.parts)
		if err != nil {
			return nil, err
		}
		return newParts{s, now.parts, next}, nil
	}})
}

// reloadKubeconfig connects to the API server of a cluster again if its kubeconfig has changed. The
// previous connection serves until the new one is ready.
func (s *Server) reloadKubeconfig(cluster string) error {
	return s.reload(&reload{exclusive: true, read: func(now *generation) (change, error) {
		connected, ok := now.objects.Connection(cluster)
		if !ok || connected.Content == filewatch.Digest([]string{connected.Settings.Kubeconfig}) {
			return nil, nil
		}
		rest := now.parts
		rest.objects = now.objects.Without(cluster)
		next, err := open(now.cfg, s.insecureHTTP, s.version, s.logger, rest)
		if err != nil {
			return nil, err
		}
		return newParts{s, now.parts, next}, nil
	}})
}

// reloadPolicy keeps the present rules on an error. The watch tries it again. While the file of the
// configuration differs from the one in use, only the denials of a new policy apply: its rules may
// be meant for stricter settings. They count together with these.
func (s *Server) reloadPolicy() error {
	r := &reload{}
	r.read = func(read *generation) (change, error) {
		next, err := setup.LoadPolicy(read.cfg)
		if err != nil {
			return nil, err
		}
		r.isStale = func() bool {
			newer, err := setup.LoadPolicy(read.cfg)
			return err == nil && newer.Revision() != next.Revision()
		}
		return newPart(func(now parts) (parts, error) {
			next := next
			if now.cfg != read.cfg { // which may name other files and identities
				var err error
				if next, err = setup.LoadPolicy(now.cfg); err != nil {
					return parts{}, err
				}
			}
			if isFile(now.cfg) || next.Revision() == now.policy.Revision() {
				now.policy = next
			} else {
				s.logger.Warn("the rules of a changed policy wait for the changed configuration; its denials apply")
				now.pending = next
			}
			return now, nil
		}), nil
	}
	return s.reload(r)
}

// reloadTrial keeps the present trial on an error.
func (s *Server) reloadTrial() error {
	return s.reload(&reload{read: func(read *generation) (change, error) {
		next, err := setup.LoadTrial(read.cfg)
		if err != nil {
			return nil, err
		}
		return newPart(func(now parts) (parts, error) {
			if slices.Equal(now.cfg.PolicyTrial.Files, read.cfg.PolicyTrial.Files) { // else a new configuration has read others
				now.trial = next
			}
			return now, nil
		}), nil
	}})
}

// reloadTLS reads the certificate, its key and the CAs of the nodes again. If only one of
// certificate and key is new, that is an error, which the next reload corrects.
func (s *Server) reloadTLS() error {
	return s.reload(&reload{read: func(read *generation) (change, error) {
		next, err := openTLS(read.cfg, time.Now())
		if err != nil {
			return nil, err
		}
		return newPart(func(now parts) (parts, error) {
			if now.tls == read.tls { // else a new configuration has read its own
				now.tls = next
			}
			return now, nil
		}), nil
	}})
}

// reconcile makes every change of the serving state, until the service stops. Slow work runs in
// other goroutines: a change is read there and prepared, several times if necessary. It is then
// swapped in here, in one step.
func (s *Server) reconcile() {
	prepared := make(chan *reload)
	var exclusive *reload
	var waiting []*reload
	begin := func(r *reload) {
		if r.exclusive && exclusive != nil {
			waiting = append(waiting, r)
			return
		}
		var err error
		now := s.current.Load()
		if r.change, err = r.read(now); err != nil || r.change == nil {
			r.ended <- err
			return
		}
		if r.exclusive {
			next, err := r.change.parts(now.parts)
			if err != nil {
				r.ended <- err
				return
			}
			exclusive = r
			s.work(now.parts, next)
		}
		s.prepare(r, r.change.prepare, prepared)
	}
	for {
		var r *reload
		select {
		case <-s.background.Done():
			return
		case r = <-s.reloads:
			begin(r)
			continue
		case r = <-prepared:
		}
		if ended, err := s.swap(r, prepared); ended {
			if r == exclusive {
				exclusive = nil
				s.work(s.current.Load().parts) // and end the workers that are no longer needed
			}
			delete(s.waits, r)
			r.ended <- err
			for exclusive == nil && len(waiting) > 0 {
				next := waiting[0]
				waiting = waiting[1:]
				begin(next)
			}
		}
	}
}

// prepare runs the slow work of a reload in the background, for at most settleTimeout, and hands
// the reload back.
func (s *Server) prepare(r *reload, do func(context.Context) error, prepared chan<- *reload) {
	r.before = s.current.Load().objects
	s.running.Go(func() {
		ctx, cancel := context.WithTimeout(s.background, s.settleTimeout)
		defer cancel()
		r.prepared = do(ctx)
		select {
		case prepared <- r:
		case <-s.background.Done():
		}
	})
}

// swap lets the prepared parts serve, for all requests that begin from now on. Annotations come
// first: a policy that reads them must not see ServiceAccounts that were listed without them. Only
// its denials apply at once. When swap returns, the reload has ended, or the missing annotations
// are being fetched.
func (s *Server) swap(r *reload, prepared chan<- *reload) (ended bool, err error) {
	now := s.current.Load()
	// A connection may have failed because it was replaced.
	if r.prepared != nil && now.objects == r.before {
		return true, r.prepared
	}
	next, err := r.change.parts(now.parts)
	if err != nil {
		return true, err
	}
	if next.policy != now.policy {
		next.pending = nil
	}
	if next.objects.KeepsAnnotations(next.annotationKeys()) {
		if err := s.assembleAndServe(next, now); err != nil {
			return true, err
		}
		s.logWarnings(now, s.current.Load())
		return true, nil
	}
	// The denials of another configuration's policy apply with that configuration.
	if denials := now.parts; next.cfg == now.cfg && next.policy != now.policy && next.policy != now.pending {
		denials.pending = next.policy
		if err := s.assembleAndServe(denials, now); err != nil {
			return true, err
		}
	}
	// Also those of the present policy: it continues to serve if one of several clusters cannot
	// return the others.
	keys := setup.AnnotationKeys(now.policy, now.trial, next.policy, next.trial)
	// And those that other reloads wait for, which would otherwise begin again.
	for other := range s.waits {
		keys = append(keys, other.keys...)
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	if r.keys = next.annotationKeys(); !s.waits[r] {
		s.waits[r], r.until = true, time.Now().Add(s.settleTimeout)
	}
	s.prepare(r, func(ctx context.Context) error { return r.wait(ctx, next.objects, keys) }, prepared)
	return false, nil
}

// wait sets the annotations. A newer policy must not wait for those of an older one.
func (r *reload) wait(ctx context.Context, objects *setup.Objects, keys []string) error {
	ctx, cancel := context.WithDeadline(ctx, r.until)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	ended := make(chan error, 1)
	go func() { ended <- objects.SetAnnotationKeys(ctx, keys) }()
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		select {
		case err := <-ended:
			stop(nil)
			return err
		case <-look.C:
			if r.isStale != nil && r.isStale() {
				stop(errStale)
				return errors.Join(errStale, <-ended)
			}
		}
	}
}

func (s *Server) assembleAndServe(next parts, now *generation) error {
	g, err := s.assemble(next, now)
	if err != nil {
		return err
	}
	s.serve(g)
	return nil
}

// logWarnings logs the warnings of a new configuration or policy.
func (s *Server) logWarnings(before, now *generation) {
	switch {
	case now.cfg != before.cfg:
		s.warn(slices.Concat(now.cfg.Warnings, setup.PolicyWarnings(now.cfg, now.policy)))
		if fields := s.restartNeeded(); len(fields) > 0 {
			s.logger.Warn("settings were changed that count only after a restart", "fields", fields)
		}
	case now.policy.Revision() != before.policy.Revision():
		s.warn(setup.PolicyWarnings(now.cfg, now.policy))
	}
	if now.tls != before.tls {
		s.warn(now.tls.warnings(now.cfg))
	}
}

// work starts the workers of these parts that are not running, and ends all others. It belongs to
// the goroutine that reconciles.
func (s *Server) work(all ...parts) {
	wanted := map[worker]bool{}
	for _, p := range all {
		for _, w := range p.workers() {
			wanted[w] = true
			if s.workers[w] != nil {
				continue
			}
			ctx, stop := context.WithCancel(s.background)
			s.workers[w] = stop
			s.running.Go(func() { w.Run(ctx) })
		}
	}
	for w, stop := range s.workers {
		if !wanted[w] {
			stop()
			delete(s.workers, w)
		}
	}
}

// restartNeeded names the settings that have changed since the start and take effect only after a
// restart.
func (s *Server) restartNeeded() []string {
	now := s.current.Load().cfg
	var fields []string
	for _, f := range []struct {
		name  string
		equal bool
	}{
		{"server.address", now.Server.Address == s.started.Server.Address},
		{"admin.address", now.Admin.Address == s.started.Admin.Address},
		{"admin.console", now.Admin.Console == s.started.Admin.Console && slices.Equal(now.Admin.ConsoleHosts, s.started.Admin.ConsoleHosts)},
		{"gateway.address", gatewayAddress(now) == gatewayAddress(s.started)},
		{"state.redis", reflect.DeepEqual(now.State.Redis, s.started.State.Redis)},
		{"audit.file", now.Audit.File == s.started.Audit.File},
	} {
		if !f.equal {
			fields = append(fields, f.name)
		}
	}
	return fields
}

// readings remembers the result of the last reading of each group of files.
type readings struct {
	mu     sync.Mutex
	faults map[string]string // by group; successful ones have no entry
}

func (r *readings) note(name string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.faults, name)
	if err != nil {
		r.faults[name] = err.Error()
	}
}

// checks says of each group whether its present files are in use. The previous contents still
// serve, so every fault is tolerated.
func (r *readings) checks(groups []filewatch.Group, restartNeeded []string, waits bool) []check {
	r.mu.Lock()
	defer r.mu.Unlock()
	var checks []check
	for _, g := range groups {
		fault := r.faults[g.Name]
		c := check{Name: g.Name, Healthy: fault == "", Tolerated: fault != ""}
		switch {
		case fault != "":
			c.Message = "the last good files stay in use: " + fault
		case g.Name == configGroup && len(restartNeeded) > 0:
			c.Message = fmt.Sprintf("some settings count only after a restart: %s", strings.Join(restartNeeded, ", "))
		case g.Name == policyGroup && waits:
			c.Message = "only its denials apply: its rules wait for a changed configuration, or for annotations"
		}
		checks = append(checks, c)
	}
	return checks
}
