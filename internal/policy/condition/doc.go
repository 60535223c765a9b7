// Package condition compiles and evaluates conditions of a policy's subjects. They are written in
// CEL (https://cel.dev), for comparisons that globs and lists of values cannot express.
//
//	Compile          text → a Condition, or the fault and its position
//	Condition.Holds  the caller's variables → true, false, or an error if the result is unknown
//	Condition.Uses   the claims that it reads, and their types
//
// The language is CEL with fewer functions:
//
//	claims.NAME, claims["NAME"]                        of the token; has(claims.NAME) and "NAME" in claims ask whether there is one
//	kubernetes.cluster, .namespace, .serviceAccount, .node   text
//	kubernetes.labels                                  of the namespace, text by text
//	service                                            that the token is asked for
//	== != < <= > >= && || ! ?: in [] and + for text
//	startsWith, endsWith, contains, size, has, all, exists, exists_one, filter
//
// The language has no clock, no arithmetic and no regular expressions. Claims are always named in
// the text, so that Uses finds all of them. It has no maps, no lists of lists and no map macro.
// With them, [1].map(x, [x, x]).map(x, [x, x]) and so on doubles a value with every twelve
// characters. With 22 of these, comparing two such values took 168 ms for 1,561 units of CEL's
// cost. Without them, no value is larger than the token, or than the cost of making it.
//
// # Errors
//
// A condition that reads a missing value has no result. CEL's logic is kept, in which a result may
// not depend on such a part: false && X is false and true || X is true for every X, in any order.
// If the condition as a whole has no result, Holds returns an error. The caller then treats a rule
// as not matching and a denial as matching.
//
// Macros go through lists only, because the names of an object have no order.
//
// Comparing values of different types is false and not an error: claims.ref_protected == true is
// never true if the claim is the text "true". Uses allows a check for this in advance.
package condition
