//! Every file of two containers on two captured hosts, as text to read and review: `tests/golden/*.txt`.
//! `UPDATE_GOLDEN=1 cargo test -p elbowroom-view golden` writes them anew.
#![allow(clippy::disallowed_methods, reason = "tests read fixtures; the crate reads nothing")]

use crate::common::{Host, files, host, material, middle, small, text_of};
use elbowroom_view::pages::render;
use elbowroom_view::pages::snapshot::{ContainerSnapshot, CpuTimes};

#[test]
fn a_container_of_one_cpu_on_a_cgroup_v1_machine() {
    check("v1-2cpu-small.txt", &host("v1-2cpu-6.18"), small());
}

#[test]
fn a_container_of_three_cpus_on_a_cgroup_v2_machine() {
    check("v2-16cpu-middle.txt", &host("v2-16cpu-6.12"), middle());
}

fn check(golden: &str, host: &Host, (facts, times): (ContainerSnapshot, Vec<CpuTimes>)) {
    let found: String = files(host, &facts)
        .into_iter()
        .map(|node| {
            let text = text_of(host, node);
            let size = render::size(node, &facts, &text);
            let page = render::render(node, &facts, &times, &text, facts.taken, size);
            format!("-- {} ({size} bytes)\n{}", node.path(), readable(&String::from_utf8(page).unwrap()))
        })
        .collect();
    let path = material("golden").join(golden);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    let expect = std::fs::read_to_string(&path).unwrap();
    for (n, (found, expect)) in found.lines().zip(expect.lines()).enumerate() {
        assert_eq!(found, expect, "line {} of {golden}", n + 1);
    }
    assert_eq!(found.len(), expect.len(), "{golden} ends too early or too late");
}

/// Filling, in words: editors and reviewers drop what they cannot see.
fn readable(page: &str) -> String {
    let body = page.trim_end_matches('\n');
    let mut out = String::new();
    for line in body.split('\n').filter(|_| !page.is_empty()) {
        let kept = line.trim_end_matches(' ');
        out.push_str(kept);
        if kept.len() < line.len() {
            out.push_str(&format!("<{} blanks>", line.len() - kept.len()));
        }
        out.push('\n');
    }
    let newlines = page.len() - body.len();
    if newlines > 1 {
        out.push_str(&format!("<{} newlines>\n", newlines - 1));
    }
    out
}
