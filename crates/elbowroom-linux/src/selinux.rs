//! SELinux, as far as what is mounted into containers needs it.
//!
//! A new file of a tmpfs has a type that follows from the program that makes it, and no container may map that. What containers may read
//! and map has the type that the policy's `lxc_contexts` (selinux_lxc_contexts_path(3)) names for programs that make containers. FUSE's own
//! type (`fusefs_t`) they may read.

use crate::bounded;
use std::path::Path;

const ENFORCE: &str = "/sys/fs/selinux/enforce";
/// The kernel takes here only what its policy has (security/selinux/selinuxfs.c `sel_write_context`).
const CONTEXT: &str = "/sys/fs/selinux/context";
const CONFIG_DIR: &str = "/etc/selinux";
const MAX_CONFIG_BYTES: u64 = 64 << 10;

/// Whether SELinux enforces its policy; `None`: it is not there, or its file system is not mounted.
pub fn is_enforcing() -> Option<bool> {
    let text = bounded::file_text(ENFORCE, MAX_CONFIG_BYTES).ok()?;
    Some(text.trim() == "1")
}

/// The label of files that every container may read and none may write; `None` without SELinux, and where its policy has none.
pub fn container_content() -> Option<String> {
    is_enforcing()?;
    let label = configured_content(Path::new(CONFIG_DIR))?;
    std::fs::write(CONTEXT, &label).ok()?;
    Some(label)
}

/// What the configuration in `dir` says.
fn configured_content(dir: &Path) -> Option<String> {
    let config = bounded::file_text(dir.join("config"), MAX_CONFIG_BYTES).ok()?;
    let contexts = dir.join(value(&config, "SELINUXTYPE")?).join("contexts/lxc_contexts");
    let contexts = bounded::file_text(contexts, MAX_CONFIG_BYTES).ok()?;
    let label = value(&contexts, "ro_file").or_else(|| value(&contexts, "file"))?;
    // It becomes part of a list of mount options.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_:.-".contains(c);
    label.chars().all(is_plain).then(|| label.to_owned())
}

/// The value in a line of `key = "value"`, with quotes or without.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Debian 13's `selinux-policy-default`.
    const CONTEXTS: &str = "process = \"system_u:system_r:container_t:s0\"\n\
        content = \"system_u:object_r:virt_var_lib_t:s0\"\n\
        file = \"system_u:object_r:container_file_t:s0\"\n\
        ro_file = \"system_u:object_r:container_ro_file_t:s0\"\n\
        sandbox_lxc_process = \"system_u:system_r:container_t:s0\"\n";

    fn configured(config: &str, contexts: &str) -> Option<String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("default/contexts")).unwrap();
        std::fs::write(dir.path().join("config"), config).unwrap();
        std::fs::write(dir.path().join("default/contexts/lxc_contexts"), contexts).unwrap();
        configured_content(dir.path())
    }

    #[test]
    fn the_label_is_what_programs_that_make_containers_give_to_what_is_only_read() {
        let config = "# comment\nSELINUX=enforcing\nSELINUXTYPE=default\n";
        let ro = Some("system_u:object_r:container_ro_file_t:s0".to_owned());
        assert_eq!(configured(config, CONTEXTS), ro);
        let older = CONTEXTS.replace("ro_file", "none");
        assert_eq!(configured(config, &older), Some("system_u:object_r:container_file_t:s0".to_owned()));
    }

    #[test]
    fn without_a_policy_of_containers_there_is_none() {
        assert_eq!(configured("SELINUXTYPE=default\n", "process = \"a:b:c\"\n"), None);
        assert_eq!(configured("SELINUXTYPE=other\n", CONTEXTS), None);
        assert_eq!(configured("", CONTEXTS), None);
        assert_eq!(configured("SELINUXTYPE=default\n", "file = \"a:b:c:s0,size=9\"\n"), None);
    }
}
