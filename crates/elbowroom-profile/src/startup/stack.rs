//! Samples of where CPUs were: stacks of frames, and how often each was seen.

use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Whose code it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Space {
    /// The kernel.
    Kernel,
    /// A program.
    User,
}

/// A function, or what is known instead.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame {
    /// The function's name; where only the file is known, that in brackets: `[libc.so.6]`.
    pub name: Arc<str>,
    /// The file's name without directories; empty in the kernel.
    pub module: Arc<str>,
    /// Whose code it is.
    pub space: Space,
}

/// Where one CPU was.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stack {
    /// The program, as the kernel calls it (`comm`).
    pub program: Arc<str>,
    /// Innermost first: the kernel's frames, where it was in the kernel, then the program's.
    pub frames: Vec<Frame>,
}

impl Frame {
    /// Whether a function's name is known.
    pub fn is_resolved(&self) -> bool {
        !self.name.starts_with('[')
    }
}

impl Stack {
    /// Where the CPU was at that moment.
    pub fn space(&self) -> Space {
        self.frames.first().map_or(Space::User, |frame| frame.space)
    }

    /// The stack as flame graph tools take it: the program, then frames from the outermost, between semicolons; the kernel's
    /// end with `_[k]`. A name cannot end its frame, nor its line.
    pub fn folded(&self) -> String {
        let mut line = plain(&self.program);
        for frame in self.frames.iter().rev() {
            line.push(';');
            line.push_str(&plain(&frame.name));
            if frame.space == Space::Kernel {
                line.push_str("_[k]");
            }
        }
        line
    }
}

/// Stacks folded together, one line each with its count, the form that flame graph tools read.
pub fn folded_text<'a>(stacks: impl IntoIterator<Item = (&'a Stack, u64)>) -> String {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for (stack, count) in stacks {
        *lines.entry(stack.folded()).or_default() += count;
    }
    lines.iter().map(|(line, count)| format!("{line} {count}\n")).collect()
}

fn plain(name: &str) -> String {
    name.chars().map(|c| if c == ';' || c.is_control() || c.is_whitespace() { '_' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(name: &str, space: Space) -> Frame {
        Frame { name: name.into(), module: "".into(), space }
    }

    #[test]
    fn a_folded_stack_reads_from_the_outside_in() {
        let frames = vec![frame("do_exit", Space::Kernel), frame("main.main", Space::User)];
        let stack = Stack { program: "runc:[2:INIT]".into(), frames };
        assert_eq!(stack.folded(), "runc:[2:INIT];main.main;do_exit_[k]");
        assert_eq!(stack.space(), Space::Kernel);
        assert_eq!(folded_text([(&stack, 2), (&stack, 3)]), "runc:[2:INIT];main.main;do_exit_[k] 5\n");
    }

    #[test]
    fn a_name_cannot_become_two_frames_or_two_lines() {
        let stack = Stack { program: "a;b".into(), frames: vec![frame("x\ny z", Space::User)] };
        assert_eq!(stack.folded(), "a_b;x_y_z");
    }
}
