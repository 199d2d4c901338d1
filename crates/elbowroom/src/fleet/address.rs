//! Where nodes are: `NAME=ADDRESS`, one by one, in a file, or all that a DNS name stands for.

use anyhow::{Context, Result, bail, ensure};
use elbowroom_linux::bounded;
use std::collections::BTreeSet;
use std::fmt;
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};

/// The port of the API where none is given.
const DEFAULT_PORT: u16 = 9273;
/// Longest list of nodes, in bytes: some hundred thousand lines.
const MAX_LIST_BYTES: u64 = 16 << 20;

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FleetNode {
    /// What people call it.
    pub(crate) name: String,
    /// How its agent is reached.
    pub(crate) address: NodeAddress,
}

/// How an agent is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeAddress {
    /// A unix socket.
    Unix(PathBuf),
    /// TCP, with or without TLS, to a host by name or address.
    Tcp { host: String, port: u16, tls: bool },
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp { host, port, tls } => {
                let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
                write!(f, "http{}://{host}:{port}", if *tls { "s" } else { "" })
            }
        }
    }
}

/// All nodes that are named: on the command line, in the file (`-` for standard input), and behind DNS names. A name that is there
/// twice is refused: numbers would be counted twice.
pub(crate) fn parse_nodes(words: &[String], file: Option<&Path>) -> Result<Vec<FleetNode>> {
    let mut nodes = Vec::new();
    for word in words {
        nodes.extend(parse_node(word)?);
    }
    if let Some(path) = file {
        for (n, line) in read_node_list(path)?.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                nodes
                    .extend(parse_node(line).with_context(|| format!("{}, line {}", path.display(), n + 1))?);
            }
        }
    }
    ensure!(
        !nodes.is_empty(),
        "no node was named: write for example `elbowroom fleet node1:9273 node2:9273`, or --nodes FILE"
    );
    let mut seen = BTreeSet::new();
    if let Some(twice) = nodes.iter().find(|node| !seen.insert(&node.name)) {
        bail!("{:?} is there twice: give each node a name of its own, NAME=ADDRESS", twice.name);
    }
    Ok(nodes)
}

fn read_node_list(path: &Path) -> Result<String> {
    let read = match path == Path::new("-") {
        true => bounded::text(std::io::stdin(), MAX_LIST_BYTES),
        false => bounded::file_text(path, MAX_LIST_BYTES),
    };
    read.with_context(|| format!("--nodes: {}", path.display()))
}

/// `[NAME=]ADDRESS`; one node, or as many as a DNS name stands for.
fn parse_node(word: &str) -> Result<Vec<FleetNode>> {
    let (name, address) = match word.split_once('=') {
        Some((name, address)) if !name.contains(['/', ':']) => (Some(name.trim()), address.trim()),
        _ => (None, word),
    };
    let malformed = || {
        format!(
            "{address:?} is no address of a node: write HOST:PORT, https://HOST:PORT, dns+https://NAME:PORT or a socket's path"
        )
    };
    ensure!(name.is_none_or(|name| !name.is_empty()), "{word:?}: the name before = is empty");
    if address.starts_with('/') {
        let path = PathBuf::from(address);
        return Ok(vec![FleetNode {
            name: name.unwrap_or(address).to_owned(),
            address: NodeAddress::Unix(path),
        }]);
    }
    let (dns, rest) = match address.strip_prefix("dns+") {
        Some(rest) => (true, rest),
        None => (false, address),
    };
    let (tls, rest) = match (rest.strip_prefix("https://"), rest.strip_prefix("http://")) {
        (Some(rest), _) => (true, rest),
        (_, Some(rest)) => (false, rest),
        _ => (false, rest),
    };
    let (host, port) = host_port(rest.strip_suffix('/').unwrap_or(rest)).with_context(malformed)?;
    if !dns {
        let name = name
            .map_or_else(|| if port == DEFAULT_PORT { host.clone() } else { rest.to_owned() }, str::to_owned);
        return Ok(vec![FleetNode { name, address: NodeAddress::Tcp { host, port, tls } }]);
    }
    ensure!(!tls, "{word:?}: certificates are of names, and dns+ finds addresses: name the nodes one by one");
    let found = (host.as_str(), port).to_socket_addrs().with_context(|| format!("looking up {host}"))?;
    let found: BTreeSet<String> = found.map(|found| found.ip().to_string()).collect();
    Ok(found
        .into_iter()
        .map(|ip| FleetNode { name: ip.clone(), address: NodeAddress::Tcp { host: ip, port, tls } })
        .collect())
}

/// `HOST`, `HOST:DEFAULT_PORT`, `[V6]`, `[V6]:PORT`.
fn host_port(text: &str) -> Result<(String, u16)> {
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0).context("no port");
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').context("no ]")?;
            (
                host,
                if rest.is_empty() {
                    DEFAULT_PORT
                } else {
                    port(rest.strip_prefix(':').context("no port")?)?
                },
            )
        }
        None => match text.split_once(':') {
            Some((host, digits)) => (host, port(digits)?),
            None => (text, DEFAULT_PORT),
        },
    };
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
    ensure!(!host.is_empty() && host.len() <= 253 && host.chars().all(fits), "no host");
    Ok((host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(word: &str) -> (String, String) {
        let nodes = parse_nodes(&[word.to_owned()], None).unwrap();
        (nodes[0].name.clone(), nodes[0].address.to_string())
    }

    #[test]
    fn addresses_read_as_people_write_them() {
        for (word, name, way) in [
            ("node1", "node1", "http://node1:9273"),
            ("node1:80", "node1:80", "http://node1:80"),
            ("https://node1", "node1", "https://node1:9273"),
            ("a=https://node1:1/", "a", "https://node1:1"),
            ("[::1]:9", "[::1]:9", "http://[::1]:9"),
            ("b=[::1]", "b", "http://[::1]:9273"),
            ("/run/elbowroom/api.sock", "/run/elbowroom/api.sock", "/run/elbowroom/api.sock"),
            ("c=/run/a=b.sock", "c", "/run/a=b.sock"),
            ("/run/a=b.sock", "/run/a=b.sock", "/run/a=b.sock"),
        ] {
            assert_eq!(one(word), (name.to_owned(), way.to_owned()), "{word}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_its_line() {
        for (word, expect) in [
            ("", "is no address"),
            ("a b", "is no address"),
            ("node:0", "is no address"),
            ("node:99999", "is no address"),
            ("ftp://node", "is no address"),
            ("http://node/path", "is no address"),
            ("=node", "is empty"),
            ("dns+https://node", "name the nodes one by one"),
        ] {
            let error =
                elbowroom_client::output::one_line(&parse_nodes(&[word.to_owned()], None).unwrap_err());
            assert!(error.contains(expect) && !error.contains('\n'), "{word}: {error}");
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("nodes");
        std::fs::write(&file, "# all\n a=one # the first\n\nb=two:x\n").unwrap();
        let error = elbowroom_client::output::one_line(&parse_nodes(&[], Some(&file)).unwrap_err());
        assert!(error.contains("line 4: \"two:x\""), "{error}");
        std::fs::write(&file, "a=one\na=two\n").unwrap();
        assert!(
            elbowroom_client::output::one_line(&parse_nodes(&[], Some(&file)).unwrap_err())
                .contains("\"a\" is there twice")
        );
        std::fs::write(&file, "\n").unwrap();
        assert!(
            elbowroom_client::output::one_line(&parse_nodes(&[], Some(&file)).unwrap_err())
                .contains("no node was named")
        );
    }
}
