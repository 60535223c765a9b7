{{- define "pullpass.program" -}}
{{ .Values.nameOverride | default "pullpass" }}
{{- end }}

{{- /* The prefix of object names. With 40 characters, the longest name is still a valid label. */}}
{{- define "pullpass.name" -}}
{{- $program := include "pullpass.program" . -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride }}
{{- else if contains $program .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" (.Release.Name | trunc (sub 39 (len $program) | int) | trimSuffix "-") $program }}
{{- end -}}
{{- end }}

{{- /* The prefix of names of cluster-scoped objects. A namespace has no dot, so no two releases have the same prefix. */}}
{{- define "pullpass.clusterName" -}}
{{ .Release.Namespace }}.{{ include "pullpass.name" . }}
{{- end }}

{{- define "pullpass.selector" -}}
app.kubernetes.io/name: {{ include "pullpass.program" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "pullpass.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{ include "pullpass.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* An object of a file of the chart, with the labels of the administrator. */}}
{{- define "pullpass.fileObject" -}}
{{- if .root.Values.commonLabels -}}
{{- $object := fromYaml .text -}}
{{- $_ := set $object.metadata "labels" (merge ($object.metadata.labels | default dict) .root.Values.commonLabels) -}}
{{ toYaml $object }}
{{- else -}}
{{ .text }}
{{- end -}}
{{- end }}

{{- define "pullpass.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "pullpass.servingSecret" -}}
{{ .Values.serving.secretName | default (printf "%s-serving" (include "pullpass.name" .)) }}
{{- end }}

{{- define "pullpass.signingSecret" -}}
{{ .Values.signing.secretName | default (printf "%s-signing" (include "pullpass.name" .)) }}
{{- end }}

{{- define "pullpass.gatewaySigningSecret" -}}
{{ .Values.gateway.signing.secretName | default (printf "%s-gateway-signing" (include "pullpass.name" .)) }}
{{- end }}

{{- /* The Secret with the gateway's own certificate; empty: the gateway uses that of serving. */}}
{{- define "pullpass.gatewayServingSecret" -}}
{{- if .Values.config.gateway -}}
{{- if or .Values.gateway.serving.certManager.enabled .Values.gateway.serving.externalSecret.enabled -}}
{{ .Values.gateway.serving.secretName | default (printf "%s-gateway-serving" (include "pullpass.name" .)) }}
{{- else -}}
{{ .Values.gateway.serving.secretName }}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* The host name of the gateway; empty: there is no gateway. */}}
{{- define "pullpass.gatewayHost" -}}
{{- with .Values.config.gateway -}}{{- (urlParse .url).hostname -}}{{- end -}}
{{- end }}

{{- /* The fields of a Certificate for these names. X.509 has addresses in entries of their own. */}}
{{- define "pullpass.certificateNames" -}}
{{- $fields := dict -}}
{{- range . -}}
{{- $field := ternary "ipAddresses" "dnsNames" (regexMatch "^[0-9.]+$|:" .) -}}
{{- $_ := set $fields $field (append (get $fields $field | default list) .) -}}
{{- end -}}
{{- toYaml $fields -}}
{{- end }}

{{- /* The ConfigMap with the CA that the chart makes, for containerd; empty: there is none. */}}
{{- define "pullpass.publishedCA" -}}
{{- if and .Values.certificates.create .Values.nodes.install.enabled (not .Values.nodes.install.caFile) -}}pullpass-serving-ca{{- end -}}
{{- end }}

{{- define "pullpass.accountDir" -}}
/var/run/secrets/kubernetes.io/serviceaccount
{{- end }}

{{- /* Not empty when Pullpass calls the API server of the cluster that it runs in. */}}
{{- define "pullpass.callsAPI" -}}
{{- $dir := include "pullpass.accountDir" . -}}
{{- range .Values.config.clusters -}}
{{- $kubernetes := .kubernetes | default dict -}}
{{- $discovery := .discovery | default dict -}}
{{- if or $kubernetes.inCluster (hasPrefix $dir ($discovery.tokenFile | default "")) (hasPrefix $dir ($discovery.caFile | default "")) -}}
true
{{- end -}}
{{- end -}}
{{- end }}

{{- /* Not empty when Pullpass reads objects of the cluster that it runs in. */}}
{{- define "pullpass.inCluster" -}}
{{- range .Values.config.clusters -}}
{{- if (.kubernetes | default dict).inCluster -}}true{{- end -}}
{{- end -}}
{{- end }}

{{- /* Not empty when Pullpass reads policy from objects of the cluster that it runs in. */}}
{{- define "pullpass.objects" -}}
{{- range .Values.config.clusters -}}
{{- $kubernetes := .kubernetes | default dict -}}
{{- $objects := $kubernetes.objects | default dict -}}
{{- if and $kubernetes.inCluster (or $objects.policies $objects.requests) -}}true{{- end -}}
{{- end -}}
{{- end }}

{{- /* Not empty when Pullpass writes the status of these objects. */}}
{{- define "pullpass.objectStatus" -}}
{{- range .Values.config.clusters -}}
{{- $kubernetes := .kubernetes | default dict -}}
{{- if and $kubernetes.inCluster ($kubernetes.objects | default dict).status -}}true{{- end -}}
{{- end -}}
{{- end }}

{{- /* The audience of pull secrets in the cluster that Pullpass runs in; empty: there are none. */}}
{{- define "pullpass.pullAudience" -}}
{{- range .Values.config.clusters -}}
{{- if (.kubernetes | default dict).inCluster -}}{{ (.pullSecrets | default dict).audience | default "" }}{{- end -}}
{{- end -}}
{{- end }}

{{- /* An audience of tokens in the cluster that Pullpass runs in; empty: there is none. */}}
{{- define "pullpass.testAudience" -}}
{{- range .Values.config.clusters -}}
{{- if (.kubernetes | default dict).inCluster -}}{{- with .audiences -}}{{ first . }}{{- end -}}{{- end -}}
{{- end -}}
{{- end }}

{{- /* The registries that sign with the key of signing, as a list in JSON. The gateway has a key of its own. */}}
{{- define "pullpass.signed" -}}
{{- $signed := list -}}
{{- range .Values.config.registries -}}
{{- $signing := .signing | default dict -}}
{{- if not (or $signing.keyFile $signing.certFile (eq .service (($.Values.config.gateway | default dict).service | default ""))) -}}
{{- $signed = append $signed . -}}
{{- end -}}
{{- end -}}
{{- toJson $signed -}}
{{- end }}

{{- /* Likewise, with the key of gateway.signing: one, or none. */}}
{{- define "pullpass.gatewaySigned" -}}
{{- $signed := list -}}
{{- range .Values.config.registries -}}
{{- $signing := .signing | default dict -}}
{{- if and (eq .service (($.Values.config.gateway | default dict).service | default "")) (not (or $signing.keyFile $signing.certFile)) -}}
{{- $signed = append $signed . -}}
{{- end -}}
{{- end -}}
{{- toJson $signed -}}
{{- end }}

{{- /* The kind of key that is made for a list of registries. */}}
{{- define "pullpass.signingAlgorithm" -}}
{{- $algorithms := list -}}
{{- range . -}}
{{- $algorithms = append $algorithms ((.signing | default dict).algorithm | default "ES256") -}}
{{- end -}}
{{- $algorithms = uniq $algorithms -}}
{{- if gt (len $algorithms) 1 -}}
{{- fail (printf "signing.certManager, certificates.create: config.registries have several algorithms (%s), and one key is made; give the others a keyFile of their own" (join ", " $algorithms)) -}}
{{- end -}}
{{- first $algorithms -}}
{{- end }}

{{- /* Checks that the schema cannot express. */}}
{{- define "pullpass.check" -}}
{{- range list "apiVersion" "kind" -}}
{{- if hasKey $.Values.config . -}}{{- fail (printf "config.%s: the chart sets it; remove it" .) -}}{{- end -}}
{{- end -}}
{{- if and .Values.config.gateway (eq (include "pullpass.signingSecret" .) (include "pullpass.gatewaySigningSecret" .)) -}}
{{- fail (printf "gateway.signing.secretName: %s is that of signing as well; give the gateway a key of its own" (include "pullpass.signingSecret" .)) -}}
{{- end -}}
{{- if hasKey .Values.config "policyFiles" -}}{{- fail "config.policyFiles: the chart sets it; use policy" -}}{{- end -}}
{{- if hasKey .Values.config "audit" -}}{{- fail "config.audit: a pod keeps no files; the audit log is its standard output" -}}{{- end -}}
{{- $server := .Values.config.server | default dict -}}
{{- if hasKey $server "address" -}}{{- fail "config.server.address: the chart sets it; use ports.public" -}}{{- end -}}
{{- if hasKey $server "shutdownDelay" -}}{{- fail "config.server.shutdownDelay: the chart sets it; use shutdownDelay" -}}{{- end -}}
{{- range list "certFile" "keyFile" -}}
{{- if hasKey ($server.tls | default dict) . -}}{{- fail (printf "config.server.tls.%s: the chart sets it; use serving" .) -}}{{- end -}}
{{- end -}}
{{- $gateway := .Values.config.gateway | default dict -}}
{{- if hasKey $gateway "address" -}}{{- fail "config.gateway.address: the chart sets it; use ports.gateway" -}}{{- end -}}
{{- if hasKey $gateway "tls" -}}{{- fail "config.gateway.tls: the chart sets it; use gateway.serving" -}}{{- end -}}
{{- if and .Values.gateway.serving.certManager.enabled (not (or .Values.gateway.serving.certManager.issuerRef .Values.serving.certManager.issuerRef)) -}}
{{- fail "gateway.serving.certManager.issuerRef: is missing; name the issuer that nodes trust" -}}
{{- end -}}
{{- range $path, $pair := dict "serving" (list .Values.serving.externalSecret .Values.serving.certManager) "signing" (list .Values.signing.externalSecret .Values.signing.certManager) "gateway.serving" (list .Values.gateway.serving.externalSecret .Values.gateway.serving.certManager) "gateway.signing" (list .Values.gateway.signing.externalSecret .Values.signing.certManager) -}}
{{- if and (first $pair).enabled (last $pair).enabled -}}
{{- fail (printf "%s.externalSecret.enabled: certManager creates the same Secret; choose one of them" $path) -}}
{{- end -}}
{{- end -}}
{{- with .Values.signing.trustBundle -}}
{{- if and .enabled (not (or .caFile $.Values.signing.certManager.enabled)) -}}{{- fail "signing.trustBundle.caFile: is empty; name the entry of files with the CA of the signing key" -}}{{- end -}}
{{- if and .enabled .caFile (not (hasKey $.Values.files .caFile)) -}}{{- fail (printf "signing.trustBundle.caFile: %s is not in files" .caFile) -}}{{- end -}}
{{- end -}}
{{- with .Values.config.assertions -}}
{{- if not .keyFile -}}{{- fail "config.assertions.keyFile: is missing; a pod keeps no keys, so put an RSA key into a Secret and name it: secrets" -}}{{- end -}}
{{- end -}}
{{- if hasKey (.Values.config.admin | default dict) "address" -}}{{- fail "config.admin.address: the chart sets it; use ports.admin" -}}{{- end -}}
{{- range .Values.config.registries -}}
{{- $signing := .signing | default dict -}}
{{- if $signing.managedDir -}}
{{- fail (printf "config.registries: signing.managedDir of %s: a pod keeps no keys; use signing" .service) -}}
{{- end -}}
{{- end -}}
{{- if or .Values.signing.certManager.enabled .Values.certificates.create -}}
{{- range concat (include "pullpass.signed" . | fromJsonArray) (include "pullpass.gatewaySigned" . | fromJsonArray) -}}
{{- if eq ((.signing | default dict).trust | default "") "jwks" -}}
{{- if $.Values.certificates.create -}}
{{- fail (printf "certificates.create: %s has trust jwks, and would not know the keys that are made; use trust certificate, or a Secret of your own" .service) -}}
{{- end -}}
{{- fail (printf "signing.certManager: %s has trust jwks, and would not know the keys that cert-manager makes; use trust certificate, or a Secret of your own" .service) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if .Values.certificates.create -}}
{{- range $value, $other := dict "serving" .Values.serving "signing" .Values.signing "gateway.serving" .Values.gateway.serving "gateway.signing" .Values.gateway.signing -}}
{{- if or $other.secretName $other.externalSecret.enabled ($other.certManager | default dict).enabled -}}
{{- fail (printf "certificates.create: %s has a certificate from elsewhere; remove one of the two" $value) -}}
{{- end -}}
{{- end -}}
{{- if not (concat .Values.certificates.names (list (include "pullpass.gatewayHost" .)) | compact) -}}
{{- fail "certificates.names: is empty; list the names and addresses under which nodes reach the token endpoint" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.hostNetwork .Values.networkPolicy.enabled -}}
{{- fail "networkPolicy.enabled: has no effect on pods in the nodes' network; write false, and keep others away from ports.public and ports.admin yourself" -}}
{{- end -}}
{{- if and .Values.monitoring.serviceMonitor.enabled .Values.monitoring.podMonitor.enabled -}}
{{- fail "monitoring.podMonitor.enabled: monitoring.serviceMonitor is enabled, too, and each metric would be there twice; choose one" -}}
{{- end -}}
{{- if and (or .Values.monitoring.serviceMonitor.enabled .Values.monitoring.podMonitor.enabled) .Values.networkPolicy.enabled (not .Values.networkPolicy.metricsFrom) -}}
{{- fail "networkPolicy.metricsFrom: is empty, and Prometheus could not read metrics; name its namespace" -}}
{{- end -}}
{{- with .Values.nodes.install -}}
{{- if .enabled -}}
{{- if eq .namespace $.Release.Namespace -}}{{- fail "nodes.install.namespace: is that of the release; whoever may make pods there would be root on every node, so name another one" -}}{{- end -}}
{{- if not (or $.Values.image.digest (eq $.Values.image.pullPolicy "Never")) -}}{{- fail "image.digest: is missing; nodes.install runs the image as root on every node, and a tag may be another image tomorrow" -}}{{- end -}}
{{- if eq (empty .registry) (empty .mirrors) -}}{{- fail "nodes.install: needs one of registry and mirrors" -}}{{- end -}}
{{- if and .taint (not .probe.image) -}}{{- fail "nodes.install.probe.image: is missing; with nodes.install.taint, a pull has to work before pods come" -}}{{- end -}}
{{- if and .caFile (not (hasKey $.Values.files .caFile)) -}}{{- fail (printf "nodes.install.caFile: %s is not in files" .caFile) -}}{{- end -}}
{{- $clusters := list -}}
{{- range $.Values.config.clusters }}{{ $clusters = append $clusters .name }}{{ end -}}
{{- if and .cluster (not (has .cluster $clusters)) -}}{{- fail (printf "nodes.install.cluster: %s is not in config.clusters; write one of their names (%s)" .cluster (join ", " $clusters)) -}}{{- end -}}
{{- $services := list -}}
{{- range $.Values.config.registries }}{{ $services = append $services .service }}{{ end -}}
{{- if and .service (not (has .service $services)) -}}{{- fail (printf "nodes.install.service: %s is not in config.registries; write one of their services (%s)" .service (join ", " $services)) -}}{{- end -}}
{{- $upstreams := list -}}
{{- range $.Values.config.upstreams }}{{ $upstreams = append $upstreams .name }}{{ end -}}
{{- if and (has .registry $upstreams) (not (has .registry $services)) -}}{{- fail (printf "nodes.install.registry: %s is in config.upstreams, and its own token endpoint would be sent the pods' tokens; use mirrors" .registry) -}}{{- end -}}
{{- range .mirrors -}}
{{- if not (and $.Values.config.gateway (has . $upstreams)) -}}{{- fail (printf "nodes.install.mirrors: %s is not in config.upstreams, beside a config.gateway; add it there" .) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.pullSecrets.enabled (not (include "pullpass.pullAudience" .)) -}}
{{- fail "pullSecrets.enabled: no cluster of config.clusters with kubernetes.inCluster has pullSecrets.audience: docs/how-to/pull-secrets.md" -}}
{{- end -}}
{{- /* The audience becomes a string of CEL, in a string of YAML. */}}
{{- if and .Values.pullSecrets.enabled (not (regexMatch "^[^\\s[:cntrl:]\"'\\\\]+$" (include "pullpass.pullAudience" .))) -}}
{{- fail (printf "config.clusters: pullSecrets.audience %q has a quotation mark, a backslash or a space, and would change the policy that limits the controller; choose another audience" (include "pullpass.pullAudience" .)) -}}
{{- end -}}
{{- if and .Values.pullSecrets.enabled (eq (include "pullpass.name" .) "pullpass-pull-secrets") -}}
{{- fail "fullnameOverride: pullpass-pull-secrets is the name of the pull secrets controller; choose another name for the release" -}}
{{- end -}}
{{- if and .Values.service.tlsRoute.enabled (not (or .Values.service.tlsRoute.hostnames .Values.serving.certManager.enabled)) -}}
{{- fail "service.tlsRoute.hostnames: is empty; name the hosts of the certificate" -}}
{{- end -}}
{{- if and .Values.gateway.service.tlsRoute.enabled (not .Values.config.gateway) -}}
{{- fail "gateway.service.tlsRoute.enabled: there is no config.gateway to route to" -}}
{{- end -}}
{{- if .Values.test.enabled -}}
{{- if not (include "pullpass.testAudience" .) -}}{{- fail "test.enabled: no cluster of config.clusters with kubernetes.inCluster has audiences; the test would have no token" -}}{{- end -}}
{{- range .Values.config.clusters -}}
{{- if and (.kubernetes | default dict).inCluster (eq (((.node | default dict).proof | default dict).mode | default "") "enforce") -}}
{{- fail (printf "test.enabled: %s has node.proof.mode enforce, and the test is not a node" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $path, $labels := dict "podLabels" .Values.podLabels "monitoring.serviceMonitor.labels" .Values.monitoring.serviceMonitor.labels "monitoring.podMonitor.labels" .Values.monitoring.podMonitor.labels "monitoring.prometheusRule.labels" .Values.monitoring.prometheusRule.labels "monitoring.dashboard.labels" .Values.monitoring.dashboard.labels -}}
{{- range $label, $_ := $labels -}}
{{- if hasKey $.Values.commonLabels $label -}}{{- fail (printf "commonLabels: %s is in %s, too; remove one of them" $label $path) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $volumes := list -}}
{{- range .Values.extraVolumes }}{{ $volumes = append $volumes .name }}{{ end -}}
{{- range $i, $_ := .Values.extraVolumeMounts -}}
{{- if not (has .name $volumes) -}}{{- fail (printf "extraVolumeMounts[%d].name: %s is not in extraVolumes" $i .name) -}}{{- end -}}
{{- $path := .mountPath -}}
{{- range list "/etc/pullpass" (include "pullpass.accountDir" $) -}}
{{- if hasPrefix (printf "%s/" .) (printf "%s/" (clean $path)) -}}
{{- fail (printf "extraVolumeMounts[%d].mountPath: %s is in %s, which the chart fills; choose another directory" $i $path .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (gt (int .Values.replicas) (int .Values.autoscaling.maxReplicas)) -}}
{{- fail "autoscaling.maxReplicas: is less than replicas" -}}
{{- end -}}
{{- end }}

{{- /* In the node's network, health and metrics are reachable only with a ServiceMonitor or a PodMonitor. */}}
{{- define "pullpass.adminHost" -}}
{{- if and .Values.hostNetwork (not (or .Values.monitoring.serviceMonitor.enabled .Values.monitoring.podMonitor.enabled)) -}}127.0.0.1{{- end -}}
{{- end }}

{{- define "pullpass.config" -}}
{{- include "pullpass.check" . -}}
{{- $config := deepCopy .Values.config -}}
{{- $_ := set $config "apiVersion" "pullpass.dev/v1beta1" -}}
{{- $_ := set $config "kind" "ProxyConfiguration" -}}
{{- $_ := set $config "server" (mergeOverwrite ($config.server | default dict) (dict
      "address" (printf ":%d" (int .Values.ports.public))
      "shutdownDelay" (printf "%ds" (int .Values.shutdownDelay))
      "tls" (dict "certFile" "/etc/pullpass/serving/tls.crt" "keyFile" "/etc/pullpass/serving/tls.key"))) -}}
{{- $_ := set $config "admin" (mergeOverwrite ($config.admin | default dict) (dict
      "address" (printf "%s:%d" (include "pullpass.adminHost" .) (int .Values.ports.admin)))) -}}
{{- with $config.gateway -}}
{{- $_ := set . "address" (printf ":%d" (int $.Values.ports.gateway)) -}}
{{- if include "pullpass.gatewayServingSecret" $ -}}
{{- $_ := set . "tls" (dict "certFile" "/etc/pullpass/gateway-serving/tls.crt" "keyFile" "/etc/pullpass/gateway-serving/tls.key") -}}
{{- end -}}
{{- end -}}
{{- $certManager := .Values.signing.certManager.enabled -}}
{{- $gatewayService := ($config.gateway | default dict).service | default "" -}}
{{- range $config.registries -}}
{{- $signing := .signing | default dict -}}
{{- if not (or $signing.keyFile $signing.certFile) -}}
{{- $directory := ternary "gateway-signing" "signing" (eq .service $gatewayService) -}}
{{- $_ := set $signing "keyFile" (printf "/etc/pullpass/%s/tls.key" $directory) -}}
{{- if ne ($signing.trust | default "certificate") "jwks" -}}
{{- $_ := set $signing "certFile" (printf "/etc/pullpass/%s/tls.crt" $directory) -}}
{{- if and $certManager (not $signing.caFile) -}}
{{- $_ := set $signing "caFile" (printf "/etc/pullpass/%s/ca.crt" $directory) -}}
{{- end -}}
{{- end -}}
{{- $_ := set . "signing" $signing -}}
{{- end -}}
{{- end -}}
{{- $_ := set $config "policyFiles" (list "policy.yaml") -}}
{{- toYaml $config -}}
{{- end }}

{{- define "pullpass.data" -}}
pullpass.yaml: |
  {{- include "pullpass.config" . | nindent 2 }}
policy.yaml: |
  {{- toYaml (mergeOverwrite (deepCopy .Values.policy) (dict "apiVersion" "pullpass.dev/v1beta1" "kind" "AccessPolicy")) | nindent 2 }}
{{- end }}

{{- /* The pod fields that the program and the check before an upgrade share. */}}
{{- define "pullpass.podSpec" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- toYaml . | nindent 0 }}
{{- end }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- if .Values.hostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
{{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{- define "pullpass.container" -}}
image: {{ include "pullpass.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
resources:
{{- toYaml .Values.resources | nindent 2 }}
{{- end }}

{{- /* A job of `pullpass` with a ServiceAccount of its own. */}}
{{- define "pullpass.job" }}
{{- $root := .root -}}
backoffLimit: 6
template:
  metadata:
    labels:
      app.kubernetes.io/name: pullpass-{{ .name }}
      app.kubernetes.io/instance: {{ $root.Release.Name }}
      {{- with $root.Values.commonLabels }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
  spec:
    {{- include "pullpass.podSpec" $root | trim | nindent 4 }}
    serviceAccountName: {{ include "pullpass.name" $root }}-{{ .name }}
    restartPolicy: OnFailure
    containers:
    - name: {{ .name }}
      {{- include "pullpass.container" $root | nindent 6 }}
      args:
      {{- toYaml .arguments | nindent 6 }}
      volumeMounts:
      - {name: account, mountPath: {{ include "pullpass.accountDir" $root }}, readOnly: true}
    volumes:
    - name: account
      projected:
        defaultMode: 0440
        sources:
        - serviceAccountToken: {path: token, expirationSeconds: 3600}
        - configMap:
            name: kube-root-ca.crt
            items: [{key: ca.crt, path: ca.crt}]
{{- end }}
