package main

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Only root can give a file to another user. Others have a group at most.
func TestConvertKeepsTheOwners(t *testing.T) {
	t.Parallel()
	name, owner := filepath.Join(t.TempDir(), "policy.yaml"), [2]int{os.Getuid(), slices.Max(append(testkit.Value(os.Getgroups())(t), os.Getgid()))}
	if owner[0] == 0 {
		owner = [2]int{65534, 65533}
	}
	testkit.Must(t, os.WriteFile(name, []byte("apiVersion: pullpass.dev/v1alpha1\nkind: AccessPolicy\n"), 0o640))
	testkit.Must(t, os.Chown(name, owner[0], owner[1]))
	convert := convertCommand()
	convert.SetArgs([]string{"--write", name})
	testkit.Must(t, convert.ExecuteContext(t.Context()))
	info := testkit.Value(os.Stat(name))(t)
	if s := info.Sys().(*syscall.Stat_t); int(s.Uid) != owner[0] || int(s.Gid) != owner[1] || info.Mode() != 0o640 || info.Size() != 52 {
		t.Errorf("%d:%d %v, %d bytes, want the owners %v", s.Uid, s.Gid, info.Mode(), info.Size(), owner)
	}
}
