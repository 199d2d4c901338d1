//! What was seen in the files of a root directory or an image: bytes already read, nothing concluded yet.

use super::source::ResourceSource;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Everything that was seen in one root directory or image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// Files with something to say, by path from the root, with a leading slash.
    pub files: BTreeMap<String, FileEvidence>,
    /// The image's entry point and command, or nothing.
    pub command: Vec<String>,
    /// The image's environment, `NAME=value`.
    pub env: Vec<String>,
    /// What was not looked at, and why.
    pub skipped: Vec<String>,
}

/// What one file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileEvidence {
    /// A program or a shared library.
    Elf(Box<ElfEvidence>),
    /// The `release` file of a Java runtime.
    JavaRelease(JavaRelease),
    /// A .NET program's `*.runtimeconfig.json`.
    Dotnet(DotnetConfig),
    /// The value of one key in a server's configuration.
    Setting(ServerSetting),
    /// A Python package that is installed, from the name of its `.dist-info`.
    PythonPackage {
        /// As the directory spells it.
        name: String,
        /// As the directory spells it.
        version: String,
    },
}

/// An ELF file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElfEvidence {
    /// It can be started, rather than only be linked to.
    pub program: bool,
    /// Which C library it calls.
    pub libc: Libc,
    /// `DT_SONAME`.
    pub soname: Option<String>,
    /// `DT_NEEDED`.
    pub needed: Vec<String>,
    /// Calls it makes that ask about the machine.
    pub calls: BTreeSet<SizingCall>,
    /// Symbols of [`super::detect::SYMBOLS`] that it defines.
    pub defines: BTreeSet<String>,
    /// Sources whose names are in its bytes.
    pub mentions: BTreeSet<ResourceSource>,
    /// Texts of [`super::detect::marker_texts`] that are in its bytes, each with the version that follows, if one does.
    pub marks: BTreeMap<String, Option<String>>,
    /// Written in Go.
    pub go: Option<GoBuild>,
    /// Written in Rust, by this version of rustc; empty where the file does not tell which.
    pub rustc: Option<String>,
}

/// The C library of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Libc {
    /// None, or linked in.
    #[default]
    Static,
    /// GNU.
    Glibc,
    /// musl, as in Alpine.
    Musl,
}

/// A call that asks about the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum SizingCall {
    /// `sched_getaffinity`, `pthread_getaffinity_np`.
    #[serde(rename = "sched_getaffinity")]
    Affinity,
    /// `sysconf(_SC_NPROCESSORS_ONLN)`, `get_nprocs`, `std::thread::hardware_concurrency`.
    #[serde(rename = "sysconf(_SC_NPROCESSORS_ONLN)")]
    NprocessorsOnln,
    /// `sysconf(_SC_NPROCESSORS_CONF)`, `get_nprocs_conf`.
    #[serde(rename = "sysconf(_SC_NPROCESSORS_CONF)")]
    NprocessorsConf,
    /// `sysconf(_SC_PHYS_PAGES)` and `_SC_AVPHYS_PAGES`.
    #[serde(rename = "sysconf(_SC_PHYS_PAGES)")]
    PhysPages,
    /// `sysinfo`.
    #[serde(rename = "sysinfo")]
    Sysinfo,
}

impl SizingCall {
    /// Where the C library looks for the answer: glibc's `sysdeps/unix/sysv/linux/getsysstats.c`, musl's
    /// `src/conf/sysconf.c`.
    pub fn source(self, libc: Libc) -> ResourceSource {
        match (self, libc) {
            (Self::Affinity, _) => ResourceSource::Affinity,
            (Self::PhysPages | Self::Sysinfo, _) => ResourceSource::Sysinfo,
            (Self::NprocessorsOnln | Self::NprocessorsConf, Libc::Musl) => ResourceSource::Affinity,
            (Self::NprocessorsOnln, _) => ResourceSource::SysOnline,
            (Self::NprocessorsConf, _) => ResourceSource::SysPossible,
        }
    }

    /// As a programmer writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Affinity => "sched_getaffinity",
            Self::NprocessorsOnln => "sysconf(_SC_NPROCESSORS_ONLN)",
            Self::NprocessorsConf => "sysconf(_SC_NPROCESSORS_CONF)",
            Self::PhysPages => "sysconf(_SC_PHYS_PAGES)",
            Self::Sysinfo => "sysinfo",
        }
    }
}

/// What the Go linker leaves in every program (`debug/buildinfo`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoBuild {
    /// `go1.25.3`.
    pub version: String,
    /// Modules that size the runtime by the container's limits.
    pub modules: BTreeSet<String>,
    /// `DefaultGODEBUG`: what the module's own Go version switches off.
    pub godebug: String,
}

/// A Java runtime's `release` file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JavaRelease {
    /// `JAVA_VERSION`.
    pub version: String,
    /// `IMPLEMENTOR`.
    pub implementor: Option<String>,
}

/// A .NET program's `*.runtimeconfig.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DotnetConfig {
    /// The framework's version: `8.0.0`.
    pub version: Option<String>,
}

/// One key of a server's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSetting {
    /// Whose: `nginx`, `uwsgi`, `gunicorn`, `php-fpm`.
    pub program: String,
    /// The key.
    pub key: String,
    /// Its value; empty where the file does not have the key.
    pub value: String,
}
