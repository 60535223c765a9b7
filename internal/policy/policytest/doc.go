// Package policytest reads and runs AccessPolicyTests: requests of subjects, and the decisions that
// a policy must make. It is for operators, who test a policy before it serves (pullpass check
// --tests). It runs the code that serves.
package policytest
