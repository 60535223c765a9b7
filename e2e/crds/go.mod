module github.com/pullpass/pullpass/e2e/crds

go 1.26.5

require (
	github.com/argoproj/argo-cd/v3 v3.5.7
	github.com/aws/karpenter-provider-aws v1.14.0
	github.com/cert-manager/cert-manager v1.21.2
	github.com/cert-manager/trust-manager v0.25.0
	github.com/external-secrets/external-secrets v1.3.2
	github.com/fluxcd/source-controller v1.8.5
	github.com/prometheus-operator/prometheus-operator v0.85.0
	sigs.k8s.io/cluster-api v1.14.2
	sigs.k8s.io/gateway-api v1.6.0
)
