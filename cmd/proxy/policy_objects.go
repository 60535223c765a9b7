package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/base/file"
	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/policy/policyobjects"
	"github.com/pullpass/pullpass/internal/policy/reach"
)

// objectSets are the objects of clusters, by their names.
type objectSets map[string]*policyobjects.Set

// readObjects reads files with objects, each given as CLUSTER=FILE.
func readObjects(ctx context.Context, cfg *config.Config, flag string, args []string) (objectSets, []error) {
	sets := objectSets{}
	var faults []error
	for _, arg := range args {
		cluster, name, ok := strings.Cut(arg, "=")
		if !ok {
			faults = append(faults, fmt.Errorf("%s %q is not CLUSTER=FILE", flag, arg))
			continue
		}
		if err := config.KnownCluster(cfg, flag, cluster); err != nil {
			faults = append(faults, err)
			continue
		}
		if sets[cluster] == nil {
			sets[cluster] = &policyobjects.Set{}
		}
		data, err := file.ReadArgument(ctx, name, policyobjects.MaxBytes)
		if err == nil {
			err = sets[cluster].Add(name, data)
		}
		if err != nil {
			faults = append(faults, err)
		}
	}
	return sets, faults
}

// addTo gives the subject of a test the objects of its cluster.
func (all objectSets) addTo(subject *policy.Subject, cfg *config.Config) {
	id := subject.Identity
	if id == nil {
		return
	}
	cluster := cfg.Cluster(id.Cluster)
	if cluster == nil || !cluster.Kubernetes.Objects.Count() {
		return
	}
	o, set := cluster.Kubernetes.Objects, all[id.Cluster]
	if set == nil {
		set = &policyobjects.Set{}
	}
	subject.Objects = set.Of(policyobjects.Counts{Policies: o.Policies, Requests: o.Requests, Within: withinOf(o)}, id.Kubernetes.Namespace, id.Kubernetes.ServiceAccount.Name)
}

// withinOf returns patterns that were parsed with the configuration.
func withinOf(o config.Objects) []pattern.Pattern {
	within := make([]pattern.Pattern, len(o.Within))
	for i, text := range o.Within {
		within[i] = pattern.Pattern(text)
	}
	return within
}

// warnings are about deprecated versions, and entries of the objects that have no effect. A policy with faults
// gives no warnings.
func (all objectSets) warnings(cfg *config.Config) (warnings []string) {
	files, err := setup.LoadPolicy(cfg)
	if err != nil {
		return nil
	}
	for _, cluster := range cfg.Clusters {
		set, o := all[cluster.Name], cluster.Kubernetes.Objects
		if set == nil {
			continue
		}
		warnings = append(warnings, set.Deprecated()...)
		said := reach.Objects{Policies: policy.NewPolicies(withinOf(o)), HasRequests: o.Requests}
		switch policies := set.Policies(); {
		case o.Policies:
			said.Policies = policy.NewPolicies(withinOf(o), policies...)
		case len(policies) > 0:
			warnings = append(warnings, fmt.Sprintf("cluster %s: AccessPolicy objects have no effect; set clusters[].kubernetes.objects.policies", cluster.Name))
		}
		if said.Requests = set.Requests(); len(said.Requests) > 0 && !o.Requests {
			warnings = append(warnings, fmt.Sprintf("cluster %s: RepositoryAccess objects have no effect; set clusters[].kubernetes.objects.requests", cluster.Name))
		}
		warnings = append(warnings, reach.Idle(files, cluster.Name, said)...)
	}
	return warnings
}

func policyExportCommand() *cobra.Command {
	var object, cluster string
	command := &cobra.Command{
		Use:   "export (--to-object NAME | --to-file CLUSTER) FILE...",
		Short: "Convert a policy file to an AccessPolicy object, or objects to a file",
		Long: `Convert a policy file to an AccessPolicy object, or the AccessPolicy objects of a
cluster to a policy file with the same rules for that cluster. Objects cannot contain
identities, anonymous, annotations or the catalog: a file with one of them is a fault.
So is a denial of tokenIDs alone, which in a file is for CI jobs as well.

Warning: clusters[].kubernetes.objects.within limits objects only. The file that you
get is not limited.`,
		Example: `  pullpass policy export --to-object teams policy.yaml | kubectl apply -f -
  kubectl get accesspolicies -o yaml >objects.yaml && pullpass policy export --to-file prod-eu objects.yaml`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			if (object == "") == (cluster == "") {
				return errors.New("write --to-object NAME or --to-file CLUSTER")
			}
			out, err := export(cmd.Context(), object, cluster, files)
			if err != nil {
				return reportFaults(cmd.ErrOrStderr(), err)
			}
			_, err = cmd.OutOrStdout().Write(out)
			return err
		},
	}
	command.Flags().StringVar(&object, "to-object", "", "name of the AccessPolicy to make from the one file")
	command.Flags().StringVar(&cluster, "to-file", "", "cluster (clusters[].name) of the AccessPolicy objects in the files")
	return command
}

func export(ctx context.Context, object, cluster string, files []string) ([]byte, error) {
	if object != "" {
		if len(files) > 1 {
			return nil, errors.New("--to-object: one file makes one object; export each file by itself")
		}
		data, err := file.ReadArgument(ctx, files[0], policy.MaxBytes)
		if err != nil {
			return nil, err
		}
		return policyobjects.ToObject(object, policy.File{Name: files[0], Data: data})
	}
	if !names.IsLabel(cluster) {
		return nil, fmt.Errorf("--to-file %q is not the name of a cluster (clusters[].name)", cluster)
	}
	var set policyobjects.Set
	for _, name := range files {
		data, err := file.ReadArgument(ctx, name, policyobjects.MaxBytes)
		if err != nil {
			return nil, err
		}
		if err := set.Add(name, data); err != nil {
			return nil, err
		}
	}
	return set.ToFile(cluster)
}
