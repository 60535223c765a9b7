package main

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/pullpass/pullpass/internal/filewatch"
)

// The groups of files that are re-read, by their names in the log, in metrics
// and in /readyz.
const (
	configGroup      = "config"
	policyGroup      = "policy"
	manifestsGroup   = "manifests"
	tlsGroup         = "tls"
	kubeconfigGroup  = "kubeconfig/"   // and the cluster
	signingKeysGroup = "signing-keys/" // and the service
)

// watched names the files of a generation that are re-read when they change.
func (s *service) watched(g *generation) []filewatch.Group {
	groups := []filewatch.Group{
		{Name: configGroup, Paths: []string{g.cfg.name}, Reload: s.reloadConfig},
		{Name: policyGroup, Paths: g.cfg.PolicyFiles, Reload: s.reloadPolicy},
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
		groups = append(groups, filewatch.Group{Name: manifestsGroup, Paths: manifests, Part: g.objects.manifests, Reload: g.objects.manifests.Reload})
	}
	for _, r := range g.cfg.Registries {
		keys := g.keys[r.Service]
		groups = append(groups, filewatch.Group{Name: signingKeysGroup + r.Service, Paths: r.Signing.paths(), Part: keys, Reload: keys.reload})
	}
	if g.tls != nil {
		groups = append(groups, filewatch.Group{Name: tlsGroup, Paths: g.tls.paths(), Part: g.tls, Reload: g.tls.Reload})
	}
	return groups
}

// reloadConfig puts the configuration in the file in the place of the one in
// use. When it fails, everything is as it was.
func (s *service) reloadConfig() error {
	s.opening.Lock()
	defer s.opening.Unlock()
	before := s.current.Load()
	cfg, err := LoadConfig(before.cfg.name)
	if err != nil {
		return err
	}
	if err := cfg.CheckListeners(s.insecureHTTP); err != nil {
		return err
	}
	if reflect.DeepEqual(cfg, before.cfg) {
		return nil
	}
	next, err := open(cfg, s.insecureHTTP, s.logger, before.parts)
	if err != nil {
		return err
	}
	if err := s.adopt(before, next); err != nil {
		return err
	}
	s.warn(slices.Concat(cfg.Warnings, policyWarnings(cfg, next.policy)))
	if fields := s.restartNeeded(); len(fields) > 0 {
		s.logger.Warn("settings were changed that count only after a restart", "fields", fields)
	}
	return nil
}

// reloadKubeconfig connects to the API server of a cluster anew if its
// kubeconfig is another one than the connection was made with. Until the new
// connection knows everything, the one before serves.
func (s *service) reloadKubeconfig(cluster string) error {
	s.opening.Lock()
	defer s.opening.Unlock()
	before := s.current.Load()
	connected, ok := before.objects.connection(cluster)
	if !ok || connected.content == filewatch.Digest([]string{connected.settings.kubeconfig}) {
		return nil
	}
	rest := before.parts
	rest.objects = before.objects.without(cluster)
	next, err := open(before.cfg, s.insecureHTTP, s.logger, rest)
	if err != nil {
		return err
	}
	return s.adopt(before, next)
}

// adopt lets the next parts serve when they are ready to. It is called with the
// lock of opening. A policy that was reloaded meanwhile is not undone.
func (s *service) adopt(before *generation, next parts) error {
	s.work(before.parts, next)
	defer func() { s.work(s.current.Load().parts) }() // and what is not needed any more ends
	ctx, cancel := context.WithTimeout(s.background, s.settleTimeout)
	defer cancel()
	if err := next.settle(ctx, before.parts); err != nil {
		return err
	}
	return s.replace(func(now parts) parts {
		if next.policy == before.policy {
			next.policy, next.awaited = now.policy, now.awaited
		}
		return next
	})
}

// reloadPolicy leaves the rules as they are when it fails; the watch tries it
// again.
func (s *service) reloadPolicy() error {
	before := s.current.Load()
	next, err := loadPolicy(before.cfg)
	if err != nil {
		return err
	}
	err = s.replace(func(now parts) parts {
		if slices.Equal(now.cfg.PolicyFiles, before.cfg.PolicyFiles) { // else a new configuration has read others
			now.policy = next
		}
		return now
	})
	if err == nil && next.Revision() != before.policy.Revision() {
		s.warn(policyWarnings(before.cfg, next))
	}
	return err
}

// replace lets what change makes of the present parts serve, for all requests
// that begin from now on. Annotations come first: a policy that reads them must
// not meet ServiceAccounts that were listed without them. Only its denials do not
// wait.
func (s *service) replace(change func(now parts) parts) error {
	for {
		before := s.current.Load().objects
		lacking, keys, err := s.tryReplace(change)
		if err != nil || lacking == nil {
			return err
		}
		err = lacking.setAnnotationKeys(s.background, keys)
		if err != nil && s.current.Load().objects == before {
			return err
		} // else a connection may have ended because another one took its place
	}
}

// tryReplace returns the objects that lack annotations, if there are such, and
// the keys that they should have: also those of the policy in use, for it goes on
// if one cluster of several cannot give the others.
func (s *service) tryReplace(change func(now parts) parts) (lacking *objects, keys []string, err error) {
	s.replacing.Lock()
	defer s.replacing.Unlock()
	before := s.current.Load()
	next := change(before.parts)
	if next.policy != before.policy {
		next.awaited = nil
	}
	if !next.objects.keepsAnnotations(next.policy.AnnotationKeys()) {
		keys = slices.Concat(before.policy.AnnotationKeys(), next.policy.AnnotationKeys())
		slices.Sort(keys)
		lacking, keys = next.objects, slices.Compact(keys)
		wanted := next
		next = before.parts
		// That of another configuration comes with it, or not at all.
		if wanted.cfg == next.cfg && wanted.policy != next.policy {
			next.awaited = wanted.policy
		}
	}
	g, err := s.assemble(next, before)
	if err != nil {
		return nil, nil, err
	}
	s.serve(g)
	return lacking, keys, nil
}

// work starts the workers of these parts that do not work yet, and ends all
// others. It is called with the lock of opening.
func (s *service) work(all ...parts) {
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

// restartNeeded names the settings that are others in the configuration now than
// at the start, and count only after a restart.
func (s *service) restartNeeded() []string {
	now := s.current.Load().cfg
	var fields []string
	for _, f := range []struct {
		name  string
		equal bool
	}{
		{"server.address", now.Server.Address == s.started.Server.Address},
		{"admin.address", now.Admin.Address == s.started.Admin.Address},
		{"state.redis", reflect.DeepEqual(now.State.Redis, s.started.State.Redis)},
		{"audit.file", now.Audit.File == s.started.Audit.File},
	} {
		if !f.equal {
			fields = append(fields, f.name)
		}
	}
	return fields
}

// readings remembers how the last reading of each group of files went.
type readings struct {
	mu     sync.Mutex
	faults map[string]string // by group; none: it went well
}

func (r *readings) note(name string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.faults, name)
	if err != nil {
		r.faults[name] = err.Error()
	}
}

// checks says of each group whether its files are in use as they are now. What
// was read before serves, so every fault is tolerated.
func (r *readings) checks(groups []filewatch.Group, restartNeeded []string) []check {
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
		}
		checks = append(checks, c)
	}
	return checks
}
