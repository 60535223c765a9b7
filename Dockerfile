# The service, and nothing else: no shell, no packages. "make image" builds the same without an engine.
ARG GO_IMAGE=golang:1.26.8

# It compiles on the machine's own architecture for any other: nothing is emulated.
FROM --platform=$BUILDPLATFORM $GO_IMAGE AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ENV CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false"
ARG TARGETARCH

FROM build AS pullpass
ARG VERSION=devel
ARG SOURCE_DATE_EPOCH=0
RUN --mount=type=cache,target=/root/.cache/go-build \
    mkdir -p /image/etc/ssl/certs && \
    go run ./deploy/image/roots >/image/etc/ssl/certs/ca-certificates.crt && \
    GOARCH=$TARGETARCH go build -ldflags "-s -w -X main.version=$VERSION" -o /image/pullpass ./cmd/proxy && \
    find /image -exec touch -d "@$SOURCE_DATE_EPOCH" {} +

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
