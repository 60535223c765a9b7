package exchange

// Joined makes keys, for tests.
var Joined = joined
