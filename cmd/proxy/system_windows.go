package main

import (
	"errors"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
)

// nodeCommands say where they run.
func nodeCommands() (all []*cobra.Command) {
	for _, name := range []string{"run", "apply", "plan", "uninstall", "print"} {
		all = append(all, &cobra.Command{
			Use: name, Short: "Not on Windows", DisableFlagParsing: true,
			RunE: func(*cobra.Command, []string) error {
				return errors.New("node-install " + name + " is not for Windows; run it on Linux")
			},
		})
	}
	return all
}

// forbidCoreImages: Windows writes no image of a process unless its administrator asks for that.
func forbidCoreImages() error { return nil }

// keepOwner: a new file has the access control list of its directory, as the file before.
func keepOwner(*os.File, fs.FileInfo) error { return nil }
