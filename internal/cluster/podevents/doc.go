// Package podevents reports refusals as events on the pods whose tokens were refused. Container
// runtimes show their users only the status. Packages exchange and policy determine the reason of a
// refusal.
package podevents
