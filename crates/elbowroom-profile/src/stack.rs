//! Samples of where CPUs were: stacks of frames, and how often each was seen.

use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Whose code it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ExecutionMode {
    /// The kernel.
    Kernel,
    /// A program.
    User,
}

/// A function, or what is known instead.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct StackFrame {
    /// The function's name; where only the file is known, that in brackets: `[libc.so.6]`.
    pub name: Arc<str>,
    /// The file's name without directories; empty in the kernel.
    pub module: Arc<str>,
    /// Whose code it is.
    pub mode: ExecutionMode,
}

/// Where one CPU was.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CallStack {
    /// The program, as the kernel calls it (`comm`).
    pub program: Arc<str>,
    /// Innermost first: the kernel's frames, where it was in the kernel, then the program's.
    pub frames: Vec<StackFrame>,
}

impl StackFrame {
    /// Whether a function's name is known.
    pub(crate) fn is_resolved(&self) -> bool {
        !self.name.starts_with('[')
    }
}

impl CallStack {
    /// Where the CPU was at that moment.
    pub fn mode(&self) -> ExecutionMode {
        self.frames.first().map_or(ExecutionMode::User, |frame| frame.mode)
    }

    /// The stack as flame graph tools take it: the program, then frames from the outermost, between semicolons; the kernel's
    /// end with `_[k]`. A name cannot end its frame, nor its line.
    pub fn folded(&self) -> String {
        let mut line = folded_name(&self.program);
        for frame in self.frames.iter().rev() {
            line.push(';');
            line.push_str(&folded_name(&frame.name));
            if frame.mode == ExecutionMode::Kernel {
                line.push_str("_[k]");
            }
        }
        line
    }
}

/// Stacks folded together, one line each with its count, the form that flame graph tools read.
pub(crate) fn folded_text<'a>(stacks: impl IntoIterator<Item = (&'a CallStack, u64)>) -> String {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for (stack, count) in stacks {
        *lines.entry(stack.folded()).or_default() += count;
    }
    lines.iter().map(|(line, count)| format!("{line} {count}\n")).collect()
}

fn folded_name(name: &str) -> String {
    name.chars().map(|c| if c == ';' || c.is_control() || c.is_whitespace() { '_' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(name: &str, space: ExecutionMode) -> StackFrame {
        StackFrame { name: name.into(), module: "".into(), mode: space }
    }

    #[test]
    fn a_folded_stack_reads_from_the_outside_in() {
        let frames = vec![frame("do_exit", ExecutionMode::Kernel), frame("main.main", ExecutionMode::User)];
        let stack = CallStack { program: "runc:[2:INIT]".into(), frames };
        assert_eq!(stack.folded(), "runc:[2:INIT];main.main;do_exit_[k]");
        assert_eq!(stack.mode(), ExecutionMode::Kernel);
        assert_eq!(folded_text([(&stack, 2), (&stack, 3)]), "runc:[2:INIT];main.main;do_exit_[k] 5\n");
    }

    #[test]
    fn a_name_cannot_become_two_frames_or_two_lines() {
        let stack = CallStack { program: "a;b".into(), frames: vec![frame("x\ny z", ExecutionMode::User)] };
        assert_eq!(stack.folded(), "a_b;x_y_z");
    }
}
