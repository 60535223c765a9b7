package strictyaml

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// maxFaults bounds the number of faults reported at once.
const maxFaults = 100

// Fault is one fault of a document.
type Fault struct {
	File    string // as given on the command line
	Path    string // of the field: clusters[0].node.claim; empty: the file as a whole
	Problem string // the fault, the value, and the remedy
	Err     error  // the cause, if there is one; Problem includes its text
}

func (f *Fault) Error() string {
	parts := slices.DeleteFunc([]string{f.File, f.Path, f.Problem}, func(s string) bool { return s == "" })
	return strings.Join(parts, ": ")
}

func (f *Fault) Unwrap() error { return f.Err }

// Faults collects all faults of files that are read together.
type Faults struct {
	List []*Fault // at most maxFaults
	More int      // number of faults that are not kept

	Deprecated []string // warnings: parts that a later release will not read
}

func (f *Faults) add(file, path, format string, args ...any) {
	if len(f.List) == maxFaults {
		f.More++
		return
	}
	f.List = append(f.List, &Fault{File: file, Path: path, Problem: fmt.Sprintf(format, args...)})
}

// Count returns the number of faults so far. If it does not change while a value is read, the value
// has no fault.
func (f *Faults) Count() int { return len(f.List) + f.More }

// Err joins the faults. It returns nil if there are none.
func (f *Faults) Err() error {
	all := make([]error, len(f.List))
	for i, fault := range f.List {
		all[i] = fault
	}
	if f.More > 0 {
		all = append(all, fmt.Errorf("and %d more faults", f.More))
	}
	return errors.Join(all...)
}

// Flatten returns the errors that errors.Join joined.
func Flatten(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, Flatten(e)...)
	}
	return all
}
