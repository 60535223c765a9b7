package nodeinstall

var openShift = guide{
	name: "openshift",
	text: `# OpenShift 4.21 or later: /usr is read-only and the Machine Config Operator owns /etc. A MachineConfig each for workers
# and control plane, with the plugin bind mounted as /usr/libexec/kubelet-image-credential-provider-plugins/{{.Plugin}}
# The operator restarts the nodes: at most maxUnavailable of their pool at a time.
{{- if .Gateway}}
# OpenShift itself adds lines to /etc/hosts, so no MachineConfig can have that file. Add these by a systemd unit with
# Before=crio.service kubelet.service, and not by a DaemonSet: pods pull before it. In the 6 seconds after a change of the file,
# the plugin gives no token.
{{- end}}
{{range .Hosts}}#
{{.}}{{end -}}
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 99-worker-pullpass
  labels: {machineconfiguration.openshift.io/role: worker}
spec:
  config:
    ignition: {version: 3.4.0}
    storage:
      files:
      - path: /etc/kubernetes/credential-providers/pullpass.yaml
        mode: 0644
        contents:
          source: "data:text/plain;charset=utf-8;base64,{{base64 .Provider}}"
`,
}
