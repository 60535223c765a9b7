// Package objectstatus writes the status of AccessPolicy and RepositoryAccess objects: which parts
// count, what is granted and by which rule, the reasons of denials, and the date of the last use.
//
//	Controller  one replica leads, looks at all objects, and writes those whose status differs
//	judge       the status that an object should have, only by decisions of package policy
//	asker       the grants of a pattern, by decisions about samples of it
//	uses        the day on which a repository was used last, reported by all replicas
//
// No decision reads a status or waits for one. In steady state nothing is written. The controller
// remembers each status as it was watched, and times in it are dates. So neither a restart nor a
// new leader writes it again.
package objectstatus
