//! The few lines of configuration that decide what a program asks.

use super::evidence::{JavaRelease, ServerSetting};

/// A Java runtime's `release` file; `None` for any other file of that name.
pub(crate) fn java_release(text: &str) -> Option<JavaRelease> {
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
        Some(quotable(line.trim().trim_matches('"')))
    };
    Some(JavaRelease { version: value("JAVA_VERSION")?, implementor: value("IMPLEMENTOR") })
}

/// `worker_processes` of an nginx.conf; the last counts, and a file without it is one that says so.
pub fn nginx(text: &str) -> ServerSetting {
    let statements = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let statements: String = statements.collect::<Vec<_>>().join(" ");
    let value = statements
        .split([';', '{', '}'])
        .filter_map(|statement| statement.trim().strip_prefix("worker_processes"))
        .rfind(|rest| rest.starts_with(char::is_whitespace));
    server_setting("nginx", "worker_processes", value.unwrap_or_default().trim())
}

/// `processes` or `workers` of a uWSGI ini file; `None` for any other ini file.
pub fn uwsgi(text: &str) -> Option<ServerSetting> {
    let mut ours = false;
    let mut value = None;
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            ours = line == "[uwsgi]";
        } else if let (true, Some((key, rest))) = (ours, line.split_once('='))
            && matches!(key.trim(), "processes" | "workers")
        {
            value = Some(server_setting("uwsgi", "processes", rest.trim()));
        }
    }
    value
}

/// `thread_handling` of a MariaDB option file; `None` where it is not set.
pub fn mariadb(text: &str) -> Option<ServerSetting> {
    let mut lines = text.lines().filter_map(|line| line.trim().split_once('='));
    let value = lines.rfind(|(key, _)| key.trim().replace('-', "_") == "thread_handling")?.1;
    Some(server_setting("mariadb", "thread_handling", value.trim()))
}

fn server_setting(program: &str, key: &str, value: &str) -> ServerSetting {
    ServerSetting { program: program.to_owned(), key: key.to_owned(), value: quotable(value) }
}

/// A value as findings quote it, of which there may be many. No honest image has a longer one.
fn quotable(value: &str) -> String {
    value.chars().filter(|c| !c.is_control()).take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_file_says_its_version() {
        let release =
            java_release("IMPLEMENTOR=\"Debian\"\nJAVA_VERSION=\"17.0.15\"\nJAVA_VERSION_DATE=\"x\"\n");
        assert_eq!(release.as_ref().map(|r| r.version.as_str()), Some("17.0.15"));
        assert_eq!(release.and_then(|r| r.implementor).as_deref(), Some("Debian"));
        assert_eq!(java_release("Debian GNU/Linux 12\n"), None);
        let long = java_release(&format!("JAVA_VERSION={}\n", "1".repeat(1_000)));
        assert_eq!(long.map(|release| release.version.len()), Some(60));
    }

    #[test]
    fn worker_processes_is_the_last_statement_of_that_name() {
        for (text, expect) in [
            ("user www;\nworker_processes auto;\nevents {}\n", "auto"),
            ("# worker_processes auto;\nworker_processes  4;", "4"),
            ("worker_processes\n  auto;", "auto"),
            ("events { worker_connections 768; }", ""),
            ("worker_processes_x auto;", ""),
        ] {
            assert_eq!(nginx(text).value, expect, "{text}");
        }
    }

    #[test]
    fn thread_handling_is_spelled_in_two_ways() {
        for text in
            ["[mariadb]\nthread_handling = pool-of-threads\n", "[mysqld]\nthread-handling=pool-of-threads"]
        {
            assert_eq!(mariadb(text).map(|s| s.value).as_deref(), Some("pool-of-threads"));
        }
        assert_eq!(mariadb("#thread_handling=x\n[mysqld]\n"), None);
    }

    #[test]
    fn uwsgi_counts_only_in_its_own_section() {
        assert_eq!(uwsgi("[uwsgi]\nprocesses = %k\n").map(|s| s.value).as_deref(), Some("%k"));
        assert_eq!(uwsgi("[other]\nprocesses = %k\n"), None);
        assert_eq!(uwsgi("[uwsgi]\nsocket = :1\n"), None);
    }
}
