# The service, the kubelet's plugin, and nothing else: no shell, no packages. "make image" builds the same without an engine.
ARG GO_IMAGE=golang:1.26.8

# It compiles on the machine's own architecture for any other: nothing is emulated.
FROM --platform=$BUILDPLATFORM $GO_IMAGE AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ENV CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false"
ARG TARGETARCH

# The cache is locked: of two builds at once, the second one finds what the first one has compiled.
FROM build AS pullpass
ARG VERSION=devel
ARG SOURCE_DATE_EPOCH=0
RUN --mount=type=cache,target=/root/.cache/go-build,sharing=locked \
    mkdir -p /image/etc/ssl/certs && \
    go run ./deploy/image/roots >/image/etc/ssl/certs/ca-certificates.crt && \
    GOARCH=$TARGETARCH go build -ldflags "-s -w -X main.version=$VERSION" -o /image/pullpass ./cmd/proxy && \
    GOARCH=$TARGETARCH go build -ldflags "-s -w -X main.version=$VERSION" -o /image/pullpass-credential-provider ./cmd/credential-provider && \
    find /image -exec touch -d "@$SOURCE_DATE_EPOCH" {} +

# What docker-compose.yaml needs beside the service: a cluster's issuer, and directories for what it makes.
FROM build AS build-demo
RUN --mount=type=cache,target=/root/.cache/go-build,sharing=locked \
    mkdir /image && mkdir -m 0700 /image/cluster /image/servers /image/signing-keys && \
    GOARCH=$TARGETARCH go build -ldflags "-s -w" -o /image/demo ./cmd/demo

FROM scratch AS demo
COPY --from=build-demo --chown=65532:65532 /image /
USER 65532:65532
ENTRYPOINT ["/demo"]

FROM scratch
ARG VERSION=devel
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Pullpass" \
      org.opencontainers.image.description="Kubernetes pods pull images with their own ServiceAccount" \
      org.opencontainers.image.source="https://github.com/pullpass/pullpass" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
COPY --from=pullpass /image /
USER 65532:65532
EXPOSE 8443
ENTRYPOINT ["/pullpass"]
CMD ["serve", "--config", "/etc/pullpass/pullpass.yaml"]
