package identity

import "testing"

func TestAzure(t *testing.T) {
	t.Parallel()
	profileTest{
		claims: Claims{"iss": "https://sts.windows.net/t/", "tid": "t", "oid": "o"}, project: "o",
		issuers: map[string]bool{
			"https://login.microsoftonline.com/11111111-2/v2.0":                           false,
			"https://sts.windows.net/11111111-2/":                                         false,
			"https://login.microsoftonline.com/9188040D-6C67-4C5B-B112-36A304B66DAD/v2.0": true,
		},
		audiences: []audienceTest{
			{"https://sts.windows.net/t/", "https://management.azure.com/", true},
			{"https://sts.windows.net/t/", "https://management.azure.com", true},
			{"https://sts.windows.net/t/", "https://management.core.windows.net/", true},
			{"https://sts.windows.net/t/", "https://graph.microsoft.com", true},
		},
		repeats: map[string]bool{"oid": false},
	}.check(t, Azure)
}
