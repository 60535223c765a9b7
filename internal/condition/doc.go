// Package condition is the part of a policy's subject that is written in CEL
// (https://cel.dev): what globs and lists of values cannot say.
//
//	Compile          text → a Condition, or what is wrong where
//	Condition.Holds  what is known of a caller → yes, no, or that it cannot be known
//	Condition.Uses   which claims it looks at, and as what
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
// There is no clock, no arithmetic and no regular expression in it, and claims are
// always named in the text, so that Uses knows all of them. There are no maps, no
// lists of lists and no map macro: [1].map(x, [x, x]).map(x, [x, x]) and so on
// doubles a value with every twelve characters, and to compare two of them took
// 168 ms for 1,561 units of CEL's cost with 22 of these. As it is, no value is larger
// than the token, or than what its making cost.
//
// # Errors
//
// A condition that asks for what is not there has no result. CEL's logic is kept,
// in which a result may not depend on such a part: false && X is false and true ||
// X is true whatever X is, in any order. If the condition as a whole has no result,
// Holds returns an error, and who calls it grants nothing for it, and refuses where
// it is a denial's.
//
// Macros go through lists only, because the names of an object have no order.
//
// Values of different types are unequal and no error: claims.ref_protected == true
// is never true where the claim is the text "true". Uses is there to find this
// before it happens.
package condition
