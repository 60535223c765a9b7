// Package logins is shared by the kinds of credential that get a login from a cloud or a registry
// instead of a file.
//
//	Kind         what a kind implements: a package beside this one, and a line in the configuration
//	Remembered   keeps logins until shortly before they expire; an upstream.Logins
//	NewClient    an HTTP client that bounds the size of responses
//	JSON         makes one request, and parses a JSON response
//	Failure      the loggable text of an error, without secrets
package logins
