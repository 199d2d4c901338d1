//! Flame graphs (Gregg, *The Flame Graph*, CACM 59(6), 2016): a frame stands on its caller, and is as wide as the time that
//! was seen in it and in what it called.
//!
//! Drawn as SVG without script, so that a page of it can be mailed and kept; frames too narrow to be seen are left out, and
//! the folded stacks beside the page have them all.

use super::html::escape;
use super::svg;
use std::collections::BTreeMap;
use std::fmt::Write;

const WIDTH: f64 = 880.0;
const ROW_HEIGHT: f64 = 16.0;
/// Narrower frames are not drawn: half a unit of 880 is less than a pixel.
const MIN_WIDTH: f64 = 0.5;
/// No stack that is drawn is deeper; the kernel's callchains end at 127 frames by default (`kernel.perf_event_max_stack`).
const MAX_DEPTH: usize = 160;

/// A tree of frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlameGraph {
    root: FlameNode,
}

/// A frame with what it called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct FlameNode {
    /// Time in it and in what it called.
    count: u64,
    children: BTreeMap<String, FlameNode>,
}

impl FlameGraph {
    /// The tree of folded stacks: frames from the outermost, between semicolons, and how often they were seen.
    pub(crate) fn of(stacks: impl IntoIterator<Item = (String, u64)>) -> Self {
        let mut flame = Self::default();
        for (stack, count) in stacks {
            let mut node = &mut flame.root;
            node.count += count;
            for frame in stack.split(';').take(MAX_DEPTH) {
                node = node.children.entry(frame.to_owned()).or_default();
                node.count += count;
            }
        }
        flame
    }

    /// Whether there is nothing to draw.
    pub(crate) fn is_empty(&self) -> bool {
        self.root.count == 0
    }

    /// The figure as a file of its own, in the viewer's theme.
    pub(crate) fn file(&self, title: &str) -> String {
        const STYLE: &str = "<style>:root { color-scheme: light dark; --paper: #fff; --ink: #222; } \
            @media (prefers-color-scheme: dark) { :root { --paper: #16181c; } } svg { background: var(--paper); } \
            text { fill: #222; font: 11px ui-monospace, monospace; }</style>";
        let svg = self.svg();
        let (head, body) = svg.split_once('\n').unwrap_or((&svg, ""));
        format!("{head}\n<title>{}</title>\n{STYLE}\n{body}", escape(title))
    }

    /// The figure, callers below.
    pub(super) fn svg(&self) -> String {
        let scale = WIDTH / self.root.count.max(1) as f64;
        let depth = depth(&self.root, scale);
        let height = ROW_HEIGHT * depth as f64 + 4.0;
        let mut svg = svg::open(height, "flame graph") + "<g class=\"flame\">\n";
        let mut at = 0.0;
        for (name, child) in &self.root.children {
            draw(&mut svg, name, child, at, height - ROW_HEIGHT, scale, self.root.count);
            at += child.count as f64 * scale;
        }
        svg + "</g>\n</svg>\n"
    }
}

fn depth(node: &FlameNode, scale: f64) -> usize {
    let seen = node.children.values().filter(|child| child.count as f64 * scale >= MIN_WIDTH);
    seen.map(|child| 1 + depth(child, scale)).max().unwrap_or(0)
}

fn draw(svg: &mut String, name: &str, node: &FlameNode, x: f64, y: f64, scale: f64, all: u64) {
    let width = node.count as f64 * scale;
    if width < MIN_WIDTH {
        return;
    }
    // About seven units a letter of the page's monospace.
    let letters = (width / 7.0) as usize;
    let label: String = match name.chars().count() {
        length if length <= letters => name.to_owned(),
        _ if letters < 4 => String::new(),
        _ => name.chars().take(letters - 1).chain(['~']).collect(),
    };
    let _ = writeln!(
        svg,
        "<g><title>{}: {} samples, {:.1} %</title><rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{:.1}\" \
         fill=\"{}\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text></g>",
        escape(name),
        node.count,
        100.0 * node.count as f64 / all as f64,
        ROW_HEIGHT - 1.0,
        color(name),
        x + 3.0,
        y + 11.5,
        escape(&label)
    );
    let mut at = x;
    for (name, child) in &node.children {
        draw(svg, name, child, at, y - ROW_HEIGHT, scale, all);
        at += child.count as f64 * scale;
    }
}

/// Blue for the kernel, warm colours for programs; the same name always has the same.
fn color(name: &str) -> String {
    let hash = name.bytes().fold(0u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)));
    match name.ends_with("_[k]") {
        true => format!("hsl({} 55% {}%)", 200 + hash % 25, 66 + hash / 25 % 12),
        false => format!("hsl({} 75% {}%)", 20 + hash % 32, 62 + hash / 32 % 12),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_as_wide_as_itself_and_what_it_called() {
        let flame = FlameGraph::of([("a;b".to_owned(), 3), ("a".to_owned(), 1), ("c".to_owned(), 4)]);
        assert_eq!(flame.root.count, 8);
        assert_eq!(flame.root.children["a"].count, 4);
        assert_eq!(flame.root.children["a"].children["b"].count, 3);
        let svg = flame.svg();
        assert!(svg.contains("a: 4 samples, 50.0 %") && svg.contains("width=\"440.0\""), "{svg}");
    }

    #[test]
    fn what_cannot_be_seen_is_not_drawn_and_nothing_is_no_figure_to_divide_by() {
        let flame = FlameGraph::of([("a".to_owned(), 1_000_000), ("b".to_owned(), 1)]);
        assert!(!flame.svg().contains("b: 1 samples"));
        assert!(!FlameGraph::default().svg().contains("NaN") && FlameGraph::default().is_empty());
        let deep: String = "x;".repeat(5000);
        assert!(FlameGraph::of([(deep, 1)]).svg().matches("<rect").count() <= MAX_DEPTH);
    }
}
