module github.com/pullpass/pullpass/credential/ggcr

go 1.26.0

require (
	github.com/google/go-containerregistry v0.22.1
	github.com/pullpass/pullpass v0.1.0
)

require (
	github.com/docker/cli v29.7.2+incompatible // indirect
	github.com/docker/docker-credential-helpers v0.9.5 // indirect
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/sirupsen/logrus v1.10.2 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

// For builds here; others get the version above.
replace github.com/pullpass/pullpass => ../..
