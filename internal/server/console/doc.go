// Package console is the web console on the admin listener. It shows present and past decisions,
// the reasons for them then and now, the access of ServiceAccounts, and the state of a replica's
// dependencies.
//
//	Log      an exchange.Recorder that never blocks
//	Handler  the console; it changes nothing
//	Answer   the same for programs, such as kubectl pullpass
//
// The console shows audit events. They contain no secrets, but clients choose much of their text.
// html/template escapes it, and no script turns text into HTML.
package console
