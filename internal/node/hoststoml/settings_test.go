package hoststoml

import "testing"

func TestSettings(t *testing.T) {
	t.Parallel()
	const (
		registry = "[plugins.'io.containerd.cri.v1.images'.registry]\n"
		list     = registry + "config_path = '/a:/b'\n"
		transfer = "[plugins.'io.containerd.transfer.v1.local']\n  config_path = '/elsewhere'\n"
	)
	for _, test := range []struct {
		name, content string
		want          Settings
		unread        bool
	}{
		{"nothing", "version = 3\n", Settings{}, false},
		{"one directory", registry + "  config_path = \"/a\" # here\n", Settings{ConfigPath: "/a"}, false},
		{"one directory, containerd 1", "[plugins]\n  [ plugins.\"io.containerd.grpc.v1.cri\".registry ] # x\n  config_path = '/a'\n", Settings{ConfigPath: "/a"}, false},
		{"one directory, the first version", "[plugins.cri.registry]\nconfig_path = '/a'\n", Settings{ConfigPath: "/a"}, false},
		{"that of the transfer service", registry + "config_path = '/a'\n" + transfer, Settings{ConfigPath: "/a"}, false},
		{"that of the transfer service alone", transfer, Settings{}, false},
		{"that of a table below", registry + "[plugins.'io.containerd.cri.v1.images'.registry.headers]\nconfig_path = '/a'\n", Settings{}, false},
		{"not set", registry + "#config_path = \"/x\"\n  # config_path = \"/x\"\nconfig_path = \"\"\n", Settings{}, false},
		{"a list", list, Settings{ConfigPath: "/a:/b"}, true},
		{"a list, as containerd config default", list + "discard_unpacked_layers = false\nuse_local_image_pull = false\n", Settings{"/a:/b", "false", "false"}, true},
		{"a list, as EKS", "discard_unpacked_layers = true\n" + list, Settings{"/a:/b", "true", ""}, false},
		{"a list, pulled by itself", list + "use_local_image_pull=true # so\n", Settings{"/a:/b", "", "true"}, false},
		{"a list of lines", registry + "config_path = [\n", Settings{}, false},
	} {
		got := ParseSettings([]byte(test.content))
		if got != test.want || got.IsUnread() != test.unread {
			t.Errorf("%s: %+v, %v", test.name, got, got.IsUnread())
		}
	}
	if got := ParseSettings([]byte(list), []byte(registry+"config_path = \"/c\"\n")); got.ConfigPath != "/c" || got.Dir() != "/c" {
		t.Errorf("the last: %+v", got)
	}
	if got := ParseSettings([]byte(list), []byte(registry+"config_path = ''\n")); got.ConfigPath != "" {
		t.Errorf("the last takes it away: %+v", got)
	}
}
