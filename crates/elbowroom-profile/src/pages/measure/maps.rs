//! `/proc/PID/maps` and `/proc/PID/smaps`: the areas of a process' memory (`Documentation/filesystems/proc.rst`).

use crate::pages::model::area::area_kinds;
use crate::pages::model::{AreaTotals, MemoryArea, NamedArea};
use elbowroom_linux::parse::{Malformed, malformed};

const AREA: &str = "an area (\"begin-end perms offset device inode name\")";

/// Bytes of a page; what `pagemap` and page tables count in.
const PAGE: u64 = 4096;

/// One area with what the kernel says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MapsArea<'a> {
    first: u64,
    end: u64,
    named: NamedArea<'a>,
    /// In KiB: resident, in huge pages, of hugetlbfs, referenced; `None` in `maps`.
    rss: Option<u64>,
    huge: u64,
    hugetlb: u64,
    referenced: Option<u64>,
}

/// Areas of one process from either file, ascending; with their resident memory in bytes where `smaps` says it, pages of hugetlbfs
/// included, which it counts apart. `program` is
/// what `/proc/PID/exe` points to. Keys that are not known are passed over.
///
/// # Errors
/// A line that begins no area and is no `Key: value`.
pub fn areas(text: &str, program: &str) -> Result<Vec<(MemoryArea, Option<u64>)>, Malformed> {
    let mut lines: Vec<MapsArea<'_>> = Vec::new();
    for line in text.lines() {
        if let Some(area) = area(line) {
            if lines.last().is_some_and(|last| last.end > area.first) {
                return Err(malformed(line, "an area above the one before it"));
            }
            lines.push(area);
        } else if let (Some((key, value)), Some(area)) = (line.split_once(':'), lines.last_mut()) {
            set_field(area, key, value.trim().strip_suffix(" kB"));
        } else {
            return Err(malformed(line, AREA));
        }
    }
    let named: Vec<NamedArea<'_>> = lines.iter().map(|line| line.named).collect();
    let kinds = area_kinds(&named, program);
    let pages = |kib: u64| kib * 1024 / PAGE;
    let areas = lines.iter().zip(kinds).map(|(line, kind)| {
        let told = AreaTotals { huge: pages(line.huge + line.hugetlb), active: line.referenced.map(pages) };
        (
            MemoryArea { first: line.first, end: line.end, kind, totals: told },
            line.rss.map(|kib| (kib + line.hugetlb) * 1024),
        )
    });
    Ok(areas.collect())
}

fn set_field(area: &mut MapsArea<'_>, key: &str, kib: Option<&str>) {
    // No area has more than the address space: sums of such numbers stay far from the end of u64.
    let Some(kib) = kib.and_then(|kib| kib.parse::<u64>().ok()).filter(|kib| *kib < 1 << 50) else { return };
    match key {
        "Rss" => area.rss = Some(kib),
        "Referenced" => area.referenced = Some(kib),
        "AnonHugePages" | "ShmemPmdMapped" | "FilePmdMapped" => area.huge += kib,
        "Shared_Hugetlb" | "Private_Hugetlb" => area.hugetlb += kib,
        _ => {}
    }
}

/// `7f1c2a000000-7f1c2a021000 rw-p 00000000 00:00 0    [heap]`
fn area(line: &str) -> Option<MapsArea<'_>> {
    let mut fields = line.splitn(6, ' ');
    let (begin, end) = fields.next()?.split_once('-')?;
    let perms = fields.next()?.as_bytes();
    let (_offset, _device, _inode) = (fields.next()?, fields.next()?, fields.next()?);
    let name = fields.next().unwrap_or("").trim_start();
    let address = |text: &str| u64::from_str_radix(text, 16).ok().filter(|address| address % PAGE == 0);
    let (first, end) = (address(begin)? / PAGE, address(end)? / PAGE);
    let named = match perms {
        [_, _, x, share @ (b'p' | b's')] => {
            NamedArea { executable: *x == b'x', shared: *share == b's', name }
        }
        _ => return None,
    };
    (first < end).then_some(MapsArea { first, end, named, rss: None, huge: 0, hugetlb: 0, referenced: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::model::AreaKind;
    use proptest::prelude::*;

    const SMAPS: &str = "\
5581c0000000-5581c0001000 r-xp 00001000 fe:00 1311 /usr/bin/a b
Rss:                   4 kB
Referenced:            4 kB
AnonHugePages:         0 kB
VmFlags: rd ex mr mw me sd
7f0000000000-7f0000400000 rw-p 00000000 00:00 0 
Size:               4096 kB
Rss:                2052 kB
Referenced:            8 kB
AnonHugePages:      2048 kB
THPeligible:           1
";

    #[test]
    fn pages_of_hugetlbfs_are_resident_too() {
        let text = "7f0000000000-7f0080000000 rw-s 00000000 00:10 1  /anon_hugepage (deleted)\nRss: 0 kB\nShared_Hugetlb: 4096 kB\n";
        let [(area, resident)] = areas(text, "/usr/bin/a").unwrap()[..] else { panic!() };
        assert_eq!((area.totals.huge, resident), (1024, Some(4096 * 1024)));
    }

    #[test]
    fn smaps_gives_areas_with_their_sums() {
        let found = areas(SMAPS, "/usr/bin/a b").unwrap();
        let told = |huge, active| AreaTotals { huge, active: Some(active) };
        let first =
            MemoryArea { first: 0x5_581c_0000, end: 0x5_581c_0001, kind: AreaKind::Code, totals: told(0, 1) };
        let second = MemoryArea {
            first: 0x7_f000_0000,
            end: 0x7_f000_0400,
            kind: AreaKind::Heap,
            totals: told(512, 2),
        };
        assert_eq!(found, [(first, Some(4096)), (second, Some(2052 * 1024))]);
    }

    #[test]
    fn maps_gives_areas_without_sums() {
        let text: String =
            SMAPS.lines().filter(|line| line.contains('-')).map(|l| format!("{l}\n")).collect();
        let found = areas(&text, "").unwrap();
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|(area, rss)| area.totals == AreaTotals::default() && rss.is_none()));
    }

    #[test]
    fn what_is_no_area_is_refused_with_its_line() {
        for text in
            ["x\n", "7f00-7f01 rw-p 0 0 0\n", "2000-1000 rw-p 0 0 0\n", "Rss: 4 kB\n", "1000-2000 rw-\n"]
        {
            let error = areas(text, "").unwrap_err();
            assert!(text.starts_with(&error.line), "{error}");
        }
        let twice = "1000-3000 rw-p 0 0 0 \n2000-4000 rw-p 0 0 0 \n";
        assert!(areas(twice, "").unwrap_err().to_string().contains("above"));
    }

    #[test]
    fn this_process_has_code_and_heap() {
        let program = std::fs::read_link("/proc/self/exe").unwrap().to_string_lossy().into_owned();
        for file in ["maps", "smaps"] {
            let found =
                areas(&std::fs::read_to_string(format!("/proc/self/{file}")).unwrap(), &program).unwrap();
            for kind in [AreaKind::Code, AreaKind::Library, AreaKind::Heap] {
                assert!(found.iter().any(|(area, _)| area.kind == kind), "{file} {kind:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "([0-9a-f]{0,6}000-[0-9a-f]{0,6}000 [r-][w-][x-][ps] 0 0 0 ?.{0,5}\n|[A-Z][a-z]{2}: +[0-9]{0,25} kB\n|.{0,9}\n){0,9}") {
            if let Ok(found) = areas(&text, "") {
                prop_assert!(found.windows(2).all(|pair| pair[0].0.end <= pair[1].0.first));
            }
        }
    }
}
