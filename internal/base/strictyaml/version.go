package strictyaml

import (
	"fmt"
	"slices"
)

// Version is the apiVersion of Pullpass's files and objects. All versions have the same fields.
type Version string

const (
	CurrentVersion Version = "pullpass.dev/v1beta1"
	// DeprecatedVersion is read with a warning, in two minor releases.
	DeprecatedVersion Version = "pullpass.dev/v1alpha1"

	withoutDeprecated = "0.3.0" // the release that does not read DeprecatedVersion
)

// AnswerVersion is the apiVersion of the JSON that commands print. It changes apart from files,
// because nothing reads an answer back.
const AnswerVersion = "pullpass.dev/v1alpha1"

// Values returns the versions that are read, the one to write first.
func (Version) Values() []Version { return []Version{CurrentVersion, DeprecatedVersion} }

// AcceptVersion reports whether documents of the version are read. Of a deprecated version, it
// keeps one warning for each file.
func (f *Faults) AcceptVersion(file string, version any) bool {
	name, _ := version.(string)
	if Version(name) == DeprecatedVersion {
		warning := (&Fault{File: file, Path: "apiVersion", Problem: fmt.Sprintf("%s is deprecated, and Pullpass %s will not read it; rewrite the file with pullpass convert --write %s",
			DeprecatedVersion, withoutDeprecated, file)}).Error()
		if !slices.Contains(f.Deprecated, warning) {
			f.Deprecated = append(f.Deprecated, warning)
		}
	}
	return slices.Contains(CurrentVersion.Values(), Version(name))
}
