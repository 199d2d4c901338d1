//! The process that holds leases: whether it lives, whether it still works, whether it was deposed.
//!
//! `<ledger>/holder` is 24 bytes: three native words, each written and read whole. A process that holds leases has a record lock on
//! the file, which the kernel takes away at death and not earlier, whatever becomes of the pid; the pid in the file is for
//! people.

use super::LeaseError;
use super::ledger::Ledger;
use crate::timer;
use elbowroom_types::unit::Micros;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, fcntl_getlk};
use std::os::fd::{AsFd, OwnedFd};

/// Its name in the ledger.
const FILE: &str = "holder";

/// Where each word is.
#[derive(Clone, Copy)]
enum HolderWord {
    /// Raised by the process that takes leases away from a holder that is silent. Written by others.
    Generation = 0,
    /// When the holder last did something, on the monotonic clock, which stands still while the machine is suspended.
    /// Written by the holder.
    Heartbeat = 8,
    /// The holder's pid. Written by the holder.
    Pid = 16,
}

/// The file, open.
#[derive(Debug)]
pub(super) struct LeaseHolder(OwnedFd);

impl LeaseHolder {
    /// Becomes the holder. The lock is this process's for as long as it opens and closes the file no second time: the
    /// kernel drops a record lock when *any* descriptor of its file is closed.
    pub(super) fn acquire(ledger: &Ledger) -> Result<Self, LeaseError> {
        let fail = |operation| LeaseError::io(operation, ledger.path().join(FILE));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file =
            rustix::fs::openat(ledger, FILE, flags, Mode::RUSR | Mode::WUSR).map_err(fail("opening"))?;
        let holder = Self(file);
        match rustix::fs::fcntl_lock(&holder.0, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::AGAIN | Errno::ACCESS) => {
                let (dir, pid) = (ledger.path().into(), holder.pid());
                return Err(LeaseError::Held { dir, pid });
            }
            Err(errno) => return Err(fail("locking")(errno)),
        }
        holder.write_word(HolderWord::Pid, u64::from(std::process::id())).map_err(fail("writing"))?;
        holder.heartbeat();
        Ok(holder)
    }

    /// The file of the present or last holder; `None` where there never was one.
    pub(super) fn open(ledger: &Ledger) -> Result<Option<Self>, LeaseError> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(ledger, FILE, flags, Mode::empty()) {
            Ok(file) => Ok(Some(Self(file))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(LeaseError::io("opening", ledger.path().join(FILE))(errno)),
        }
    }

    /// Whether the holder lives.
    pub(super) fn is_alive(&self) -> bool {
        let lock = Flock::from(FlockType::WriteLock);
        // An answer that cannot be had is a reason to leave things alone.
        !matches!(fcntl_getlk(self.0.as_fd(), &lock), Ok(None))
    }

    pub(super) fn pid(&self) -> i32 {
        self.read_word(HolderWord::Pid).try_into().unwrap_or_default()
    }

    pub(super) fn heartbeat(&self) {
        let _ = self.write_word(HolderWord::Heartbeat, timer::now().get());
    }

    pub(super) fn last_heartbeat(&self) -> Micros {
        Micros(self.read_word(HolderWord::Heartbeat))
    }

    pub(super) fn generation(&self) -> u64 {
        self.read_word(HolderWord::Generation)
    }

    /// Deposes the holder: its leases are being taken away.
    pub(super) fn depose(&self) -> Result<(), Errno> {
        self.write_word(HolderWord::Generation, self.generation() + 1)
    }

    fn read_word(&self, word: HolderWord) -> u64 {
        let mut bytes = [0; 8];
        match rustix::io::pread(&self.0, &mut bytes, word as u64) {
            Ok(8) => u64::from_ne_bytes(bytes),
            // Shorter: it was never written.
            _ => 0,
        }
    }

    fn write_word(&self, word: HolderWord, value: u64) -> Result<(), Errno> {
        match rustix::io::pwrite(&self.0, &value.to_ne_bytes(), word as u64)? {
            8 => Ok(()),
            _ => Err(Errno::NOSPC),
        }
    }
}

/// Removes the file, once no process holds leases.
pub(super) fn remove(ledger: &Ledger) {
    let _ = rustix::fs::unlinkat(ledger, FILE, rustix::fs::AtFlags::empty());
}
