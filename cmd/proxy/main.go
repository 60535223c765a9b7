// Command pullpass is the token endpoint of a registry: Kubernetes
// ServiceAccount token in, registry token out. This package has the commands
// and their flags. The packages under internal/ do the work.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
)

// version is set by the linker; a plain go build has the module's version.
var version = ""

func main() {
	runtime.MemProfileRate = 0 // the default walks a stack each 512 KiB; admin.pprof turns it on
	quietLibraries(os.Stderr)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// quietLibraries sends the logs of libraries to our own log. main calls it, not run:
// these loggers are package variables, and tests call run in parallel.
func quietLibraries(stderr io.Writer) {
	klog.SetSlogLogger(slog.New(slog.NewJSONHandler(stderr, nil))) // client-go's
	logrus.SetOutput(io.Discard)                                   // distribution's token verifier: the audit log has each invalid token
}

// errReported ends a command with exit code 1 whose output already says why.
var errReported = errors.New("reported")

// errFaults ends a command whose exit code 1 is an answer, with exit code 2. Its output has the faults.
var errFaults = errors.New("faults")

// run is the whole program, but for signals. It returns the exit code: 0 for
// success, 1 for a failure.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := rootCommand()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errReported):
		return 1
	case errors.Is(err, errFaults):
		return 2
	default:
		fmt.Fprintf(stderr, "pullpass: %v\n", err)
		return 1
	}
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "pullpass",
		Short: "Let Kubernetes pods pull images with their own ServiceAccount",
		Long: `Pullpass is the token endpoint of a container registry. It verifies the
ServiceAccount token that the kubelet passes through as a password, decides by
policy which repositories that identity may touch, and answers with a
short-lived bearer token that the registry checks by itself.`,
		Example: `  pullpass check --config pullpass.yaml
  pullpass serve --config pullpass.yaml
  pullpass explain --config pullpass.yaml --as prod-eu/team-a/web --scope repository:team-a/web:pull`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	files := os.DirFS("/")
	root.AddCommand(serveCommand(files), checkCommand(), clusterCommand(), explainCommand(), whoCanCommand(), reachCommand(), policyCommand(), convertCommand(), auditCommand(), traceCommand(), registryConfigCommand(), kubeletConfigCommand(), nodeInstallCommand(), pullSecretsCommand(files), keysCommand(), revokeCommand(), loginCommand(), reasonsCommand(), versionCommand())
	return root
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: `  pullpass version`,
		Args:    cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintln(cmd.OutOrStdout(), "pullpass", programVersion())
		},
	}
}

func programVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
