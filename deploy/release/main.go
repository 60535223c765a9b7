// Command release makes everything of a release of Pullpass: programs, images, the
// chart, SBOMs, provenance, checksums and notes. The same commit gives the same
// bytes, in any directory. On request it signs them with cosign, and pushes images
// and chart to a registry. docs/internals/releasing.md shows it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

const (
	source  = "https://github.com/pullpass/pullpass"
	keyless = "keyless"
)

// release is what all steps need to know.
type release struct {
	version  string // 0.1.0
	registry string // ghcr.io/pullpass: what the names of images begin with
	builder  string
	sign     string // a file with a key, keyless, or empty
	root     string // the checkout
	out      string // bin/release
	commit   string
	created  time.Time
	notes    notes
	stdout   io.Writer
	stderr   io.Writer
}

// tag names the commit, and is what the programs and images say.
func (r release) tag() string { return "v" + r.version }

func (r release) file(name string) string { return filepath.Join(r.out, name) }

// versions are those of Semantic Versioning that are names of tags, too.
var versions = regexp.MustCompile(`^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z]+([.-][0-9A-Za-z]+)*)?$`)

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	r := release{stdout: stdout, stderr: stderr}
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&r.version, "version", "", "version, such as 0.1.0 (required)")
	flags.StringVar(&r.registry, "registry", "", "registry and path of images and chart, such as ghcr.io/pullpass (required)")
	flags.StringVar(&r.builder, "builder", source+"/blob/main/docs/internals/releasing.md#by-hand", "`URI` that identifies the builder in the provenance")
	flags.StringVar(&r.sign, "sign", "", "private `key` of cosign, or \"keyless\" in a CI job; default: no signatures")
	push := flags.Bool("push", false, "push images and chart")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case flags.NArg() != 0:
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case !versions.MatchString(r.version):
		return fmt.Errorf("-version %q: want a semantic version without v, such as 0.1.0", r.version)
	case r.registry == "" || strings.HasSuffix(r.registry, "/"):
		return fmt.Errorf("-registry %q: want a registry and a path, such as ghcr.io/pullpass", r.registry)
	}
	if err := r.identify(ctx, *push); err != nil {
		return err
	}
	artifacts, err := r.make(ctx)
	if err != nil {
		return err
	}
	if r.sign != "" {
		if err := r.signFiles(ctx); err != nil {
			return err
		}
	}
	if *push {
		if err := r.push(ctx, artifacts); err != nil {
			return err
		}
	}
	fmt.Fprintf(stdout, "%s: Pullpass %s of commit %s\n", r.out, r.version, r.commit)
	return nil
}

// identify finds the commit. A tree with other changes is refused: the provenance
// would name a commit that does not give these bytes.
func (r *release) identify(ctx context.Context, push bool) error {
	root, err := r.output(ctx, "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	r.root, r.out = root, filepath.Join(root, "bin", "release")
	changes, err := r.output(ctx, "git", "status", "--porcelain")
	if err != nil {
		return err
	}
	if changes != "" {
		return fmt.Errorf("commit these changes first:\n%s", changes)
	}
	commit, err := r.output(ctx, "git", "log", "-1", "--format=%H %ct")
	if err != nil {
		return err
	}
	hash, seconds, _ := strings.Cut(commit, " ")
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return err
	}
	r.commit, r.created = hash, time.Unix(unix, 0).UTC()
	changelog, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	if r.notes, err = readNotes(string(changelog), r.version); err != nil {
		return err
	}
	if !push {
		return nil
	}
	if r.notes.date == unreleased {
		return fmt.Errorf("CHANGELOG.md: %s is %s; write its date before you push it", r.version, unreleased)
	}
	tags, err := r.output(ctx, "git", "tag", "--points-at", "HEAD")
	if err != nil {
		return err
	}
	if slices.Contains(strings.Fields(tags), r.tag()) {
		return nil
	}
	return fmt.Errorf("the commit has no tag %s; tag what you push", r.tag())
}

// make writes all files, the lists of the others last.
func (r release) make(ctx context.Context) ([]artifact, error) {
	if err := os.RemoveAll(r.out); err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp("", "pullpass-release-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	if err := os.MkdirAll(r.out, 0o755); err != nil { //nolint:gosec // public
		return nil, err
	}
	if err := r.buildPrograms(ctx, work); err != nil {
		return nil, err
	}
	if err := r.writeKrew(); err != nil {
		return nil, err
	}
	artifacts, err := r.buildImages(ctx, work)
	if err != nil {
		return nil, err
	}
	chart, err := r.writeChart(artifacts)
	if err != nil {
		return nil, err
	}
	artifacts = append(artifacts, chart)
	if err := r.writeProvenance(artifacts); err != nil {
		return nil, err
	}
	if err := r.writeSums(); err != nil {
		return nil, err
	}
	return artifacts, r.write("release-notes.md", []byte(r.notes.markdown(r, artifacts)))
}

func (r release) write(name string, content []byte) error {
	return os.WriteFile(r.file(name), content, 0o644) //nolint:gosec // public
}

// output returns what a program prints, without the last line's end.
func (r release) output(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // programs of this package
	cmd.Dir, cmd.Stderr = r.root, r.stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", program, err)
	}
	return strings.TrimRight(string(out), "\n"), nil
}
