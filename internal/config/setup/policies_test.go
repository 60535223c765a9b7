package setup

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/base/file"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A volume is replaced between its files. The read rules are those of one version, never of two.
func TestPoliciesOfOneVersion(t *testing.T) {
	t.Parallel()
	for _, changes := range []int{0, 1, 2, maxReadings - 2, maxReadings - 1, 100} {
		version, reads := 0, 0
		files, err := readPolicies("policyFiles", []string{"a", "b"}, func(name string, limit int64) ([]byte, error) {
			if limit != policy.MaxBytes {
				t.Errorf("%d bytes are read", limit)
			}
			data := []byte(name + strings.Repeat("!", version))
			if reads++; reads%2 == 1 && version < changes {
				version++ // before the second file
			}
			return data, nil
		})
		// The last change is seen by one reading, and two more are equal.
		if changes+2 > maxReadings {
			if err == nil || !strings.Contains(err.Error(), "policyFiles: they changed while they were read") {
				t.Errorf("%d changes: %v, %v", changes, files, err)
			}
			continue
		}
		end := strings.Repeat("!", changes)
		if err != nil || len(files) != 2 || string(files[0].Data) != "a"+end || string(files[1].Data) != "b"+end || files[0].Name != "a" || files[1].Name != "b" {
			t.Errorf("%d changes: %q, %v", changes, files, err)
		}
	}
}

func TestPoliciesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	first, second := filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "second")
	_, err := readPolicies("policyFiles", []string{first, second}, file.Read)
	if err == nil || !strings.Contains(err.Error(), "policyFiles[0]: ") || !strings.Contains(err.Error(), "policyFiles[1]: ") {
		t.Error(err)
	}
	broken := errors.New("broken")
	reads := 0
	_, err = readPolicies("policyFiles", []string{first}, func(string, int64) ([]byte, error) {
		if reads++; reads > 1 {
			return nil, broken
		}
		return nil, nil
	})
	if !errors.Is(err, broken) {
		t.Error(err)
	}
	files := testkit.Value(readPolicies("policyFiles", []string{first}, func(string, int64) ([]byte, error) { return []byte("a"), nil }))(t)
	if len(files) != 1 || string(files[0].Data) != "a" {
		t.Errorf("%q", files)
	}
}
