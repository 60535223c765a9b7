// Package proxytest is what tests of a whole proxy share: a directory with its
// configuration, clients that ask it, and the schemas that its output is held to.
package proxytest
