package main

import "fmt"

func policyFor(repositories string) string {
	return `apiVersion: pullpass.dev/v1alpha1
kind: AccessPolicy
rules:
- name: own-namespace
  subjects: [{namespaces: ["team-*"]}]
  allow: [{repositories: ["` + repositories + `"], actions: [pull]}]
`
}

const annotationRule = `- name: asked-for
  subjects: [{namespaces: ["team-*"]}]
  annotation: pullpass.dev/repositories
  allow: [{repositories: ["team-a/**"], actions: [pull]}]
`

const secondCluster = `- name: second
  issuer: https://second.example.com
  audiences: [registry.example.com]
  discovery: {jwksFile: issuer.json}
`

// policyInUse is the last line of the configuration of tests.
const policyInUse = "policyFiles: [policy.yaml]"

// withRedis are the fields of a configuration that shares its state.
func withRedis(address, replay string) string {
	return fmt.Sprintf("state: {redis: {addresses: [%q]}, replay: %s}\nlimits: {perServiceAccount: {rate: 0.01, burst: 3}, perAddress: {rate: 0.01, burst: 2}}\n", address, replay)
}
