//! `/proc/loadavg` (fs/proc/loadavg.c `loadavg_proc_show`).
//!
//! | field | shown |
//! |---|---|
//! | load over 1, 5, 15 minutes | container |
//! | runnable / existing threads | container; at least one runs, the reader |
//! | last PID | 0: it belongs to the reader's PID namespace, of which a container may have several, and the host's would leak |

use super::snapshot::ContainerSnapshot;
use super::text::push_line;

/// Three numbers of up to 8 digits with two decimals, two of up to 10 digits, the PID and the blanks.
const WIDTH: usize = 3 * 12 + 10 + 1 + 10 + 2;

/// The page.
pub(super) fn text(facts: &ContainerSnapshot) -> String {
    let [one, five, fifteen] = facts.load.map(|load| format!("{}.{:02}", load / 100, load % 100));
    let running = facts.nr_running.max(1);
    let threads = facts.nr_threads.max(running);
    let mut out = String::new();
    push_line(&mut out, &format!("{one} {five} {fifteen} {running}/{threads} 0"), WIDTH);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_the_kernel_writes_it() {
        let facts = ContainerSnapshot {
            load: [147, 5, 1_000],
            nr_running: 2,
            nr_threads: 96,
            ..ContainerSnapshot::EMPTY
        };
        assert_eq!(text(&facts).trim_end(), "1.47 0.05 10.00 2/96 0");
        assert_eq!(text(&ContainerSnapshot::EMPTY).trim_end(), "0.00 0.00 0.00 1/1 0");
    }

    #[test]
    fn its_length_never_changes() {
        let most = ContainerSnapshot {
            load: [u32::MAX; 3],
            nr_running: u32::MAX,
            nr_threads: u32::MAX,
            ..ContainerSnapshot::EMPTY
        };
        assert_eq!(text(&most).len(), WIDTH + 1);
        assert_eq!(text(&ContainerSnapshot::EMPTY).len(), WIDTH + 1);
    }
}
