package identity

import "strings"

// Azure follows https://learn.microsoft.com/entra/identity-platform/access-token-claims-reference.
// An application has an object (oid) in each tenant (tid) that admits it.
const Azure Profile = "azure"

var azure = profile{
	name: Azure,
	claims: map[string]Claim{
		"tid":                pathID,
		"oid":                pathID,
		"appid":              pathID,
		"azp":                pathID,
		"idtyp":              id,
		"ver":                id,
		"uti":                id,
		"idp":                id,
		"appidacr":           id,
		"azpacr":             id,
		"xms_mirid":          instead("oid"),
		"xms_az_rid":         instead("oid"),
		"roles":              list,
		"groups":             list,
		"wids":               list,
		"scp":                id,
		"name":               instead("oid"),
		"email":              instead("oid"),
		"upn":                instead("oid"),
		"unique_name":        instead("oid"),
		"preferred_username": instead("oid"),
	},
	needs:   []string{"tid", "oid"},
	remedy:  "ask for an access token or ID token of an application of this tenant",
	project: "oid",
	check: func(c Claims) string {
		// https://login.microsoftonline.com/TENANT/v2.0 or https://sts.windows.net/TENANT/
		if !inPath(c, c["tid"]) {
			return `claim "tid" is not the tenant of "iss"`
		}
		return ""
	},
	issuer: func(host, path string) ([]string, bool) {
		_, known := hosts(nil, "login.microsoftonline.com", "sts.windows.net", "login.microsoftonline.us", "login.partner.microsoftonline.cn", "sts.chinacloudapi.cn")(host, path)
		if tenant, _, _ := strings.Cut(path, "/"); known && strings.EqualFold(tenant, personalTenant) {
			return []string{"oid"}, true
		}
		return nil, known
	},
	advice: []Advice{{[]string{"oid"}, "", "any application of the tenant pushes", `oid: ["…"]`}},
}

// personalTenant is the tenant of all personal accounts of Microsoft.
const personalTenant = "9188040d-6c67-4c5b-b112-36a304b66dad"
