package main

import (
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A revocation that matches no possible token would refuse no request, but report
// success. The command fails before it calls Redis.
func TestRevokeRefusesImpossibleTargets(t *testing.T) {
	t.Parallel()
	p := proxytest.New(t, proxytest.WithRedis(testkit.FreeAddress(t), "off")+proxytest.Identities, nil)
	token := strings.Repeat("eyJhbGciOiJFUzI1NiJ9.", 20)
	for target, fault := range map[string]string{
		"--service-account prod/Team_A/web":   `no namespace can have the name "Team_A"`,
		"--service-account prod/team.a/web":   `no namespace can have the name "team.a"`,
		"--service-account prod/team-a/a..b":  `no object can have the name "a..b"`,
		"--service-account prod/team-a/web-":  `no object can have the name "web-"`,
		"--service-account a/team-a/web":      `cluster "a" is not configured`,
		"--service-account team-a/web":        "is not CLUSTER/NAMESPACE/NAME",
		"--service-account prod/team-a/web/x": "is not CLUSTER/NAMESPACE/NAME",
		"--node prod/Worker":                  `"Worker" is not a valid name of a node`,
		"--node prod/worker 1":                `"worker 1" is not a valid name of a node`,
		"--node other/worker-1":               `cluster "other" is not configured`,
		"--node worker-1":                     "is not CLUSTER/NAME",
		"--node prod/":                        "is not CLUSTER/NAME",
		"--node prod/a/b":                     "is not CLUSTER/NAME",
		"--pod-uid x y":                       `"x y": not a valid UID`,
		"--pod-uid prod/team-a/web-0":         "not a valid UID",
		"--pod-uid 63EF7A8C-1d81":             "not a valid UID",
		"--pod-uid " + token[:129]:            "not a valid UID",
		"--project github":                    `--project "github" is not IDENTITY/ID`,
		"--project github/":                   "is not IDENTITY/ID",
		"--project /42":                       "is not IDENTITY/ID",
		"--project prod/42":                   `--project: identity "prod" is not configured (identities[].name)`,
		"--project github/octo-org/web":       `--project "github/octo-org/web": not a valid id for profile github; write the value of the claim repository_id, which is an id, not a name`,
		"--project github/4 2":                "not a valid id for profile github",
		"--project mesh/spiffe://mesh/*":      "write the whole id",
		"--run github/octo-org/web":           "write the value of the claim run_id",
		"--run mesh/1":                        `--run "mesh/1": tokens of profile spiffe have no claim for the run; revoke --project or --token-id`,
		"--token-id x y":                      "not a valid token id",
		"--token-id JTI=":                     "not a valid token id",
		"--token-id " + token:                 "not a valid token id",
	} {
		flag, value, _ := strings.Cut(target, " ")
		for _, command := range [][]string{{"--reason", "examined"}, {"undo"}} {
			fault := fault
			if command[0] == "undo" && strings.Contains(fault, "is not configured") {
				fault = "redis" // it is asked: the cluster or identity may have a new name
			}
			code, stdout, stderr := revoke(t, p, append(command, flag, value)...)
			if code != 1 || stdout != "" || !strings.Contains(stderr, fault) || strings.Contains(stderr, token[:129]) {
				t.Errorf("%v %s: exit code %d, %s%s, want %s", command, target, code, stdout, stderr, fault)
			}
		}
	}
	for _, target := range []string{
		"--service-account prod/team-a/web.7", "--node prod/worker-1.example.com", "--pod-uid da2e7a3c-63e8-4855-9874-2073194456f5", "--token-id jti=63ef7a8c",
		"--project github/42", "--run github/1001", "--project mesh/spiffe://mesh.example.com/team-a/web", "--token-id JTI=sha256:0a1b",
	} {
		flag, value, _ := strings.Cut(target, " ")
		if _, _, stderr := revoke(t, p, "--reason", "examined", flag, value); !strings.Contains(stderr, "redis") {
			t.Errorf("%s: %s, want that Redis is asked", target, stderr)
		}
	}
}
