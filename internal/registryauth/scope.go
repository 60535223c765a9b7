package registryauth

// Scope is one resource and the actions on it (distribution's scope document):
// type(class):name:action,action. Actions are sorted and unique.
type Scope struct {
	Type    string
	Class   string
	Name    string // literal, never a pattern; may start with host:port/
	Actions []string
}
