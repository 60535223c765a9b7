package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/base/file"
	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/policyobjects"
	"github.com/pullpass/pullpass/internal/policy/policytest"
)

func convertCommand() *cobra.Command {
	var write bool
	command := &cobra.Command{
		Use:   "convert FILE...",
		Short: "Rewrite files and manifests to the current apiVersion",
		Long: `Rewrite the apiVersion of configurations, policies, policy tests, and AccessPolicy
and RepositoryAccess objects to ` + string(strictyaml.CurrentVersion) + `. Everything else in the files, such as
comments and other objects, stays as it is. A second conversion changes nothing.

The command prints the files. With --write, it replaces each file that changes.`,
		Example: `  pullpass convert --write pullpass.yaml policy.yaml
  kubectl get accesspolicies -o yaml | pullpass convert /dev/stdin`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			contents := make([][]byte, len(files)) // nil: need not be written
			var out bytes.Buffer
			for i, name := range files {
				data, err := file.ReadArgument(cmd.Context(), name, policyobjects.MaxBytes)
				if err != nil {
					return err
				}
				converted, err := strictyaml.Convert(data, policyobjects.MaxBytes, config.Kind, policy.Kind, policy.KindRequest, policytest.Kind)
				switch {
				case err != nil:
					return fmt.Errorf("%s: %w", name, err)
				case !write:
					appendDocuments(&out, converted)
				case !bytes.Equal(converted, data):
					contents[i] = converted
				}
			}
			for i, name := range files {
				if contents[i] != nil {
					if err := replaceFile(name, contents[i]); err != nil {
						return err
					}
				}
			}
			_, err := cmd.OutOrStdout().Write(out.Bytes())
			return err
		},
	}
	command.Flags().BoolVar(&write, "write", false, "replace the files instead of printing them")
	return command
}

// appendDocuments separates the documents of files.
func appendDocuments(out *bytes.Buffer, next []byte) {
	if out.Len() > 0 {
		if !bytes.HasSuffix(out.Bytes(), []byte("\n")) {
			out.WriteByte('\n')
		}
		if !bytes.HasPrefix(next, []byte("---")) {
			out.WriteString("---\n")
		}
	}
	out.Write(next)
}

// replaceFile replaces the content of a file in one step. A symbolic link remains, and so do its mode
// and its owners: a file that root converted must stay readable for the user of pullpass serve.
func replaceFile(name string, content []byte) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s: is not a regular file: convert it without --write", name)
	}
	target, err := filepath.EvalSymlinks(name)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(target), "."+filepath.Base(target)+"-*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, keepOwner(f, info), f.Chmod(info.Mode().Perm()), f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), target)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
