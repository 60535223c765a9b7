package nodeinstall

var bottlerocket = guide{
	name: "bottlerocket",
	text: `# Bottlerocket: not possible. settings.kubernetes.credential-providers has no tokenAttributes, so the plugin
# would get no token, and plugins come with the image, which is read-only.
# Use images of AL2023 for nodes that pull through Pullpass, or imagePullSecrets.
`,
}
