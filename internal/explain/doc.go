// Package explain says what a request would get now, step by step, and why: with a
// token, with a ServiceAccount's name, or as a line of the audit log has it. It asks
// the code that serves. Nothing is issued or counted, and no token is printed.
package explain
