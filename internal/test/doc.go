// Package test is the room of the helpers that tests of several packages share. No program links it.
//
//	testkit       files, addresses, waiting for a condition
//	pkitest       keys and certificates
//	tokentest     tokens that must be refused
//	kubetest      API servers with responses that a test chooses, and tokens of ServiceAccounts
//	proxytest     a whole proxy, its clients, and the schemas of its output
//	registrytest  real registries in the process of the test
//	schematest    JSON Schemas of Go types
//	mutants       a program that changes the code and looks whether a test fails
//
// A suite for one package lies below it: signingtest, statetest, loginstest.
package test
