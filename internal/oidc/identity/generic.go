package identity

// Generic is any other kind of issuer.
const Generic Profile = "generic"

var generic = profile{
	name:  Generic,
	needs: []string{"sub"}, project: "sub",
	repeats: true,
	advice:  []Advice{{[]string{"sub"}, "", "any token of the issuer pushes", `sub: ["…"]`}},
}
