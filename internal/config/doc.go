// Package config is the configuration of a proxy: its fields and defaults, what
// must hold among them, and which files they name.
//
// Load and Parse return a Config that was checked, or every fault at once, each
// with the path of its field. It opens nothing but the configuration itself; what
// the settings lead to is made by package setup.
package config
