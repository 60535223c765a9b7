// Package config is the configuration of a proxy: its fields and defaults, the rules among them,
// and the files that they name.
//
// Load and Parse return a valid Config, or all faults at once, each with the path of its field. It
// opens only the configuration itself. Package setup opens the files and connections that the
// settings name.
package config
