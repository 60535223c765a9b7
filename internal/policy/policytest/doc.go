// Package policytest reads AccessPolicyTests and runs them: who asks for what, and
// what a policy must decide. It is for operators, who test a policy before it
// serves (pullpass check --tests), and asks the code that serves.
package policytest
