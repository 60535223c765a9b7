// Package console is the page of the admin listener: decisions as they happen and of
// the past hours, why they were made and would be made now, who can reach what, and
// how everything is that a replica needs.
//
//	Log      an exchange.Recorder that nobody waits for
//	Handler  the page; it changes nothing
//
// What stands on it comes from audit events, which hold no secret, and much of them from
// strangers: html/template writes it, and no script makes HTML of it.
package console
