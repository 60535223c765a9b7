package identity

// Claims are those of one token, by name: string, bool, int64 or float64 (JSON
// numbers, integral or not), []string for lists of strings, and for whatever else
// issuers write []any and map[string]any of these. They must not be changed.
type Claims map[string]any

// External is a caller that is no ServiceAccount of a cluster. It is immutable and
// safe to share.
type External struct {
	Provider string // identities[].name
	Profile  Profile
	Claims   Claims
	// Project is what the profile's issuers never name twice: the id of the
	// repository, project or workload. Run is the id of the run, workflow or pipeline
	// of a CI job; empty where there is none.
	Project string
	Run     string
}
