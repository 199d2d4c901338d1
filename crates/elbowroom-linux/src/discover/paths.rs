//! What a cgroup's path says of the container in it: the shapes that engines give, each by its cgroup driver.

use elbowroom_types::container::ContainerEngine;
use std::borrow::Cow;

/// Longer ids are no engine's.
const MAX_ID_LEN: usize = 128;

/// What engines put before an id. Docker and nerdctl make only hexadecimal ids; `docker-proxy.scope` is another program's.
const PREFIXES: [(&str, ContainerEngine); 5] = [
    ("docker", ContainerEngine::Docker),
    ("cri-containerd", ContainerEngine::Containerd),
    ("nerdctl", ContainerEngine::Containerd),
    ("crio", ContainerEngine::Crio),
    ("libpod", ContainerEngine::Podman),
];

/// What a path says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PathClaim<'a> {
    /// Only this engine names cgroups so.
    Named(ContainerEngine, Cow<'a, str>),
    /// Two components, which any user may make: containerd if it has the task.
    Task { namespace: &'a str, id: &'a str },
    /// An id of the usual shape in an unusual place (`--cgroup-parent`), or in a pod.
    HexId(&'a str),
    /// What systemd-machined registered: a container, or a virtual machine.
    Machine(String),
}

/// The claim of a path from its hierarchy's root, without a leading slash; `None` where no engine names cgroups so.
pub(super) fn path_claim(path: &str) -> Option<PathClaim<'_>> {
    let components: Vec<&str> = path.split('/').collect();
    let (&last, above) = components.split_last()?;
    let bare = last.strip_suffix(".scope").unwrap_or(last);
    let named = |engine, id| PathClaim::Named(engine, Cow::Borrowed(id));
    if let Some((engine, id)) = prefixed(bare).or_else(|| literal_slice(last)) {
        return Some(named(engine, id));
    }
    if let Some(name) = last.strip_prefix("lxc.payload.").filter(|name| is_id(name)) {
        return Some(named(ContainerEngine::Lxc, name));
    }
    match above {
        ["elbowroom"] if is_id(last) => Some(named(ContainerEngine::Elbowroom, last)),
        // Before LXC 4.
        ["lxc"] if is_id(last) => Some(named(ContainerEngine::Lxc, last)),
        [.., "machine.slice"] => machine(last),
        [.., "docker"] if is_hex_id(last) => Some(named(ContainerEngine::Docker, last)),
        _ if is_hex_id(last) => Some(PathClaim::HexId(last)),
        [namespace] if is_id(namespace) && is_id(last) => Some(PathClaim::Task { namespace, id: last }),
        _ => None,
    }
}

/// `docker-ID` and its like. `crio-conmon-ID` and `libpod-conmon-ID` hold the monitor; `libpod-payload-ID` is the container where
/// Podman splits the cgroup of a service (`--cgroups=split`, Quadlet).
fn prefixed(name: &str) -> Option<(ContainerEngine, &str)> {
    PREFIXES.into_iter().find_map(|(prefix, engine)| {
        let id = name.strip_prefix(prefix)?.strip_prefix('-')?;
        let id = id.strip_prefix("payload-").filter(|_| engine == ContainerEngine::Podman).unwrap_or(id);
        (!id.starts_with("conmon-") && is_id_of(engine, id)).then_some((engine, id))
    })
}

/// `libpod-conmon-ID.scope`: the monitor of a container, beside the container's own cgroup.
pub(super) fn is_monitor(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let rest = PREFIXES.iter().find_map(|(prefix, _)| name.strip_prefix(prefix));
    rest.is_some_and(|rest| rest.starts_with("-conmon-"))
}

/// `kubepods-besteffort-podUID.slice:cri-containerd:ID`: what a runtime without systemd makes of a path for systemd, as a name.
fn literal_slice(name: &str) -> Option<(ContainerEngine, &str)> {
    let (slice, rest) = name.split_once(':')?;
    let (prefix, id) = rest.split_once(':')?;
    let (_, engine) = PREFIXES.into_iter().find(|(known, _)| *known == prefix)?;
    (slice.ends_with(".slice") && is_id_of(engine, id)).then_some((engine, id))
}

/// `systemd-nspawn@NAME.service` is nspawn's own; `machine-NAME.scope` is any manager's that registered with machined.
fn machine(unit: &str) -> Option<PathClaim<'static>> {
    let unescaped = |name: &str| unescape(name).filter(|name| is_id(name));
    let service = unit.strip_prefix("systemd-nspawn@").and_then(|unit| unit.strip_suffix(".service"));
    let nspawn = |name: String| PathClaim::Named(ContainerEngine::Nspawn, Cow::Owned(name));
    let scope = unit.strip_prefix("machine-").and_then(|unit| unit.strip_suffix(".scope"));
    service.and_then(unescaped).map(nspawn).or_else(|| scope.and_then(unescaped).map(PathClaim::Machine))
}

/// A unit's name as it was before systemd escaped it (`\x2d` is a dash, systemd.unit(5)).
fn unescape(name: &str) -> Option<String> {
    let mut parts = name.split("\\x");
    let mut text = parts.next()?.to_owned();
    for part in parts {
        let code = u8::from_str_radix(part.get(..2)?, 16).ok().filter(u8::is_ascii)?;
        text.push(char::from(code));
        text.push_str(&part[2..]);
    }
    Some(text)
}

/// The UID of the pod that a path runs through, with dashes.
pub(super) fn pod_uid(path: &str) -> Option<String> {
    path.split('/').find_map(pod_of)
}

/// `pod<uid>` of the cgroupfs driver, `kubepods-burstable-pod<uid with underscores>.slice` of the systemd driver.
fn pod_of(component: &str) -> Option<String> {
    let name = component.split(':').next().unwrap_or(component);
    let uid = match name.strip_suffix(".slice") {
        // kind and others have a slice of their own around it: `kubelet-kubepods-...`.
        Some(slice) => slice.split_once("kubepods").and_then(|(_, rest)| rest.rsplit_once("-pod"))?.1,
        None => name.strip_prefix("pod")?,
    };
    let uid = uid.replace('_', "-");
    let shaped = uid.len() >= 32 && uid.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    (shaped && uid.len() <= 64).then_some(uid)
}

fn is_id_of(engine: ContainerEngine, id: &str) -> bool {
    match engine {
        ContainerEngine::Podman | ContainerEngine::Crio => is_id(id),
        _ => is_hex_id(id),
    }
}

fn is_hex_id(id: &str) -> bool {
    id.len() == 64 && id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// Something that can stand as one component of a path.
pub(super) fn is_id(id: &str) -> bool {
    id.len() <= MAX_ID_LEN
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
        && id.bytes().any(|b| b.is_ascii_alphanumeric())
        && !id.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_units_are_read_as_they_were_given() {
        for (unit, expect) in [
            ("web", Some("web")),
            (r"web\x2d1", Some("web-1")),
            (r"a\x2db\x5fc", Some("a-b_c")),
            (r"a\x2", None),
            (r"a\xff", None),
            (r"a\xzz", None),
        ] {
            assert_eq!(unescape(unit).as_deref(), expect, "{unit}");
        }
    }

    #[test]
    fn a_name_that_leads_elsewhere_is_none() {
        for unit in [
            r"machine-\x2e\x2e.scope",
            r"machine-a\x2fb.scope",
            "machine-.scope",
            r"systemd-nspawn@\x2e.service",
        ] {
            assert_eq!(path_claim(&format!("machine.slice/{unit}")), None, "{unit}");
        }
    }
}
