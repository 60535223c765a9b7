module github.com/pullpass/pullpass/credential/containers

go 1.26.0

require (
	github.com/pullpass/pullpass v0.1.0
	go.podman.io/image/v5 v5.42.1
)

require (
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/opencontainers/image-spec v1.1.1 // indirect
	go.podman.io/storage v1.65.1 // indirect
)

// For builds here; others get the version above.
replace github.com/pullpass/pullpass => ../..
