package state

// Change is the last change of a target: By revoked it, or removed the revocation.
type Change struct {
	Revocation
	Removed bool
}

// Changes returns the last change of every target whose revocation has not
// ended by itself. It reads local memory alone.
func (l *revocationList) Changes() []Change {
	records := l.records.Load()
	if records == nil {
		return nil
	}
	changes := make([]Change, 0, len(*records))
	for _, r := range *records {
		if l.now().Before(r.Until) {
			changes = append(changes, Change{r.Revocation, r.Removed})
		}
	}
	return changes
}
