// Package testkit has what tests of many packages need: files, free addresses,
// waiting for what happens in another goroutine.
package testkit
