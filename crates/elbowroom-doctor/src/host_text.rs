//! Texts of the host that only the doctor reads.

use crate::checks::{DiskCounters, FixedHeap, MountFacts};
use crate::strategies::pretouch::JvmHeap;
use elbowroom_linux::parse::{Malformed, flat_keyed, malformed, number};
use elbowroom_linux::proc;
use elbowroom_types::id::DeviceNumber;
use elbowroom_types::io::DiskStat;
use elbowroom_types::unit::{Bytes, parse_bytes};
use std::collections::BTreeMap;

/// A setting as its file says it: the chosen word where the file lists all (`always [madvise] never`), else the text
/// without its newline.
pub fn selected_word(text: &str) -> String {
    let text = text.trim_end();
    let chosen = text.split_ascii_whitespace().find_map(|w| w.strip_prefix('[')?.strip_suffix(']'));
    chosen.unwrap_or(text).to_owned()
}

/// The lines in kB of `/proc/meminfo`, or of a node's, whose lines begin with `Node 0`.
pub fn meminfo(text: &str) -> Result<BTreeMap<String, Bytes>, Malformed> {
    let mut all = BTreeMap::new();
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else {
            return Err(malformed(line, "\"key: number kB\""));
        };
        let Some(kib) = value.trim().strip_suffix(" kB") else { continue };
        let key = key.rsplit(' ').next().unwrap_or(key);
        all.insert(key.to_owned(), Bytes::kib(number(kib, line, "\"key: number kB\"")?));
    }
    Ok(all)
}

/// `key number` lines, all of them.
pub fn keyed(text: &str) -> Result<BTreeMap<String, u64>, Malformed> {
    flat_keyed(text).map(|entry| entry.map(|(key, value)| (key.to_owned(), value))).collect()
}

/// `/proc/diskstats`, reads and writes together.
pub fn diskstats(text: &str) -> Result<Vec<(DeviceNumber, String, DiskCounters)>, Malformed> {
    let counters = |stat: DiskStat| DiskCounters {
        ios: stat.rios.saturating_add(stat.wios),
        bytes: stat.rbytes.saturating_add(stat.wbytes),
        ticks: stat.rticks.saturating_add(stat.wticks),
        time_in_queue: stat.time_in_queue,
    };
    let rows = proc::diskstats(text)?.into_iter();
    Ok(rows.map(|(number, name, stat)| (number, name.to_owned(), counters(stat))).collect())
}

/// Mounts of block devices in a `mountinfo` file, each device once.
pub fn mounts(text: &str) -> Vec<MountFacts> {
    let mut mounts: Vec<MountFacts> = Vec::new();
    for line in text.lines() {
        let Some((mount, fs)) = line.split_once(" - ") else { continue };
        let (mount, fs): (Vec<&str>, Vec<&str>) = (mount.split(' ').collect(), fs.split(' ').collect());
        let (Some(number), Some(point), Some(options)) = (mount.get(2), mount.get(4), mount.get(5)) else {
            continue;
        };
        let Ok(number) = number.parse::<DeviceNumber>() else { continue };
        if number.major == 0 || mounts.iter().any(|m| m.number == number) {
            continue;
        }
        mounts.push(MountFacts {
            point: (*point).to_owned(),
            fs: (*fs.first().unwrap_or(&"")).to_owned(),
            number,
            options: format!("{options},{}", fs.get(2).unwrap_or(&"")),
        });
    }
    mounts
}

/// Rows of v2 `io.max` and v1 `blkio.throttle.*_device`: device and the rest.
pub fn device_rows(text: &str) -> Vec<(DeviceNumber, String)> {
    let rows = text.lines().filter_map(|line| line.split_once(' '));
    rows.filter_map(|(device, rest)| Some((device.parse().ok()?, rest.trim().to_owned()))).collect()
}

/// The size a command line lets a heap grow to: `-Xmx` and `-XX:MaxHeapSize` of a JVM (the last one counts), V8's
/// `--max-old-space-size` in MiB.
pub fn heap_limit(pid: i32, cmdline: &str) -> Option<FixedHeap> {
    let mut sizes = cmdline.split('\0').filter_map(|argument| {
        let size = if let Some(size) =
            argument.strip_prefix("-Xmx").or_else(|| argument.strip_prefix("-XX:MaxHeapSize="))
        {
            java_size(size)?
        } else {
            let size = argument
                .strip_prefix("--max-old-space-size=")
                .or_else(|| argument.strip_prefix("--max_old_space_size="))?;
            Bytes::mib(size.parse().ok()?)
        };
        Some(FixedHeap { pid, argument: argument.to_owned(), size })
    });
    sizes.next_back()
}

/// Anonymous and shared memory of a process, from its `status`: what cannot be dropped. `None` for a kernel thread.
pub fn unreclaimable_memory(status: &str) -> Option<Bytes> {
    let line = |key: &str| {
        let value = status.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?;
        Some(Bytes::kib(value.trim().strip_suffix(" kB")?.parse().ok()?))
    };
    Some(line("RssAnon")?.saturating_add(line("RssShmem").unwrap_or_default()))
}

/// What a JVM was told about its heap. The environment is read first, as java does, so that the command line has the last
/// word; `_JAVA_OPTIONS` alone comes after it (src/hotspot/share/runtime/arguments.cpp, `parse_vm_init_args`).
pub fn jvm_heap_options(pid: i32, cmdline: &str, environ: &str) -> JvmHeap {
    let variable =
        |name: &str| environ.split('\0').find_map(|v| v.strip_prefix(name)?.strip_prefix('=')).unwrap_or("");
    let before = ["JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"].map(variable);
    let words = before.iter().flat_map(|v| v.split_whitespace());
    let own = java_options(cmdline);
    let mut jvm = JvmHeap { pid, ..JvmHeap::default() };
    for argument in words.chain(own).chain(variable("_JAVA_OPTIONS").split_whitespace()) {
        let one_of = |keys: [&str; 2]| keys.iter().find_map(|k| argument.strip_prefix(k)).and_then(java_size);
        jvm.initial = one_of(["-Xms", "-XX:InitialHeapSize="]).or(jvm.initial);
        jvm.max = one_of(["-Xmx", "-XX:MaxHeapSize="]).or(jvm.max);
        jvm.pretouch = match argument {
            "-XX:+AlwaysPreTouch" => true,
            "-XX:-AlwaysPreTouch" => false,
            _ => jvm.pretouch,
        };
    }
    jvm
}

/// The options on java's command line: what follows the program is for the program, and some options take the next word.
fn java_options(cmdline: &str) -> impl Iterator<Item = &str> {
    const OPTIONS_WITH_ARGUMENT: [&str; 7] = [
        "-cp",
        "-classpath",
        "--class-path",
        "-p",
        "--module-path",
        "--add-modules",
        "--upgrade-module-path",
    ];
    let mut words = cmdline.split('\0').skip(1);
    std::iter::from_fn(move || {
        let word = words.next()?;
        if OPTIONS_WITH_ARGUMENT.contains(&word) {
            words.next();
        }
        (word.starts_with(['-', '@']) && !["-jar", "-m", "--module"].contains(&word)).then_some(word)
    })
}

/// `4g`, `512m`, or a bare number of bytes.
fn java_size(size: &str) -> Option<Bytes> {
    match size.bytes().all(|b| b.is_ascii_digit()) {
        true => Some(Bytes(size.parse().ok()?)),
        false => parse_bytes(size).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::unit::Micros;
    use proptest::prelude::*;

    #[test]
    fn the_chosen_word_is_the_setting() {
        for (text, expect) in [
            ("always [madvise] never\n", "madvise"),
            ("[none] mq-deadline\n", "none"),
            ("60\n", "60"),
            ("max 100000\n", "max 100000"),
        ] {
            assert_eq!(selected_word(text), expect);
        }
    }

    #[test]
    fn meminfo_of_the_machine_and_of_a_node() {
        let all = meminfo("MemTotal:  8 kB\nHugePages_Total:  0\n").unwrap();
        assert_eq!((all.len(), all["MemTotal"]), (1, Bytes::kib(8)));
        assert_eq!(meminfo("Node 0 MemFree:  4 kB\n").unwrap()["MemFree"], Bytes::kib(4));
        assert!(meminfo("MemTotal: x kB\n").is_err());
    }

    #[test]
    fn a_disks_line() {
        let rows = diskstats("   8       0 sda 10 1 100 20 30 2 300 40 0 50 60\n").unwrap();
        let (number, name, counters) = &rows[0];
        assert_eq!((number.to_string().as_str(), name.as_str()), ("8:0", "sda"));
        assert_eq!(
            (counters.ios, counters.ticks, counters.bytes),
            (40, Micros::millis(60), Bytes(400 * 512))
        );
        assert_eq!(counters.time_in_queue, Micros::millis(60));
        assert!(diskstats("8 0 sda 1\n").is_err());
    }

    #[test]
    fn mounts_are_of_block_devices_and_each_once() {
        let text = "1 0 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,data=journal\n\
                    2 1 8:1 /x /y rw - ext4 /dev/sda1 rw\n3 1 0:5 / /proc rw - proc proc rw\n";
        let mounts = mounts(text);
        assert_eq!(mounts.len(), 1);
        assert_eq!(
            (mounts[0].fs.as_str(), mounts[0].options.as_str()),
            ("ext4", "rw,relatime,rw,data=journal")
        );
    }

    #[test]
    fn heaps_are_read_as_their_runtimes_read_them() {
        for (cmdline, expect) in [
            ("java\0-Xmx4g\0App", Some(Bytes::gib(4))),
            ("java\0-Xmx1g\0-Xmx512m\0", Some(Bytes::mib(512))),
            ("java\0-XX:MaxHeapSize=1073741824\0", Some(Bytes::gib(1))),
            ("node\0--max-old-space-size=2048\0", Some(Bytes::gib(2))),
            ("java\0-Xms4g\0", None),
            ("java\0-Xmx\0", None),
            ("", None),
        ] {
            assert_eq!(heap_limit(1, cmdline).map(|h| h.size), expect, "{cmdline:?}");
        }
    }

    #[test]
    fn a_jvm_is_told_by_its_command_line_and_its_environment_and_the_last_word_counts() {
        let is = |initial: Option<u64>, max: Option<u64>, pretouch| JvmHeap {
            pid: 1,
            initial: initial.map(Bytes::mib),
            max: max.map(Bytes::mib),
            pretouch,
        };
        for (cmdline, environ, expect) in [
            (
                "java\0-cp\0a.jar\0-Xms1g\0-Xmx2g\0-XX:+AlwaysPreTouch\0App\0-Xmx9g\0",
                "",
                is(Some(1024), Some(2048), true),
            ),
            (
                "java\0-Xmx2g\0App\0",
                "A=b\0JAVA_TOOL_OPTIONS=-Xmx1g -XX:+AlwaysPreTouch\0",
                is(None, Some(2048), true),
            ),
            (
                "java\0-Xmx2g\0-XX:+AlwaysPreTouch\0",
                "_JAVA_OPTIONS=-XX:-AlwaysPreTouch -Xmx64m\0",
                is(None, Some(64), false),
            ),
            ("java\0-XX:InitialHeapSize=1048576\0-Xmxmuch\0App", "", is(Some(1), None, false)),
            ("", "", is(None, None, false)),
        ] {
            assert_eq!(jvm_heap_options(1, cmdline, environ), expect, "{cmdline:?} {environ:?}");
        }
    }

    #[test]
    fn a_process_holds_what_cannot_be_dropped_and_a_kernel_thread_has_none() {
        let status = "Name:\tx\nRssAnon:\t    100 kB\nRssFile:\t  4000 kB\nRssShmem:\t      28 kB\n";
        assert_eq!(unreclaimable_memory(status), Some(Bytes::kib(128)));
        assert_eq!(unreclaimable_memory("Name:\tkthreadd\nThreads:\t1\n"), None);
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in "(MemTotal:|Node 0 |8:0|-Xmx|[0-9 \n\0:=]|.){0,60}") {
            let _ = (selected_word(&text), meminfo(&text), keyed(&text), diskstats(&text), mounts(&text));
            let _ = (device_rows(&text), heap_limit(1, &text), jvm_heap_options(1, &text, &text), unreclaimable_memory(&text));
        }
    }
}
