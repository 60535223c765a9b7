package condition

import (
	"strings"
	"testing"
)

func TestCompileFaults(t *testing.T) {
	t.Parallel()
	const sumFault = `+ joins text, and this may be something else: let one side be text for sure, as in claims.a + "/" + claims.b`
	const elementFault = "an element may be a list: write lists of text, numbers, true and false; claims are compared one by one"
	const known = `there are claims.NAME, kubernetes.cluster, kubernetes.labels, kubernetes.namespace, kubernetes.node, kubernetes.serviceAccount, service; text stands in quotes`
	for text, want := range map[string]string{
		"":        "is blank: fill it or remove it",
		" \n\t":   "is blank: fill it or remove it",
		"// push": "1:8: Syntax error: mismatched input '<EOF>': " + syntaxRemedy,

		`claims.a = "x"`:                     `1:10: Syntax error: token recognition error at: '= ': ` + syntaxRemedy,
		"claims.a == 'x' &&\n  (claims.b ==": "2:15: Syntax error: mismatched input '<EOF>': " + syntaxRemedy,
		`"ä" == claims.a and true`:           "1:17: Syntax error: mismatched input 'and' expecting <EOF>: " + syntaxRemedy,
		`has(claims["a/b"])`:                 "1:11: invalid argument to has() macro: " + hasRemedy,

		`claim.ref == "x"`:                        `1:1: "claim" is not known: ` + known,
		`ref == "x"`:                              `1:1: "ref" is not known: ` + known,
		`claims.ref == main`:                      `1:15: "main" is not known: ` + known,
		`kubernetes.clutser == "x"`:               `1:11: "kubernetes.clutser" is not known: ` + known,
		`has(kubernetes.clutser)`:                 `1:4: "kubernetes.clutser" is not known: ` + known,
		`kubernetes == "x"`:                       `1:1: "kubernetes" is not known: ` + known,
		`claims.l.exists(x, y == 1)`:              `1:20: "y" is not known: ` + known,
		`claims.l.exists(x, true) && x == 1`:      `1:29: "x" is not known: ` + known,
		`claims.l.exists(x, __result__)`:          `1:20: "__result__" is not known: ` + known,
		`claims.l.exists(x, foo.exists(y, true))`: `1:20: "foo" is not known: ` + known,
		`[claims.a == "x", b].exists(x, x)`:       `1:19: "b" is not known: ` + known,
		`claims.a == string`:                      `1:13: "string" is not known: ` + known,
		`foo.bar.baz == 1`:                        `1:1: "foo" is not known: ` + known,
		`foo["x"] == 1`:                           `1:1: "foo" is not known: ` + known,
		`foo.startsWith("x")`:                     `1:1: "foo" is not known: ` + known,
		`"x" in foo`:                              `1:8: "foo" is not known: ` + known,

		`claims == claims`:                     "1:1: looks at all claims: " + claimRemedy,
		`size(claims) > 0`:                     "1:6: looks at all claims: " + claimRemedy,
		`claims.exists(c, true)`:               "1:1: looks at all claims: " + claimRemedy,
		`1 in claims`:                          "1:6: looks at all claims: " + claimRemedy,
		`service in claims`:                    "1:12: looks at all claims: " + claimRemedy,
		`claims[service] == "x"`:               "1:7: chooses a claim by a value: " + claimRemedy,
		`claims["a" + "b"] == "x"`:             "1:7: chooses a claim by a value: " + claimRemedy,
		`claims[""] == "x"`:                    "1:7: chooses a claim by a value: " + claimRemedy,
		`[1].exists(claims, claims == 1)`:      `1:11: "claims" names two things: choose another name for the elements`,
		`[1].exists(service, true)`:            `1:11: "service" names two things: choose another name for the elements`,
		`[1].exists(kubernetes, true)`:         `1:11: "kubernetes" names two things: choose another name for the elements`,
		`has(kubernetes.node)`:                 "1:4: has asks for a claim or a label: compare kubernetes.node instead: where it is not known, the condition grants nothing",
		`kubernetes.labels.exists(k, k == "")`: "1:25: is not a list: " + listRemedy,
		`service.all(c, c == "x")`:             "1:12: is not a list: " + listRemedy,

		`claims.ref.matches("^a|b$")`:                       `1:19: "matches" is not available here: policy has no regular expressions: use ==, in, startsWith, endsWith or contains`,
		`matches(claims.ref, "a")`:                          `1:8: "matches" is not available here: policy has no regular expressions: use ==, in, startsWith, endsWith or contains`,
		`claims.exp > now()`:                                `1:17: "now" is not available here: ` + noTimeRemedy,
		`timestamp("2026-01-01T00:00:00Z") == claims.a`:     `1:10: "timestamp" is not available here: ` + noTimeRemedy,
		`duration("1s") == claims.a`:                        `1:9: "duration" is not available here: ` + noTimeRemedy,
		`claims.a.getHours() == 1`:                          `1:18: "getHours" is not available here: ` + functionRemedy,
		`claims.l.map(x, x) == []`:                          `1:13: "map" is not available here: use exists or filter`,
		`claims.l.exists(x)`:                                `1:16: "exists" is not available here: ` + functionRemedy,
		`claims.a.lowerAscii() == "x"`:                      `1:20: "lowerAscii" is not available here: ` + functionRemedy,
		`string(claims.a) == "x"`:                           `1:7: "string" is not available here: ` + noConversionRemedy,
		`type(claims.a) == "x"`:                             `1:5: "type" is not available here: ` + noConversionRemedy,
		`claims.a - 1 == 1`:                                 `1:10: "-" is not available here: ` + noArithmeticRemedy,
		`claims.a * 2 == 1 || claims.a / 2 == 1`:            `1:10: "*" is not available here: ` + noArithmeticRemedy,
		`-claims.a == 1`:                                    `1:1: "-" is not available here: ` + noArithmeticRemedy,
		`claims.a % 2 == 1`:                                 `1:10: "%" is not available here: ` + noArithmeticRemedy,
		`{"a": 1}["a"] == 1`:                                "1:1: has braces: write lists, as in claims.ref in [\"a\", \"b\"]; there are no maps and no messages",
		`google.protobuf.Timestamp{seconds: 1} == claims.a`: "1:26: has braces: write lists, as in claims.ref in [\"a\", \"b\"]; there are no maps and no messages",

		`claims.flag`:                                 "1:7: may be anything, and a condition is true or false: compare it, as in claims.flag == true",
		`claims.a == 1 ? claims.flag : true`:          "1:15: may be anything, and a condition is true or false: compare it, as in claims.flag == true",
		`service`:                                     `1:1: is a string, and a condition is true or false: compare it, as in claims.ref == "refs/heads/main"`,
		`1 == "1"`:                                    "1:3: found no matching overload for '_==_' applied to '(int, string)': " + typeRemedy,
		`service == 1`:                                "1:9: found no matching overload for '_==_' applied to '(string, int)': " + typeRemedy,
		`claims.a == "x" && "true"`:                   "1:20: expected type 'bool' but found 'string': " + typeRemedy,
		`kubernetes.labels.team == 1`:                 "1:24: found no matching overload for '_==_' applied to '(string, int)': " + typeRemedy,
		`service.foo == "x"`:                          "1:8: type 'string' does not support field selection: " + typeRemedy,
		`claims.l + claims.l == claims.l`:             "1:10: " + sumFault,
		`claims.l.exists(x, x + x == x)`:              "1:22: " + sumFault,
		`1 + 1 == claims.a`:                           "1:3: " + sumFault,
		`["a"] + ["b"] == claims.l`:                   "1:7: " + sumFault,
		`[claims.l, claims.l] == claims.m`:            "1:8: " + elementFault,
		`[["a"]] == claims.l`:                         "1:2: " + elementFault,
		`claims.l.exists(x, [x] == claims.m)`:         "1:21: " + elementFault,
		`claims.l.filter(x, [[x]] == claims.m) == []`: "1:21: " + elementFault,
		// An operand that + rejects is rejected at every position.
		`(claims.a ? claims.a + claims.b : "x") == "y"`: "1:22: " + sumFault,
		`claims.a[claims.a + claims.b] == "y"`:          "1:19: " + sumFault,
		`"x".contains(claims.a + claims.b)`:             "1:23: " + sumFault,
		`(claims.a + claims.b).contains("x")`:           "1:11: " + sumFault,
		`size(claims.a + claims.b) == 1`:                "1:15: " + sumFault,
		`(claims.a + claims.b)[0] == 1`:                 "1:11: " + sumFault,
		`(claims.a + claims.b).x == 1`:                  "1:11: " + sumFault,
		`claims.a + claims.b in claims.c`:               "1:10: " + sumFault,
		`"x" in (claims.a + claims.b)`:                  "1:18: " + sumFault,
		`"x" + (claims.a + claims.b) == "y"`:            "1:17: " + sumFault,
		`(claims.a + claims.b).all(x, true)`:            "1:11: " + sumFault,
		`[(claims.a + claims.b) == "x"] == []`:          "1:12: " + sumFault,
	} {
		c, err := Compile(text)
		if c != nil || err == nil || err.Error() != want {
			t.Errorf("%q\n got %v\nwant %s", text, err, want)
		}
	}
}

func TestCompileLimits(t *testing.T) {
	t.Parallel()
	n := func(text string, times int) string { return strings.Repeat(text, times) }
	numbers := "[" + n("1,", 500) + "1]"
	for what, c := range map[string]struct{ text, want string }{
		"words":     {n("a ", 2000), "1:3: Syntax error: mismatched input 'a' expecting <EOF>: " + syntaxRemedy},
		"text":      {`claims.a == "` + n("a", maxBytes) + `"`, "has 4110 bytes; at most 4096 are read: write several subjects"},
		"brackets":  {n("(", 2000) + "true" + n(")", 2000), "expression recursion limit exceeded: 32: " + depthRemedy},
		"lists":     {n("[", 2000), "expression recursion limit exceeded: 32: " + depthRemedy},
		"selectors": {"claims" + n(".a", 2000), "max recursion depth exceeded: " + depthRemedy},
		"sums":      {n(`"a" + `, 500) + `"a" == "a"`, "max recursion depth exceeded: " + depthRemedy},
		"choices":   {n("true ? true : ", 250) + "true", "expression recursion limit exceeded: 32: " + depthRemedy},
		"macros":    {`["a"].exists(x, ` + n(`[x + x].exists(x, `, 60) + "true" + n(")", 61), "expression recursion limit exceeded: 32: " + depthRemedy},
		"doubling": {`["a"].exists(x, ` + n(`[x + x].exists(x, `, 20) + `x == ""` + n(")", 21), " units whatever the claims are; at most 10000 are spent: " +
			"write shorter lists, or no list within another's macro"},
		"own lists": {numbers + ".all(a, " + numbers + ".all(b, a == b))", " units whatever the claims are; at most 10000 are spent: " +
			"write shorter lists, or no list within another's macro"},
	} {
		if _, err := Compile(c.text); err == nil || !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%s: %v; want %s", what, err, c.want)
		}
	}
	// A long chain is not deep, and the longest text is accepted.
	for _, text := range []string{
		n(`claims.a == "b" || `, 200) + "true",
		`claims.a == "` + n("a", maxBytes-len(`claims.a == ""`)) + `"`,
		"claims.a in " + numbers,
		numbers + ".exists(n, n == claims.a)",
	} {
		if _, err := Compile(text); err != nil {
			t.Errorf("%.40s...: %v", text, err)
		}
	}
}
