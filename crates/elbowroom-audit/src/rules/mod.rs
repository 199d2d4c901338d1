//! Which programs of an image would misread the host.
//!
//! # Problem
//! A program sizes its pools, heaps and caches by what it reads when it starts, and most read the machine: of DockerHub's
//! most used images, most do (*Adaptive Resource Views*, section 2.2 and Fig. 1). Which ones, what exactly they read, and
//! whether anything reaches them there, decides whether a limit or a view helps or a number must be set by hand.
//!
//! # Approach
//! [`evidence`] is what was seen in files; [`detect`] names the programs it proves; [`table`] says what each reads;
//! [`source`] says whose numbers are there; [`verdict`] puts the two together. Nothing is run and nothing is unpacked.
//!
//! # Properties
//! - A name proves nothing: every program is told by its bytes.
//! - No verdict is written down: each follows from what is read and from what views mount.
//! - What is not known is [`verdict::AuditVerdict::Unknown`], never "right".

pub mod config;
pub mod detect;
pub mod evidence;
mod shell;
pub mod source;
pub mod table;
pub mod verdict;
pub mod version;
