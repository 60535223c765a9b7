module github.com/pullpass/pullpass/credential/oras

go 1.26.0

require (
	github.com/pullpass/pullpass v0.1.0
	oras.land/oras-go/v2 v2.6.4
)

require (
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/opencontainers/image-spec v1.1.1 // indirect
	golang.org/x/sync v0.24.0 // indirect
)

// For builds here; others get the version above.
replace github.com/pullpass/pullpass => ../..
