// Package explain describes, step by step, the result that a request would have now, and the
// reasons. The request has a token, the name of a ServiceAccount, or a line of the audit log. The
// package uses the same code as the server. It issues and counts nothing, and prints no token.
package explain
