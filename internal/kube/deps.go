package kube

import (
	_ "golang.org/x/sync/singleflight"
	_ "k8s.io/api/core/v1"
	_ "k8s.io/apimachinery/pkg/labels"
	_ "k8s.io/client-go/metadata"
	_ "k8s.io/client-go/rest"
	_ "k8s.io/client-go/tools/cache"
	_ "k8s.io/client-go/tools/clientcmd"
	_ "k8s.io/client-go/tools/record"
	_ "k8s.io/klog/v2"
)
