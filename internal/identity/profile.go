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
	Terraform Profile = "terraform" // HCP Terraform
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
	// as in refs/tags/v*. No id and no sub is a name.
	IsName bool
	// IsPath: lower-cased, the value is the path of a repository: {claims.NAME}.
	IsPath bool
	// Instead is the id to compare instead of a name that can be given to somebody
	// else; empty: there is none, or it is an id.
	Instead string
}

// Claim returns what is known of a claim, and whether the profile names it.
func (p Profile) Claim(name string) (Claim, bool) {
	c, ok := profiles[p].claims[name]
	return c, ok
}

// profile is what is known of a kind of issuer.
type profile struct {
	claims map[string]Claim
	// project and run are the claims that External.Project and Run are made of.
	project, run string
}

var profiles = map[Profile]profile{
	GitHub: {
		project: "repository_id", run: "run_id",
		claims: map[string]Claim{
			"repository_id":       {Type: String},
			"repository_owner_id": {Type: String},
			"repository":          {Type: String, IsPath: true, Instead: "repository_id"},
			"ref":                 {Type: String, IsName: true},
			"ref_protected":       {Type: String},
			"event_name":          {Type: String},
			"run_id":              {Type: String},
		},
	},
}
