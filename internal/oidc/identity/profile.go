package identity

// Profile is a kind of issuer.
type Profile string

// profiles has a line for each profile, in the order in which texts list them.
var profiles = []*profile{
	&github,
	&gitlab,
	&buildkite,
	&circleCI,
	&bitbucket,
	&terraform,
	&spiffe,
	&google,
	&azure,
	&aws,
	&generic,
}

// Values returns every Profile.
func (Profile) Values() (all []Profile) {
	for _, known := range profiles {
		all = append(all, known.name)
	}
	return all
}

// known returns what the profile's file says. It is empty for an unknown profile.
func (p Profile) known() *profile {
	for _, known := range profiles {
		if known.name == p {
			return known
		}
	}
	return &profile{}
}

// Type is the type of a claim's value.
type Type string

// The types.
const (
	String  Type = "string"
	Number  Type = "number"
	Boolean Type = "boolean"
	List    Type = "list" // of strings
)

// Claim describes a claim of a profile. Its zero value describes a claim that the profile does not
// name.
type Claim struct {
	Type Type
	// IsName: people choose the value, and a policy may compare it with a pattern, as in
	// refs/tags/v*. An id or a sub is never a name. Neither is the name of an owner: another owner
	// can get a name that begins alike.
	IsName bool
	// IsPath: lower-cased, the value is the path of a repository: {claims.NAME}.
	IsPath bool
	// Instead is the id to compare instead of a name that can be given to another owner. It is
	// empty if there is no such id, or if the claim itself is an id.
	Instead string
}

// Claim returns the description of a claim, and whether the profile names it.
func (p Profile) Claim(name string) (Claim, bool) {
	if c, ok := p.known().claims[name]; ok {
		return c, true
	}
	c, ok := registered[name]
	return c, ok
}

// RequiresIssuedAt reports whether a token without iat is refused.
func (p Profile) RequiresIssuedAt() bool { return !p.known().noIssuedAt }

// profile describes a kind of issuer.
type profile struct {
	name   Profile
	claims map[string]Claim
	// needs are the claims without which a token does not identify its owner. They are ids and are
	// not empty.
	needs []string
	// remedy describes how a token gets them.
	remedy string
	// project and run are the claims that become External.Project and Run.
	project, run string
	// refs are the claims that tell apart what the jobs of a project run: a branch and a tag. The
	// first is in every token that names its ref.
	refs []string
	// check describes a contradiction between claims, or returns an empty text. The claims have the
	// right types and contain all of needs.
	check func(Claims) string
	// noIssuedAt: some issuers do not set iat.
	noIssuedAt bool
	// issuer reports whether the lower-case host and the path of a URL are those of an issuer of
	// the profile, and returns its Known.Tenant.
	issuer func(host, path string) (tenant []string, known bool)
	// isDefault reports whether tokens have the audience if the job chooses none.
	isDefault func(issuer, audience string) bool
	// repeats: each customer can have an issuer, which counts from one.
	repeats bool
	// The last two hold the results of the exported methods.
	advice    []Advice
	outsiders func(claim, value string) string
}

// registered are the claims of RFC 7519, section 4.1, which are the same in every profile. aud is
// not among them, because it is one string or a list of them.
var registered = map[string]Claim{
	"iss": id, "sub": id, "jti": id,
	"exp": number, "nbf": number, "iat": number,
}

// The common kinds of claims. The kind id also serves other claims whose exact value is compared.
var (
	id      = Claim{Type: String}
	pathID  = Claim{Type: String, IsPath: true} // of lower-case letters, digits and hyphens
	name    = Claim{Type: String, IsName: true} // of a branch, a tag, a workflow, an environment
	number  = Claim{Type: Number}
	boolean = Claim{Type: Boolean}
	list    = Claim{Type: List}
)

// instead describes a name that goes to another owner when its owner gives it up.
func instead(id string) Claim { return Claim{Type: String, Instead: id} }

// pathInstead describes such a name that is also the path of a repository.
func pathInstead(id string) Claim { return Claim{Type: String, IsPath: true, Instead: id} }
