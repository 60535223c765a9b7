package programs

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/testenv"
)

// formerCommit stands in for the release before until there is one: the last commit whose files and objects know v1alpha1 alone.
const formerCommit = "ca2bc910dcff70501d3cfff2a4a13f56d61fd331"

// Former is the release before this one: its program, and its tree with the chart and the documents.
type Former struct {
	Name    string // the tag, or the commit
	Tree    string // directory
	Program string // pullpass
	// Alpha reports whether it knows files of v1alpha1 alone, as no release does.
	Alpha bool
}

// FormerRelease extracts and builds the newest release whose tag is an ancestor of what is checked out, or formerCommit.
func FormerRelease(t testing.TB) Former {
	t.Helper()
	git := func(args ...string) string {
		t.Helper()
		command := exec.CommandContext(t.Context(), "git", args...)
		command.Dir = Checkout(t)
		output, err := command.Output()
		if err != nil {
			var stderr []byte
			if exit, ok := errors.AsType[*exec.ExitError](err); ok {
				stderr = exit.Stderr
			}
			t.Fatalf("git %q: %v: %s\nthe release before is made from the history: git fetch --unshallow --tags", args, err, stderr)
		}
		return strings.TrimSpace(string(output))
	}
	former := Former{Name: formerCommit, Alpha: true}
	if tags := git("-c", "versionsort.suffix=-", "tag", "--list", "v*", "--merged", "HEAD", "--no-contains", "HEAD", "--sort=-version:refname"); tags != "" {
		former.Name, _, _ = strings.Cut(tags, "\n")
		former.Alpha = false
	}
	commit := git("rev-parse", former.Name+"^{commit}")
	dir := filepath.Join(cacheDir(t), "former-"+commit)
	former.Tree, former.Program = filepath.Join(dir, "tree"), filepath.Join(dir, "pullpass")
	building.Lock()
	defer building.Unlock()
	if _, err := os.Stat(former.Program); err == nil {
		return former
	}
	defer lock(t, filepath.Join(dir, "building"))()
	if _, err := os.Stat(former.Program); err == nil {
		return former
	}
	testenv.Must(t, os.RemoveAll(former.Tree))
	testenv.Must(t, os.MkdirAll(former.Tree, 0o755))
	archive := exec.CommandContext(t.Context(), "git", "archive", commit)
	archive.Dir = Checkout(t)
	extract := exec.CommandContext(t.Context(), "tar", "-x", "-C", former.Tree)
	content := testenv.Value(archive.Output())(t)
	extract.Stdin = bytes.NewReader(content)
	testenv.Must(t, extract.Run())
	goBuild(t, former.Tree, former.Program, "./cmd/proxy", "-X main.version="+former.Name, nil)
	return former
}
