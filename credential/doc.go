// Package credential gives a program in a cluster its registry credential: the
// ServiceAccount token that the kubelet put into a projected volume, or handed
// to a CSI driver (KEP-1855), as the password that Pullpass accepts at the
// registry's token endpoint.
//
//	c, err := credential.FromFile("/var/run/secrets/pullpass/token", "registry.example.com", time.Now())
//
// FromToken does the same for a token from elsewhere, such as the OpenID token of a
// CI job.
//
// It reads and checks; it sends no request and keeps nothing. Call it again for each
// use, because the kubelet replaces tokens long before they end.
//
// The checks are there for people, so that a mistake in a manifest is named
// where it was made, and so that a token which opens the API server is never
// sent to a registry. They verify no signature: Pullpass alone decides
// which pulls are allowed.
//
// The standard library is all it imports, and of that neither net nor crypto.
package credential
