// Package audit writes the audit log, one event a line, and reads, searches and
// prints it.
//
//	Log      an exchange.Recorder; an answer waits a second for its line and no longer
//	Search   conditions on events, over files that may be compressed
//	Find     the line with an id
//
// The fields of an event are those of exchange.Event.
package audit
