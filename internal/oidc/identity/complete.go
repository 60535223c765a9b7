package identity

import (
	"maps"
	"strings"
)

// Complete returns claims that a valid token of the issuer could have: the given ones, those that
// identities[].require asks for, and ids that the profile needs. It is for examples. The result can
// be invalid, if the given claims contradict each other.
func (p Profile) Complete(issuer string, require map[string][]string, given Claims) Claims {
	all := Claims{}
	maps.Copy(all, given)
	add := func(name, value string) {
		if _, ok := all[name]; !ok {
			all[name] = value
		}
	}
	for name, values := range require {
		if len(values) == 0 {
			continue
		}
		switch c, _ := p.Claim(name); c.Type {
		case List:
			if _, ok := all[name]; !ok {
				all[name] = values[:1]
			}
		case Boolean:
			if _, ok := all[name]; !ok {
				all[name] = values[0] == "true"
			}
		default:
			add(name, values[0])
		}
	}
	switch p {
	case GitLab: // other jobs are refused
		if id, ok := all["project_id"].(string); ok {
			add("job_project_id", id)
		}
		if id, ok := all["job_project_id"].(string); ok {
			add("project_id", id)
		}
	case AWS:
		add("sub", "arn:aws:iam::000000000000:role/example")
	case SPIFFE:
		add("sub", "spiffe://example.com/example")
	case Azure: // https://login.microsoftonline.com/TENANT/v2.0 or https://sts.windows.net/TENANT/
		if parts := strings.Split(issuer, "/"); len(parts) > 3 {
			add("tid", parts[3])
		}
	}
	for _, name := range p.known().needs {
		add(name, "1")
	}
	add("sub", "example")
	return all
}
