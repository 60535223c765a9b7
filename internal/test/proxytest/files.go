package proxytest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func PolicyFor(repositories string) string {
	return `apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own-namespace
  subjects: [{namespaces: ["team-*"]}]
  allow: [{repositories: ["` + repositories + `"], actions: [pull]}]
`
}

const AnnotationRule = `- name: asked-for
  subjects: [{namespaces: ["team-*"]}]
  annotation: pullpass.dev/repositories
  allow: [{repositories: ["team-a/**"], actions: [pull]}]
`

const SecondCluster = `- name: second
  issuer: https://second.example.com
  audiences: [registry.example.com]
  discovery: {jwksFile: issuer.json}
`

// PolicyInUse is the last line of the configuration of tests.
const PolicyInUse = "policyFiles: [policy.yaml]"

// WithRedis are the fields of a configuration that shares its state.
func WithRedis(address, replay string) string {
	return fmt.Sprintf("state: {redis: {addresses: [%q]}, replay: %s}\nlimits: {perServiceAccount: {rate: 0.01, burst: 3}, perAddress: {rate: 0.01, burst: 2}}\n", address, replay)
}

// Connected returns a directory with a configuration; cluster are fields of
// its cluster, kubernetes those of its connection.
func Connected(t *testing.T, api interface{ Kubeconfig() string }, cluster string, kubernetes ...string) string {
	t.Helper()
	dir := t.TempDir()
	testkit.Write(t, dir, "kubeconfig", api.Kubeconfig())
	testkit.Write(t, dir, "policy.yaml", PolicyFor("elsewhere/**")+AnnotationRule)
	testkit.Write(t, dir, "issuer.json", kubetest.IssuerJWKS(t))
	testkit.Write(t, dir, "pullpass.yaml", `
apiVersion: pullpass.dev/v1beta1
kind: ProxyConfiguration
server: {trustedProxies: [10.0.0.0/8]}
clusters:
- name: prod
  issuer: https://issuer.example.com
  audiences: [registry.example.com]
  discovery: {jwksFile: issuer.json}
  kubernetes: {`+strings.Join(append(kubernetes, "kubeconfigFile: kubeconfig"), ", ")+`}
`+cluster+`
registries: [{service: registry.example.com, issuer: pullpass.example.com}]
policyFiles: [policy.yaml]
`)
	return dir
}

// Identities are a part of a configuration: callers that are not pods.
const Identities = `
identities:
- {name: github, issuer: "https://token.actions.githubusercontent.com", profile: github, audiences: [registry.example.com], require: {repository_owner_id: ["7"]}, discovery: {jwksFile: issuer.json}}
- {name: mesh, issuer: "https://mesh.example.com", profile: spiffe, audiences: [registry.example.com], maxTokenLifetime: 36h, discovery: {jwksFile: issuer.json}}
- {name: ci, issuer: "https://ci.example.com", profile: generic, audiences: [registry.example.com], require: {tenant: [ours]}, discovery: {jwksFile: issuer.json}}
`

// JobClaims are those of a job of repository 42, in one of its runs.
func JobClaims(run string) kubetest.Object {
	now := time.Now()
	return kubetest.Object{
		"iss": "https://token.actions.githubusercontent.com", "aud": "registry.example.com", "sub": "repo:octo-org/web:ref:refs/heads/main", "jti": "job-of-" + run,
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(5 * time.Minute).Unix(),
		"repository_id": "42", "repository_owner_id": "7", "repository": "octo-org/web", "ref": "refs/heads/main", "event_name": "push", "run_id": run,
	}
}
