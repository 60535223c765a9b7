// Package telemetry sends traces and metrics to an OpenTelemetry collector. The OTEL_* variables of
// the environment configure it. Only this package uses the OpenTelemetry SDK.
package telemetry
