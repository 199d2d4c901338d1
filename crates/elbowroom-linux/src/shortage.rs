//! What the kernel says of a shortage on the whole machine.

use crate::proc;
use crate::root::{ReadError, Root};
use crate::zfs;
use elbowroom_types::psi::Pressure;
use elbowroom_types::unit::Bytes;

/// Signs of a shortage; each is absent where the kernel does not have it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shortage {
    /// `/proc/pressure/cpu`.
    pub cpu: Option<Pressure>,
    /// `/proc/pressure/memory`.
    pub memory: Option<Pressure>,
    /// `MemAvailable` of `/proc/meminfo`, and what ZFS's cache gives back.
    pub available: Option<Bytes>,
}

/// Reads them, three small files. What cannot be read, as on a kernel with PSI switched off, is absent.
pub fn read(root: &Root) -> Shortage {
    let pressure = |file| proc::pressure(&root.read(file).ok()?).ok();
    let available = || -> Result<Option<Bytes>, ReadError> {
        let path = "/proc/meminfo";
        let text = root.read(path)?;
        let available =
            proc::meminfo(&text).map_err(|source| ReadError::malformed(path, source))?.mem_available;
        Ok(available.map(|available| available.saturating_add(zfs::evictable_cache(root))))
    };
    Shortage {
        cpu: pressure("/proc/pressure/cpu"),
        memory: pressure("/proc/pressure/memory"),
        available: available().unwrap_or_default(),
    }
}
