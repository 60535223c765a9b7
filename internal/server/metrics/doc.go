// Package metrics counts what a proxy does, and shows to Prometheus how what it
// consists of is doing. Each metric is defined once, with what to do when it is
// bad, of which docs/reference/metrics.md is made. No label has a value that a caller
// chooses.
package metrics
