// Package refusal is the catalogue of reasons: every word that an audit line, a metric or an
// explanation may give for a request that was not granted whole.
//
//	Reason  its word
//	Class   determines the HTTP status, and the result in the audit log
//	Entry   a reason, its class, its meaning and its remedy
//	All     the catalogue, in the order of the documents
//
// It declares the reasons; it makes no decisions. A new reason is one entry here, its use, and a
// test.
package refusal
