//! One line in the log per cause: the same file failing the same way for a thousand containers is one fact.

use crate::root::ReadError;
use std::collections::HashMap;

/// Which causes have been told.
#[derive(Debug, Default)]
pub struct Warnings {
    seen: HashMap<(String, String), u64>,
}

impl Warnings {
    /// The value, or `None` and, the first time for this cause, a warning. A cause is a file's name and how it failed.
    pub fn ok_or_warn<T>(&mut self, result: Result<T, ReadError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.warn_once(&error);
                None
            }
        }
    }

    /// Says `error` once.
    pub(crate) fn warn_once(&mut self, error: &ReadError) {
        let times = self.seen.entry(error.cause()).or_insert(0);
        *times += 1;
        if *times == 1 {
            tracing::warn!(%error, because = "unreadable, taken as absent; further ones like it are not logged");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::malformed;
    use crate::root::ReadError;

    #[test]
    fn the_same_file_of_a_thousand_groups_failing_alike_is_one_cause() {
        let mut warnings = Warnings::default();
        for group in 0..1_000 {
            let error = ReadError::malformed(format!("/docker/{group}/cpu.max"), malformed("x", "a number"));
            assert_eq!(warnings.ok_or_warn::<()>(Err(error)), None);
        }
        warnings.warn_once(&ReadError::malformed("/docker/1/memory.max", malformed("x", "a number")));
        assert_eq!(warnings.seen.len(), 2);
        assert_eq!(warnings.ok_or_warn(Ok(1)), Some(1));
    }
}
