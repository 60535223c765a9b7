package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/base/file"
	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/diff"
	"github.com/pullpass/pullpass/internal/policy/policyobjects"
	"github.com/pullpass/pullpass/internal/server/explain"
)

// policyDiff has the flags of the command.
type policyDiff struct {
	config, against, output, failOn string
	objects, againstObjects         []string
}

func policyDiffCommand() *cobra.Command {
	var d policyDiff
	command := &cobra.Command{
		Use:   "diff",
		Short: "List the access that a change of the policy adds and removes",
		Long: `Compare two policies as a whole, and list the callers, services, repositories and
actions that change, each with a request that the two decide differently: pullpass
explain shows why. Nothing else changes. The command uses no network.

Each file is a configuration, or a policy file or objects of kind AccessPolicy. A
policy file takes the rest from the configuration on the other side. Objects take the
place of those of --objects. With --objects, both sides have these policy objects of a
cluster, or the side of --against has those of --against-objects; without it, any can
be there.

Exit code 0 if the files can be compared, 1 if --fail-on names what was found, and 2
if a file has a fault.`,
		Example: `  pullpass policy diff --config new/pullpass.yaml --against old/pullpass.yaml
  pullpass policy diff --config policy.yaml --against pullpass.yaml --fail-on gained
  pullpass policy diff --config new/pullpass.yaml --against old/pullpass.yaml --objects prod-eu=objects.yaml -o markdown
  pullpass policy diff --config pullpass.yaml --against pullpass.yaml --objects prod-eu=new/objects.yaml --against-objects prod-eu=old/objects.yaml`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "pullpass: %s is not a flag; name the files with --config and --against\n", term.QuoteValue(args[0]))
			return errFaults
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, err := d.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			switch {
			case err != nil:
				_ = reportFaults(cmd.ErrOrStderr(), err)
				return errFaults
			case d.fails(found):
				return errReported
			}
			return nil
		},
	}
	command.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		fmt.Fprintf(cmd.ErrOrStderr(), "pullpass: %v\n", err)
		return errFaults
	})
	flags := command.Flags()
	flags.StringVar(&d.config, "config", "", "configuration or AccessPolicy with the change (required)")
	flags.StringVar(&d.against, "against", "", "configuration or AccessPolicy before the change (required)")
	flags.StringArrayVar(&d.objects, "objects", nil, "CLUSTER=FILE: policy objects of a cluster, repeatable")
	flags.StringArrayVar(&d.againstObjects, "against-objects", nil, "CLUSTER=FILE: policy objects of a cluster before the change, if --objects has others; repeatable")
	flags.StringVar(&d.failOn, "fail-on", "", "exit with code 1 if anything is gained, lost, or any of both")
	outputFlag(command, &d.output, "text", "text, markdown, or json: docs/policy-diff.schema.json describes the fields")
	return command
}

func (d *policyDiff) run(ctx context.Context, stdout, stderr io.Writer) (*diff.Difference, error) {
	write, ok := map[string]func(io.Writer, *diff.Difference) error{
		"text": diff.WriteText, "markdown": diff.WriteMarkdown, "json": func(w io.Writer, found *diff.Difference) error { return explain.WriteJSON(w, found) },
	}[d.output]
	switch {
	case !ok:
		return nil, fmt.Errorf("--output %s is not known: use text, markdown or json", term.QuoteValue(d.output))
	case !slices.Contains([]string{"", "gained", "lost", "any"}, d.failOn):
		return nil, fmt.Errorf("--fail-on %s is not known: use gained, lost or any", term.QuoteValue(d.failOn))
	case d.config == "":
		return nil, errors.New("--config is missing: name the configuration or AccessPolicy with the change")
	case d.against == "":
		return nil, errors.New("--against is missing: name the configuration or AccessPolicy before the change")
	}
	before, after, err := d.sides(ctx, stderr)
	if err != nil {
		return nil, err
	}
	found, err := diff.Find(ctx, before, after)
	if err != nil {
		return nil, err
	}
	return found, write(stdout, found)
}

func (d *policyDiff) fails(found *diff.Difference) bool {
	return len(found.Gained) > 0 && (d.failOn == "gained" || d.failOn == "any") || len(found.Lost) > 0 && (d.failOn == "lost" || d.failOn == "any")
}

// comparedFile is one of the two files: a configuration, a policy file or objects.
type comparedFile struct {
	config  *config.Config
	written *config.Config // with the names of files as they are in the file
	policy  *policy.File
	objects *policyobjects.Set
}

func readCompared(ctx context.Context, flag, name string) (f comparedFile, err error) {
	data, err := file.ReadArgument(ctx, name, policyobjects.MaxBytes)
	if err != nil {
		return f, fmt.Errorf("%s: %w", flag, err)
	}
	documents, err := strictyaml.ParseAll(data, policyobjects.MaxBytes)
	if err != nil {
		return f, fmt.Errorf("%s: is not valid YAML: %w", name, err)
	}
	if len(documents) == 1 {
		kind := strictyaml.Field(documents[0], "kind")
		switch {
		case kind != nil && kind.Value == config.Kind:
			if f.config, err = config.Parse(data, name, filepath.Dir(name)); err == nil {
				f.written, err = config.Parse(data, name, "")
			}
			return f, err
		case kind != nil && kind.Value == policy.Kind && strictyaml.Field(documents[0], "metadata") == nil && strictyaml.Field(documents[0], "spec") == nil:
			f.policy = &policy.File{Name: name, Data: data}
			return f, nil
		case kind == nil || kind.Value != policy.Kind && strictyaml.Field(documents[0], "items") == nil:
			return f, fmt.Errorf("%s: kind: is neither %s nor %s: name a configuration, a policy file or AccessPolicy objects", name, config.Kind, policy.Kind)
		}
	}
	f.objects = &policyobjects.Set{}
	return f, f.objects.Add(name, data)
}

// sides reads the files.
func (d *policyDiff) sides(ctx context.Context, stderr io.Writer) (before, after *diff.Side, err error) {
	newer, faultOfNewer := readCompared(ctx, "--config", d.config)
	older, faultOfOlder := readCompared(ctx, "--against", d.against)
	if err := errors.Join(faultOfNewer, faultOfOlder); err != nil {
		return nil, nil, err
	}
	known := &config.Config{}
	for _, f := range []comparedFile{newer, older} {
		if f.config != nil {
			known.Clusters = append(known.Clusters, f.config.Clusters...)
		}
	}
	if len(d.objects)+len(d.againstObjects) > 0 && len(known.Clusters) == 0 {
		return nil, nil, errors.New("--objects and --against-objects need a configuration, which says what objects of a cluster may grant: name it with --config or --against")
	}
	sets, faults := readObjects(ctx, known, "--objects", d.objects)
	setsBefore, more := readObjects(ctx, known, "--against-objects", d.againstObjects)
	faults = append(faults, more...)
	for cluster, set := range sets {
		if setsBefore[cluster] == nil {
			setsBefore[cluster] = set
		}
	}
	for _, cluster := range slices.Sorted(maps.Keys(setsBefore)) {
		if sets[cluster] == nil {
			faults = append(faults, fmt.Errorf("--against-objects: cluster %s has no objects of the other side: name them with --objects %s=FILE", term.QuoteName(cluster), cluster))
		}
	}
	if len(faults) > 0 {
		return nil, nil, errors.Join(faults...)
	}
	after, faultOfNewer = newer.side(&older, sets, stderr)
	before, faultOfOlder = older.side(&newer, setsBefore, stderr)
	return before, after, errors.Join(faultOfNewer, faultOfOlder)
}

// side returns what the file stands for, if need be with the configuration of the other file.
func (f *comparedFile) side(other *comparedFile, sets objectSets, stderr io.Writer) (*diff.Side, error) {
	cfg, written := f.config, f.written
	if cfg == nil {
		cfg, written = other.config, other.written
	}
	if f.objects != nil {
		replaced := objectSets{}
		if cfg != nil {
			for _, c := range cfg.Clusters {
				if c.Kubernetes.Objects.Count() && (len(sets) == 0 || sets[c.Name] != nil) {
					replaced[c.Name] = f.objects
				}
			}
			if len(replaced) == 0 {
				return nil, fmt.Errorf("%s: no objects count in any cluster: set clusters[].kubernetes.objects, or compare two files with objects", cfg.File)
			}
		}
		sets = replaced
	}
	side := &diff.Side{Policy: &policy.Policy{}, IsOpen: cfg == nil}
	var err error
	switch {
	case f.policy != nil && cfg == nil:
		side.Policy, err = policy.Parse(*f.policy)
	case f.policy != nil:
		side.Policy, err = setup.ParsePolicy(cfg, *f.policy)
	case cfg != nil:
		side.Policy, err = setup.LoadPolicy(cfg)
	}
	if err != nil {
		return nil, err
	}
	writeWarnings(stderr, side.Policy.Deprecated())
	if cfg == nil {
		if f.objects != nil {
			side.Objects = objectsOf(f.objects, config.Objects{Policies: true, Requests: true, Within: []string{"**"}})
		}
		return side, nil
	}
	side.Callers = tokenFields(&struct {
		Server any `json:"server"`
		State  any `json:"state"`
	}{map[string]any{"trustedProxies": written.Server.TrustedProxies, "tls": map[string]string{"clientCAFile": written.Server.TLS.ClientCAFile}}, written.State})
	for i, c := range cfg.Clusters {
		known := diff.Cluster{Name: c.Name, Issuer: c.Issuer, KnowsLabels: c.Kubernetes.Connected(), KnowsAnnotations: c.Kubernetes.Connected() || len(c.Kubernetes.ManifestFiles) > 0, Tokens: tokenFields(&written.Clusters[i])}
		if c.Kubernetes.Objects.Count() {
			known.Objects = objectsOf(sets[c.Name], c.Kubernetes.Objects)
		}
		side.Clusters = append(side.Clusters, known)
	}
	for _, r := range cfg.Registries {
		service := diff.Service{Name: r.Service, Scopes: setup.Scopes(cfg)[r.Service]}
		if cfg.IsGateway(r.Service) {
			service.Upstreams = upstreamsOf(cfg)
		}
		side.Services = append(side.Services, service)
	}
	issuers := setup.IdentityIssuers(cfg)
	for i, p := range cfg.Identities {
		side.Identities = append(side.Identities, diff.Identity{Name: p.Name, Issuer: p.Issuer, Profile: p.Profile, Require: p.Require, Tokens: tokenFields(&written.Identities[i]), Identify: issuers[p.Name].IdentifyClaims})
	}
	return side, nil
}

// tokenFields returns the fields of a part of a configuration by their paths, without those that are compared as access, and those
// that decide nothing.
func tokenFields(part any) diff.Fields {
	data, err := json.Marshal(part)
	if err != nil {
		panic(err) // was read from a file
	}
	fields := diff.Fields{}
	var add func(path string, value any)
	add = func(path string, value any) {
		switch value := value.(type) {
		case map[string]any:
			for name, field := range value {
				add(strings.TrimPrefix(path+"."+name, "."), field)
			}
		case []any: // sets
			texts := make([]string, len(value))
			for i, element := range value {
				texts[i] = fmt.Sprint(element)
			}
			slices.Sort(texts)
			fields[path] = fmt.Sprintf("%q", slices.Compact(texts))
		default:
			fields[path] = fmt.Sprint(value)
		}
	}
	var all map[string]any
	if err := json.Unmarshal(data, &all); err != nil {
		panic(err)
	}
	add("", all)
	maps.DeleteFunc(fields, func(path, _ string) bool {
		return strings.HasPrefix(path, "kubernetes.objects.") || strings.HasPrefix(path, "require.") || path == "profile" || path == "kubernetes.podEvents"
	})
	return fields
}

// upstreamsOf returns what the gateway lets clients do at each upstream.
func upstreamsOf(cfg *config.Config) map[string]action.Set {
	all := map[string]action.Set{}
	for _, u := range cfg.Upstreams {
		for _, a := range u.Actions {
			all[u.Name] |= action.Named(string(a))
		}
	}
	return all
}

// objectsOf returns objects as far as they count. Without a set, they are not known.
func objectsOf(set *policyobjects.Set, o config.Objects) *diff.Objects {
	within := withinOf(o)
	objects := &diff.Objects{Policies: policy.NewPolicies(within), PoliciesAreRead: o.Policies, RequestsAreRead: o.Requests, AreKnown: set != nil}
	if set == nil {
		return objects
	}
	if o.Policies {
		objects.Policies = policy.NewPolicies(within, set.Policies()...)
	}
	if o.Requests {
		objects.Requests = set.Requests()
	}
	return objects
}
