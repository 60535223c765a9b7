package server

import (
	"maps"
	"net/http"
	"slices"

	"github.com/pullpass/pullpass/internal/server/console"
	"github.com/pullpass/pullpass/internal/server/explain"
	"github.com/pullpass/pullpass/internal/state"
)

// newDecisions returns the log of the console, or nil if the console is off.
func (s *Server) newDecisions() *console.Log {
	if !s.started.Admin.Console {
		return nil
	}
	config := console.LogConfig{Logger: s.logger}
	if s.shared.Redis != nil {
		config.Shared, config.MaxEntryBytes = s.shared.Redis, state.MaxDecisionBytes
	}
	return console.NewLog(config)
}

// page returns nil if the console is off.
func (s *Server) page() (http.Handler, error) {
	if s.decisions == nil {
		return nil, nil
	}
	return console.New(console.Config{Log: s.decisions, Known: s.known, Health: s.health, Hosts: s.started.Admin.ConsoleHosts, Logger: s.logger})
}

// known returns the present state.
func (s *Server) known() explain.Known {
	g := s.current.Load()
	return explain.Known{Config: g.cfg, Policy: g.exchanger.Policy(), Objects: g.objects}
}

// health returns the checks of readyz in a fixed order.
func (s *Server) health() []console.Group {
	var groups []console.Group
	all := s.checks()
	for _, kind := range slices.Sorted(maps.Keys(all)) {
		group := console.Group{Kind: kind}
		for _, c := range all[kind] {
			group.Checks = append(group.Checks, console.Check{Name: c.Name, Message: c.Message, Healthy: c.Healthy})
		}
		groups = append(groups, group)
	}
	return groups
}

// recorders returns the recorders for events of requests that parts decide.
func (s *Server) recorders(p parts) recorders {
	all := recorders{s.audit, s.metrics, p.objects}
	if s.decisions != nil {
		all = append(all, s.decisions)
	}
	return all
}
