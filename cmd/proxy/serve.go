package main

import (
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/server"
)

// allocationProfileRate is Go's own default, in bytes.
const allocationProfileRate = 512 << 10

// serveCommand reads the size of the memory from root, the file system of the machine.
func serveCommand(root fs.FS) *cobra.Command {
	var file string
	var insecureHTTP bool
	command := &cobra.Command{
		Use:   "serve",
		Short: "Serve the token endpoint",
		Long: `Serve the token endpoint until SIGTERM or SIGINT, then finish open requests.
Audit events go to standard output (or audit.file), one JSON object a line. The
program's own log goes to standard error. Files that change, the configuration
too, are read again. SIGHUP reads all of them at once, and reopens audit.file
after log rotation.`,
		Example: `  pullpass serve --config /etc/pullpass/pullpass.yaml`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logger := slog.New(slog.NewJSONHandler(cmd.ErrOrStderr(), nil))
			if err := forbidCoreImages(); err != nil {
				return fmt.Errorf("limit the size of core images: %w", err)
			}
			setup.LimitMemory(root, os.Getenv("GOMEMLIMIT"), logger)
			defer setup.CollectRarely(os.Getenv("GOGC"))()
			cfg, err := config.Load(file)
			if err != nil {
				return err
			}
			if cfg.Admin.PProf {
				runtime.MemProfileRate = allocationProfileRate
			}
			if err := cfg.CheckListeners(insecureHTTP); err != nil {
				return err
			}
			s, err := server.New(server.Config{
				Config: cfg, InsecureHTTP: insecureHTTP, Version: programVersion(), Getenv: os.Getenv, Stdout: cmd.OutOrStdout(), Logger: logger,
			})
			if err != nil {
				return err
			}
			return s.Run(cmd.Context())
		},
	}
	configFlag(command, &file)
	command.Flags().BoolVar(&insecureHTTP, "insecure-http", false, "serve plain HTTP, on a loopback address only, behind a proxy that terminates TLS")
	return command
}
