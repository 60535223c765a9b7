package oidc

const subjectPrefix = "system:serviceaccount:"

// ServiceAccountSubject returns the subject (sub) of a ServiceAccount's tokens. It
// is unambiguous, because no name can hold a colon.
func ServiceAccountSubject(namespace, name string) string {
	return subjectPrefix + namespace + ":" + name
}
