package main

import (
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/cluster/account"
	"github.com/pullpass/pullpass/internal/cluster/controller"
	"github.com/pullpass/pullpass/internal/cluster/kube"
)

func clusterCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "cluster",
		Short: "Give Pullpass an account in another cluster, and renew its token",
		Example: `  pullpass cluster add prod-us --kubeconfig ~/.kube/config --context prod-us --audience registry.example.com
  pullpass cluster renew --dir cluster-prod-us`,
	}
	command.AddCommand(clusterAddCommand(), clusterRenewCommand())
	return command
}

// clusterOptions are those of clusterAddCommand.
type clusterOptions struct {
	kubeconfig, context, dir, at, user, tokenFile string
	audiences                                     []string
}

func clusterAddCommand() *cobra.Command {
	var o clusterOptions
	command := &cobra.Command{
		Use:   "add NAME",
		Short: "Give Pullpass an account in another cluster, and print its configuration",
		Long: `Make the ServiceAccount pullpass-remote in the namespace pullpass of another cluster, with the
rights of deploy/kubernetes/rbac.yaml and that to renew its own token. Write a kubeconfig,
the API server's CA and a token of three days to a directory, and print the entry for
clusters of the configuration. The command can be repeated. It needs the rights of a
cluster's administrator. They are not kept.

With --user, nothing secret is written: the API server accepts tokens of Pullpass's own
cluster (AuthenticationConfiguration), which the kubelet renews. The user gets the same
rights.`,
		Example: `  pullpass cluster add prod-us --kubeconfig ~/.kube/config --context prod-us --audience registry.example.com
  pullpass cluster add prod-us --kubeconfig prod-us.kubeconfig --audience registry.example.com \
    --user pullpass:system:serviceaccount:pullpass:pullpass --token-file /var/run/secrets/prod-us/token`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return o.add(cmd, args[0]) },
	}
	flags := command.Flags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "an administrator's connection to the cluster (required)")
	flags.StringVar(&o.context, "context", "", "context of the kubeconfig (default: the current one)")
	flags.StringArrayVar(&o.audiences, "audience", nil, "audience of pods' tokens, as in clusters[].audiences; can be repeated (required)")
	flags.StringVar(&o.dir, "dir", "", "directory for the files (default: cluster-NAME)")
	flags.StringVar(&o.at, "at", "", "where Pullpass finds the files (default: /etc/pullpass/secrets/cluster-NAME, as the chart mounts a Secret)")
	flags.StringVar(&o.user, "user", "", "the user that has the rights, instead of a ServiceAccount of the cluster")
	flags.StringVar(&o.tokenFile, "token-file", "", "where Pullpass finds the token of --user")
	command.MarkFlagsRequiredTogether("user", "token-file")
	requireFlags(command, "kubeconfig", "audience")
	return command
}

var clusterTemplate = template.Must(template.New("").Funcs(printsJSON).Parse(`- name: {{json .Name}}
  issuer: {{json .Issuer}}
  audiences: {{json .Audiences}}
  discovery: # by the API server; a public issuer needs none of these lines
    jwksURL: {{json .JWKS}}
{{- if .CA}}
    caFile: {{json .CA}}
{{- end}}
    tokenFile: {{json .Token}}
  kubernetes: {kubeconfigFile: {{json .Kubeconfig}}}
`))

func (o *clusterOptions) add(cmd *cobra.Command, name string) error {
	if !names.IsLabel(name) {
		return fmt.Errorf("the cluster's name %s is not a DNS label: use at most 63 of a-z, 0-9 and -", term.QuoteValue(name))
	}
	secret := "cluster-" + name
	if o.dir == "" {
		o.dir = secret
	}
	if o.at == "" {
		o.at = "/etc/pullpass/secrets/" + secret
	}
	connection, err := kube.KubeconfigContext(o.kubeconfig, o.context)
	if err != nil {
		return err
	}
	c, err := account.New(connection)
	if err != nil {
		return err
	}
	issuer, err := c.Issuer(cmd.Context())
	if err != nil {
		return err
	}
	if err := c.Apply(cmd.Context(), o.user); err != nil {
		return err
	}
	var token account.Token
	if o.user == "" {
		if token, err = c.Token(cmd.Context()); err != nil {
			return err
		}
	}
	hasCA, err := c.Write(o.dir, name, o.tokenFile, token)
	if err != nil {
		return err
	}
	values := map[string]any{
		"Name": name, "Issuer": issuer, "Audiences": o.audiences, "JWKS": strings.TrimRight(connection.Host, "/") + "/openid/v1/jwks",
		"Token": path.Join(o.at, account.TokenFile), "Kubeconfig": path.Join(o.at, account.KubeconfigFile), "CA": "",
	}
	if o.tokenFile != "" {
		values["Token"] = o.tokenFile
	}
	if hasCA {
		values["CA"] = path.Join(o.at, account.CAFile)
	}
	if err := clusterTemplate.Execute(cmd.OutOrStdout(), values); err != nil {
		return err
	}
	return o.tellNext(cmd.ErrOrStderr(), secret, token)
}

// tellNext says what is left to do.
func (o *clusterOptions) tellNext(w io.Writer, secret string, token account.Token) error {
	fmt.Fprintf(w, "%s has the files of the account.", o.dir)
	if o.user == "" {
		fmt.Fprintf(w, " The token is valid until %s; renew it earlier.", token.Expires.UTC().Format(time.RFC3339))
	}
	value := "clusterSecrets"
	if o.user != "" {
		value = "secrets"
	}
	_, err := fmt.Fprintf(w, `
With the chart: kubectl create secret generic %s --namespace pullpass --from-file=%s
and add the Secret to %s, and the lines above to config.clusters.
Then try it: pullpass check --live --config pullpass.yaml
`, secret, o.dir, value)
	return err
}

func clusterRenewCommand() *cobra.Command {
	var dirs, secrets []string
	var kubeconfig, namespace string
	command := &cobra.Command{
		Use:   "renew",
		Short: "Renew tokens of accounts that cluster add made",
		Long: `Request a new token of three days with the present one, and write it in its place: in
directories of cluster add, or in Secrets made of them. Run it several times a day; the
chart does (clusterSecrets). Pullpass reads the new token by itself. A failure leaves the
other accounts renewed, and the exit code is 1.`,
		Example: `  pullpass cluster renew --dir cluster-prod-us --dir cluster-prod-ap
  pullpass cluster renew --namespace pullpass --secret cluster-prod-us`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(dirs) == 0 && len(secrets) == 0 {
				return errors.New("--dir, --secret: give at least one")
			}
			if len(secrets) > 0 && namespace == "" {
				return errors.New("--namespace: give the namespace of the Secrets")
			}
			var faults []error
			tell := func(name string, token account.Token, err error) {
				if err != nil {
					faults = append(faults, fmt.Errorf("%s: %w", name, err))
					return
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: a token until %s\n", name, token.Expires.UTC().Format(time.RFC3339))
			}
			for _, dir := range dirs {
				token, err := renewDir(cmd, dir)
				tell(dir, token, err)
			}
			if len(secrets) > 0 {
				home, err := controller.Connect(kubeconfig)
				if err != nil {
					return errors.Join(append(faults, err)...)
				}
				for _, name := range secrets {
					token, err := account.Renew(cmd.Context(), home, namespace, name)
					tell("secret "+name, token, err)
				}
			}
			return errors.Join(faults...)
		},
	}
	flags := command.Flags()
	flags.StringArrayVar(&dirs, "dir", nil, "directory of cluster add; can be repeated")
	flags.StringArrayVar(&secrets, "secret", nil, "Secret with the files of such a directory; can be repeated")
	flags.StringVar(&namespace, "namespace", "", "namespace of the Secrets")
	flags.StringVar(&kubeconfig, "kubeconfig", "", "connection to the cluster of the Secrets (default: that of the pod's ServiceAccount)")
	return command
}

func renewDir(cmd *cobra.Command, dir string) (account.Token, error) {
	connection, err := kube.Kubeconfig(filepath.Join(dir, account.KubeconfigFile))
	if err != nil {
		return account.Token{}, err
	}
	c, err := account.New(connection)
	if err != nil {
		return account.Token{}, err
	}
	token, err := c.Token(cmd.Context())
	if err != nil {
		return account.Token{}, err
	}
	return token, account.WriteToken(dir, token)
}
