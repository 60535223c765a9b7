// Package audit writes the audit log, one event on each line. It also reads, searches and prints
// it.
//
//	Log      an exchange.Recorder; a response waits at most one second for its line
//	Search   conditions on events, over files that may be compressed
//	Find     the line with an id
//
// The fields of an event are those of exchange.Event.
package audit
