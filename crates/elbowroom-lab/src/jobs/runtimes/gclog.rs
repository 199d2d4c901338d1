//! What HotSpot's unified log says about collections, with the decorations `uptimemillis` and `tags`.

use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// What a machine is asked to write, to be followed by a path.
pub(super) const SELECTION: &str = "-Xlog:gc*=info,gc+task=trace";
/// Behind the path.
pub(super) const DECORATIONS: &str = "uptimemillis,tags";

/// A time in which the program stood still.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pause {
    /// When it ended, in milliseconds after the machine's start.
    pub(super) at_ms: u64,
    /// How long it took, in milliseconds.
    pub(super) ms: f64,
    /// Threads that collected; `None` where one thread does it alone, as in G1's remark.
    pub(super) threads: Option<u32>,
}

/// All pauses of a log, in its order. A line without an end is that of a machine that was killed, and is left out; a line without
/// decorations goes on with what the one before it said.
///
/// # Errors
/// A line that is none of a log with these decorations, or a pause without its length.
pub(super) fn parse(text: &str) -> Result<Vec<Pause>> {
    let mut pauses = Vec::new();
    let mut threads: BTreeMap<u64, u32> = BTreeMap::new();
    let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    for (i, line) in lines.enumerate() {
        if i > 0 && !line.starts_with('[') {
            continue;
        }
        let (at_ms, tags, said) = parts(line).with_context(|| format!("the GC log has a line \"{line}\""))?;
        let Some((collection, said)) = collection(said) else { continue };
        if let Some(count) = workers(said) {
            // Later mentions are of other work of the same pause.
            threads.entry(collection).or_insert(count);
        }
        if tags == "gc" && said.starts_with("Pause ") {
            let ms = said.rsplit(' ').next().and_then(|word| word.strip_suffix("ms")?.parse().ok());
            let ms = ms.with_context(|| format!("a pause without its length: \"{line}\""))?;
            pauses.push(Pause { at_ms, ms, threads: threads.get(&collection).copied() });
        }
    }
    Ok(pauses)
}

/// `[812ms][gc,task      ] GC(3) Using 2 workers of 13 for evacuation`: milliseconds, tags, what is said.
fn parts(line: &str) -> Option<(u64, &str, &str)> {
    let (ms, rest) = line.strip_prefix('[')?.split_once("ms][")?;
    let (tags, said) = rest.split_once(']')?;
    Some((ms.trim().parse().ok()?, tags.trim(), said.trim_start()))
}

/// The number of the collection that a line is about, and the rest of it.
fn collection(said: &str) -> Option<(u64, &str)> {
    let (number, rest) = said.strip_prefix("GC(")?.split_once(") ")?;
    Some((number.parse().ok()?, rest))
}

/// G1 says `Using 2 workers of 13 for evacuation`, the workers of every collector `GC Thread: using 2 out of 13 workers`.
fn workers(said: &str) -> Option<u32> {
    let (_, rest) = said.split_once("sing ")?;
    let mut words = rest.split(' ');
    let count = words.next()?.parse().ok()?;
    matches!((words.next()?, words.next()?), ("workers", "of") | ("out", "of")).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    const G1: &str = "\
[12ms][gc] Using G1
[15ms][gc,init] Parallel Workers: 13
[812ms][gc,start    ] GC(0) Pause Young (Normal) (G1 Evacuation Pause)
[812ms][gc,task     ] GC(0) GC Thread: using 2 out of 13 workers
[812ms][gc,task     ] GC(0) Using 2 workers of 13 for evacuation
[815ms][gc,phases   ] GC(0)   Evacuate Collection Set: 2.4ms
[816ms][gc          ] GC(0) Pause Young (Normal) (G1 Evacuation Pause) 23M->4M(60M) 3.512ms
[816ms][gc,cpu      ] GC(0) User=0.01s Sys=0.00s Real=0.00s
[900ms][gc          ] GC(1) Concurrent Mark Cycle
[910ms][gc          ] GC(1) Pause Remark 30M->30M(60M) 0.750ms
[930ms][gc          ] GC(1) Concurrent Mark Cycle 30.123ms
";

    #[test]
    fn pauses_have_their_threads_and_concurrent_work_is_none() {
        let pauses = parse(G1).unwrap();
        assert_eq!(
            pauses,
            [
                Pause { at_ms: 816, ms: 3.512, threads: Some(2) },
                Pause { at_ms: 910, ms: 0.75, threads: None }
            ]
        );
    }

    #[test]
    fn parallel_says_it_in_other_words() {
        let text = "[5ms][gc,task] GC(7) ParGC Thread: using 13 out of 13 workers\n\
                    [9ms][gc     ] GC(7) Pause Full (Ergonomics) 23M->4M(60M) 1,5ms\n";
        assert!(parse(text).is_err(), "a length with a comma is not 1.5");
        let pauses = parse(&text.replace("1,5", "1.5")).unwrap();
        assert_eq!(pauses, [Pause { at_ms: 9, ms: 1.5, threads: Some(13) }]);
    }

    #[test]
    fn a_killed_machines_last_line_is_left_out_and_any_other_broken_line_is_an_error() {
        let cut = format!("{G1}[950ms][gc          ] GC(2) Pause Yo");
        assert_eq!(parse(&cut).unwrap().len(), 2);
        let error = parse(&format!("{cut}\n")).unwrap_err();
        assert!(error.to_string().contains("GC(2) Pause Yo"), "{error}");
        let error = parse("[12ms][gc] Using G1\n[13ms gc] GC(0) Pause\n").unwrap_err();
        assert!(error.to_string().contains("[13ms gc]"), "{error}");
        assert!(parse("OpenJDK 64-Bit Server VM warning: no\n").is_err());
    }

    #[test]
    fn a_message_of_several_lines_is_one() {
        let text = "[5ms][gc,task] GC(0) WorkerPolicy::calc_default_active_workers() : active_workers(): 3\n \
                    active_workers_by_JT: 6  using 9 out of 9 workers\n[9ms][gc] GC(0) Pause Young (Normal) 2M->1M(8M) 1.5ms\n";
        assert_eq!(parse(text).unwrap(), [Pause { at_ms: 9, ms: 1.5, threads: None }]);
    }
}
