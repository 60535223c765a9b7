package kube

import "crypto/sha256"

// digest stands for a text in 16 bytes. To find another text with the same one takes 2^128 tries.
type digest [16]byte

// digestOf does not allocate for names, which have at most 253 bytes, and UIDs.
func digestOf(namespace, name string) digest {
	var space [2*253 + 1]byte
	text := append(append(append(space[:0], namespace...), '/'), name...) // '/' is in no name
	sum := sha256.Sum256(text)
	return digest(sum[:16])
}

// uids has the UIDs of objects by their names, as digests. A cluster has 20 times as many pods as
// ServiceAccounts, and of a pod nothing else is needed.
type uids map[digest]digest

func (u uids) put(key objectKey, uid string) {
	u[digestOf(key.namespace.Value(), key.name)] = digestOf("", uid)
}

func (u uids) remove(key objectKey) { delete(u, digestOf(key.namespace.Value(), key.name)) }
