package kube

import (
	_ "k8s.io/client-go/tools/record"
)
