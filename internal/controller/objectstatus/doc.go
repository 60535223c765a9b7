// Package objectstatus writes the status of AccessPolicy and RepositoryAccess objects:
// what of them counts, what is granted, by which rule, why not, and when it was used last.
//
//	Controller  one replica leads, looks at all objects, and writes what differs
//	judge       what a status should say: by decisions of package policy, and nothing else
//	asker       what is true of a pattern, by decisions about samples of it
//	uses        on which day a repository was used last, told by all replicas
//
// No decision reads a status, or waits for one. In steady state nothing is written: what
// an object's status says now is remembered as it was watched, so neither a restart nor
// another leader writes it again, and times in it are dates.
package objectstatus
