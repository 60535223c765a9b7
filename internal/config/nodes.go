package config

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/policy/pattern"
)

// Connected reports whether Pullpass connects to the cluster's API server.
func (k Kubernetes) Connected() bool { return k.InCluster || k.KubeconfigFile != "" }

const (
	commonCAField  = "server.tls.clientCAFile"
	ClusterCAField = "clusters[%d].node.proof.clientCAFile"
)

// ClientCAs is a file with CAs of the kubelets' client certificates.
type ClientCAs struct{ Field, Name string }

// Resolve sets the fields that are derived from the settings. Parse calls it. A Config that is made
// or changed otherwise needs it.
func (c *Config) Resolve() {
	c.ClientCAs = nil
	common := ClientCAs{commonCAField, c.Server.TLS.ClientCAFile}
	if common.Name != "" {
		c.ClientCAs = append(c.ClientCAs, common)
	}
	for i := range c.Clusters {
		p := &c.Clusters[i].Node.Proof
		cas := common
		if p.ClientCAFile != "" {
			cas = ClientCAs{fmt.Sprintf(ClusterCAField, i), p.ClientCAFile}
			c.ClientCAs = append(c.ClientCAs, cas)
		}
		p.Effective, p.CAs = nil, ClientCAs{}
		if p.Mode == nodeproof.Off {
			continue
		}
		for _, method := range p.Methods {
			if c.proofLacks(&c.Clusters[i], method) == "" {
				p.Effective = append(p.Effective, method)
			}
		}
		if p.By(nodeproof.Certificate) {
			p.CAs = cas
		}
	}
}

// By reports whether the method proves callers.
func (p *Proof) By(method nodeproof.Method) bool { return slices.Contains(p.Effective, method) }

// proofLacks describes the missing settings of a method, or returns an empty text.
func (c *Config) proofLacks(cluster *Cluster, method nodeproof.Method) string {
	switch {
	case method == nodeproof.Certificate && cluster.Node.Proof.ClientCAFile == "" && c.Server.TLS.ClientCAFile == "":
		return "certificate needs the CA of the kubelets' client certificates (node.proof.clientCAFile or server.tls.clientCAFile)"
	case method == nodeproof.Address && !cluster.Kubernetes.Connected():
		return "address needs the API server (kubernetes.inCluster or kubernetes.kubeconfigFile)"
	}
	return ""
}

const needsConnection = "needs the API server (%s); set kubernetes.inCluster or kubernetes.kubeconfigFile, or %s"

func (v *validator) node(path string, config *Config, c *Cluster) {
	n := &c.Node
	if n.Fallback == NodeFallbackAPI && !c.Kubernetes.Connected() {
		v.Fault(path+".fallback", needsConnection, n.Fallback, "write "+string(NodeFallbackNone))
	}
	if n.Selector != "" {
		// The parser's own error repeats the text unchanged.
		if selector, err := labels.Parse(n.Selector); err != nil || selector.Empty() {
			v.Fault(path+".selector", `is not a label selector (%s); write it as for kubectl get nodes --selector: "pool=build,!gpu"`, term.QuoteValue(n.Selector))
		} else if !c.Kubernetes.Connected() {
			v.Fault(path+".selector", needsConnection, term.QuoteValue(n.Selector), "remove it")
		}
	}
	v.proof(path+".proof", config, c)
}

func (v *validator) proof(path string, config *Config, c *Cluster) {
	p := &c.Node.Proof
	if len(p.Methods) == 0 {
		v.Fault(path+".methods", "is empty; name %s, %s or both", nodeproof.Certificate, nodeproof.Address)
	}
	v.Unique(len(p.Methods), path+".methods[%d]", func(i int) string { return string(p.Methods[i]) })
	if p.ClientCAFile != "" && !slices.Contains(p.Methods, nodeproof.Certificate) {
		v.Fault(path+".clientCAFile", "has no use without the method %s (%s); add it to methods, or remove the file", nodeproof.Certificate, term.QuoteValue(p.ClientCAFile))
	}
	if (p.Mode == nodeproof.Audit || p.Mode == nodeproof.Enforce) && len(p.Methods) > 0 && len(p.Effective) == 0 {
		var lacks []string
		for _, method := range p.Methods {
			lacks = append(lacks, config.proofLacks(c, method))
		}
		v.Fault(path+".mode", "cannot be done (%s): %s; set what is missing, or write %s", p.Mode, strings.Join(lacks, ", and "), nodeproof.Off)
	}
}

func (v *validator) kubernetes(path string, k *Kubernetes) {
	if k.InCluster && k.KubeconfigFile != "" {
		v.Fault(path+".kubeconfigFile", "cannot be set together with inCluster (%s); remove one of them", term.QuoteValue(k.KubeconfigFile))
	}
	files := k.ManifestFiles
	if k.Connected() && len(files) > 0 {
		v.Fault(path+".manifestFiles", "cannot be set together with inCluster or kubeconfigFile (%s); remove them: the API server knows better", term.QuoteValue(files[0]))
	}
	v.Unique(len(files), path+".manifestFiles[%d]", func(i int) string { return files[i] })
	v.objects(path+".objects", k)
}

func (v *validator) objects(path string, k *Kubernetes) {
	o := &k.Objects
	switch {
	case o.Count() && !k.Connected():
		field := ".requests"
		if o.Policies {
			field = ".policies"
		}
		v.Fault(path+field, "needs the cluster's API server (true): set inCluster or kubeconfigFile, or write false")
	case o.Count() && len(o.Within) == 0:
		v.Fault(path+".within", "is empty ([]): say how far objects may go, [\"{namespace}/**\"] for example; without it they give nothing")
	case !o.Count() && len(o.Within) > 0:
		v.Fault(path+".within", "means nothing (%s): no objects count; set policies or requests, or remove it", term.QuoteValue(o.Within[0]))
	case !o.Count() && o.Status:
		v.Fault(path+".status", "means nothing (true): no objects count; set policies or requests, or write false")
	}
	for i, text := range o.Within {
		p, err := pattern.Parse(text)
		if err == nil && len(p.Claims()) > 0 {
			err = fmt.Errorf("%s: ServiceAccounts have no claims; use {namespace}, {serviceAccount} or {cluster}", term.QuoteName(text))
		}
		if err != nil {
			v.Fault(fmt.Sprintf("%s.within[%d]", path, i), "is not a pattern: %v", err)
		}
	}
	v.Unique(len(o.Within), path+".within[%d]", func(i int) string { return o.Within[i] })
}

// apart reports clusters that could be confused with each other.
func (v *validator) apart(c *Config) {
	home, withCA := "", map[string]int{}
	for i := range c.Clusters {
		path := fmt.Sprintf("clusters[%d]", i)
		if c.Clusters[i].Kubernetes.InCluster {
			if home != "" {
				v.Fault(path+".kubernetes.inCluster", "is set for %s too (true); a pod runs in one cluster, so name the kubeconfigFile of the other", home)
			} else {
				home = path
			}
		}
		cas := c.Clusters[i].Node.Proof.CAs
		if cas.Name == "" {
			continue
		}
		name := v.place(cas.Name)
		if other, twice := withCA[name]; twice {
			v.Fault(fmt.Sprintf(ClusterCAField, i), "is the file of clusters[%d] too (%s: %s); %s", other, cas.Field, term.QuoteValue(cas.Name), OwnCAs)
			continue
		}
		withCA[name] = i
	}
}

// OwnCAs is the remedy for a CA that two clusters share.
const OwnCAs = "a node of either could pass for the one of that name in the other, so name a file with the CAs of this cluster alone"

func (c *Config) proofWarnings(warn func(path, text string)) {
	used := c.Server.TLS.ClientCAFile == ""
	for i := range c.Clusters {
		cluster := &c.Clusters[i]
		used = used || cluster.Node.Proof.CAs.Field == commonCAField
		if len(cluster.Node.Proof.Effective) == 0 {
			continue
		}
		for j, method := range cluster.Node.Proof.Methods {
			if lacks := c.proofLacks(cluster, method); lacks != "" {
				warn(fmt.Sprintf("clusters[%d].node.proof.methods[%d]", i, j), "proves no node: "+lacks+"; set it, or remove the method")
			}
		}
	}
	if !used {
		warn(commonCAField, fmt.Sprintf("refuses no client (%s): no cluster asks for certificates of these CAs; see node.proof", term.QuoteValue(c.Server.TLS.ClientCAFile)))
	}
}
