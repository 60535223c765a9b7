package identity

// Profile is a kind of issuer.
type Profile string

// The profiles.
const (
	GitHub    Profile = "github" // also Enterprise Server and GHE.com
	GitLab    Profile = "gitlab"
	Buildkite Profile = "buildkite"
	CircleCI  Profile = "circleci"
	Bitbucket Profile = "bitbucket"
	Terraform Profile = "terraform" // HCP Terraform and Terraform Enterprise
	SPIFFE    Profile = "spiffe"
	Google    Profile = "google"
	Azure     Profile = "azure"
	AWS       Profile = "aws"
	Generic   Profile = "generic"
)

// Values returns all that there are.
func (Profile) Values() []Profile {
	return []Profile{GitHub, GitLab, Buildkite, CircleCI, Bitbucket, Terraform, SPIFFE, Google, Azure, AWS, Generic}
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

// Claim is what a profile knows of a claim. Its zero value is that of a claim that
// the profile does not name.
type Claim struct {
	Type Type
	// IsName: people choose the value, and * may stand in what it is compared with,
	// as in refs/tags/v*. No id and no sub is a name, and no name of who owns what:
	// of those, others can be given one that begins alike.
	IsName bool
	// IsPath: lower-cased, the value is the path of a repository: {claims.NAME}.
	IsPath bool
	// Instead is the id to compare instead of a name that can be given to somebody
	// else; empty: there is none, or it is an id.
	Instead string
}

// Claim returns what is known of a claim, and whether the profile names it.
func (p Profile) Claim(name string) (Claim, bool) {
	if c, ok := profiles[p].claims[name]; ok {
		return c, true
	}
	c, ok := registered[name]
	return c, ok
}

// RequiresIssuedAt reports whether a token without iat is refused. All issuers set
// it; the standard of JWT-SVIDs does not ask for it (SPIFFE JWT-SVID, section 3).
func (p Profile) RequiresIssuedAt() bool { return p != SPIFFE }

// profile is what is known of a kind of issuer.
type profile struct {
	claims map[string]Claim
	// needs are the claims without which a token does not say whose it is. They are
	// ids, and not empty.
	needs []string
	// remedy says how a token gets them.
	remedy string
	// project and run are the claims that External.Project and Run are made of.
	project, run string
	// check finds what contradicts itself in claims of the right types that have all
	// that is needed: it says so, or returns nothing.
	check func(Claims) string
}

// registered are the claims of RFC 7519, section 4.1, which are the same in every
// profile. aud is not among them: it is one string or a list of them.
var registered = map[string]Claim{
	"iss": id, "sub": id, "jti": id,
	"exp": number, "nbf": number, "iat": number,
}

// What most claims are. An id is also whatever else is compared as it is.
var (
	id      = Claim{Type: String}
	pathID  = Claim{Type: String, IsPath: true} // of lower-case letters, digits and hyphens
	name    = Claim{Type: String, IsName: true} // of a branch, a tag, a workflow, an environment
	number  = Claim{Type: Number}
	boolean = Claim{Type: Boolean}
	list    = Claim{Type: List}
)

// instead is a name that is somebody else's when its owner has given it up.
func instead(id string) Claim { return Claim{Type: String, Instead: id} }

// pathInstead is such a name that is the path of a repository, too.
func pathInstead(id string) Claim { return Claim{Type: String, IsPath: true, Instead: id} }

var profiles = map[Profile]profile{
	GitHub: github, GitLab: gitlab, Buildkite: buildkite, CircleCI: circleCI, Bitbucket: bitbucket, Terraform: terraform,
	SPIFFE: spiffe, Google: google, Azure: azure, AWS: aws,
	Generic: {needs: []string{"sub"}, project: "sub"},
}
