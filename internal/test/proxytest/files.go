package proxytest

import (
	"fmt"
)

func PolicyFor(repositories string) string {
	return `apiVersion: pullpass.dev/v1alpha1
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
