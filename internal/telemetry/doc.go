// Package telemetry sends traces and metrics to an OpenTelemetry collector, as the
// OTEL_* variables of the environment say. It is the only package that knows the
// OpenTelemetry SDK.
package telemetry
