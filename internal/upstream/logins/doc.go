// Package logins has what the kinds of credential have in common that get a login
// from a cloud or a registry instead of a file.
//
//	Remembered   keeps logins until shortly before they end; an upstream.Logins
//	NewClient    an HTTP client that reads no more than it should
//	JSON         asks once, and reads an answer of JSON
//	Failure      what may be told of an error: no secret
//
// Each kind is a package beside this one and gives Remembered a function that asks.
package logins
