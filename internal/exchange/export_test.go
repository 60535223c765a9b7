package exchange

// Joined makes keys, for tests.
var Joined = joined

// The settings of readers, for tests.
const (
	Crowd = crowd
	Hurry = hurry
)
